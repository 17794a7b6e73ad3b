//! `hapax demo` with nothing around it: no `PATH`, no configuration, an empty folder.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

/// A demo in an empty folder, without any variable but those for temporary files and an empty `PATH`.
fn demo(folder: &TempDir, arguments: &[&str]) -> Command {
    let (here, temporary) = (folder.path().join("here"), folder.path().join("temporary"));
    for made in [&here, &temporary] {
        std::fs::create_dir_all(made).unwrap();
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    command
        .arg("demo")
        .args(arguments)
        .env_clear()
        .env("PATH", "")
        .env("TMPDIR", temporary)
        .current_dir(here)
        .stdin(Stdio::null());
    command
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

#[track_caller]
fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn json_of(output: &Output) -> Value {
    assert_eq!(text(&output.stderr), "", "{output:?}");
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let out = text(&output.stdout);
    assert_eq!(out.lines().count(), 1, "{out}");
    serde_json::from_str(&out).unwrap()
}

/// Looks into a database without any code of hapax.
async fn number(database: &Path, query: &'static str) -> i64 {
    let options = SqliteConnectOptions::new().filename(database);
    let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
    let number = sqlx::query_scalar(query)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    connection.close().await.unwrap();
    number
}

#[tokio::test]
async fn its_numbers_agree_with_the_database_that_it_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let arguments = ["--seed", "7", "--json", "--keep", kept.to_str().unwrap()];
    let result = json_of(&demo(&folder, &arguments).output().unwrap());

    assert_eq!(result["exact"], true, "{result:#}");
    assert_eq!(result["seed"], 7);
    assert_eq!(result["faults"], json!([]));
    let killed = result["killed"].as_array().unwrap();
    let points: Vec<&Value> = killed.iter().map(|kill| &kill["point"]).collect();
    assert_eq!(points, ["after-handler", "before-ack"]);
    let settled: Vec<u64> = killed
        .iter()
        .map(|kill| kill["settled"].as_u64().unwrap())
        .collect();
    assert!(0 < settled[0] && settled[0] < settled[1] && settled[1] < 987);

    assert_eq!(result["database"], json!(kept.join("hapax.db")));
    let ours = kept.join("hapax.db");
    for (field, expected, query) in [
        (
            &result["took_effect"],
            329,
            "SELECT count(*) FROM hapax_processed_messages WHERE consumer = 'github-activity' AND outcome = 'done'",
        ),
        (
            &result["events"],
            329,
            "SELECT sum(events) FROM repositories",
        ),
        (
            &result["events"],
            329,
            "SELECT sum(count) FROM event_counts",
        ),
        (
            &result["tables"]["repositories"]["rows"],
            14,
            "SELECT count(*) FROM repositories",
        ),
        (
            &result["tables"]["event_counts"]["rows"],
            73,
            "SELECT count(*) FROM event_counts",
        ),
        (
            &result["tables"]["issues"]["rows"],
            3,
            "SELECT count(*) FROM issues",
        ),
        (
            &result["dead"],
            0,
            "SELECT count(*) FROM hapax_dead_letters",
        ),
        (&result["backlog"], 0, "SELECT count(*) FROM hapax_queue"),
    ] {
        assert_eq!(*field, expected, "{query}");
        assert_eq!(number(&ours, query).await, expected, "{query}");
    }
    assert_eq!(result["deliveries"], 987);
    assert_eq!(result["skipped"], 987 - 329);
    for table in ["repositories", "event_counts", "issues"] {
        assert_eq!(result["tables"][table]["differences"], json!([]), "{table}");
    }

    // Without claims every delivery counts.
    let plain = &result["plain"];
    assert_eq!(plain["database"], json!(kept.join("plain.db")));
    assert_eq!(plain["took_effect"], 987);
    assert_eq!(plain["events"], 987);
    let summed = "SELECT sum(events) FROM repositories";
    assert_eq!(number(&kept.join("plain.db"), summed).await, 987);
    let wrong = plain["tables"]["repositories"]["differences"]
        .as_array()
        .unwrap();
    assert_eq!(wrong.len(), 14, "{wrong:?}");

    assert!(is_empty(&folder.path().join("here")));
    assert!(is_empty(&folder.path().join("temporary")));
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second] =
        [(); 2].map(|()| json_of(&demo(&folder, &["--seed", "8", "--json"]).output().unwrap()));
    assert_eq!(first["order"].as_str().unwrap().len(), 32, "{first:#}");
    assert_eq!(first["order"], second["order"]);
    assert_ne!(first["database"], second["database"]);
}

#[test]
fn the_table_says_what_to_try_next() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(&folder, &[])
        // Nothing of the caller's reaches the demo or its hosts.
        .env("HAPAX_STORE__URL", "postgres://nobody@127.0.0.1:1/none")
        .env("HAPAX_CONFIG", "/nowhere/hapax.toml")
        .output()
        .unwrap();
    let out = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for part in [
        "329 GitHub webhooks, each delivered 3 times, in the order of seed ",
        "took effect          329               987         329",
        "killed at after-handler",
        "killed at before-ack",
        "exact: yes (90 rows compared, ",
        "next:",
    ] {
        assert!(out.contains(part), "`{part}` in\n{out}");
    }

    // Its advice, taken: everything a fourth time changes nothing.
    let (_, rest) = out.split_once("  cd ").unwrap();
    let (kept, _) = rest.split_once('\n').unwrap();
    assert!(Path::new(kept).starts_with(folder.path()), "{kept}");
    for line in [
        vec![
            "send",
            "github",
            "--envelope",
            "--json",
            "--lines",
            "messages.jsonl",
        ],
        vec!["run", "--until-idle", "--report-batches"],
    ] {
        assert!(
            out.contains(&line[..2].join(" ")),
            "`{line:?}` is not in\n{out}"
        );
        let done = Command::new(env!("CARGO_BIN_EXE_hapax"))
            .args(&line)
            .env_clear()
            .current_dir(kept)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let lines: Vec<Value> = text(&done.stdout)
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let sum = |name: &str| -> u64 { lines.iter().filter_map(|line| line[name].as_u64()).sum() };
        match line[0] {
            "send" => assert_eq!(sum("sent"), 329),
            _ => assert_eq!((sum("claimed"), sum("duplicates")), (0, 329)),
        }
    }
}

#[test]
fn a_folder_with_something_in_it_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    std::fs::write(kept.join("mine"), "").unwrap();
    let output = demo(&folder, &["--keep", kept.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(
        text(&output.stderr),
        format!(
            "error: `--keep {}`: the folder is not empty\nhint: name one that is empty or does not exist yet\n",
            kept.display()
        )
    );
    assert_eq!(std::fs::read_dir(&kept).unwrap().count(), 1);
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = demo(&folder, &[]).stderr(Stdio::piped()).spawn().unwrap();
    let temporary = folder.path().join("temporary");
    let begun = Instant::now();
    let a_host_runs = || {
        std::fs::read_dir(&temporary)
            .unwrap()
            .flatten()
            .any(|entry| entry.path().join("hosts.log").exists())
    };
    while !a_host_runs() {
        assert!(begun.elapsed() < Duration::from_secs(90));
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert_eq!(said, "error: interrupted\n");
    assert!(is_empty(&temporary));
}
