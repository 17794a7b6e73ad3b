//! A project in Rust.

use std::io::Read as _;
use std::process::Command;

use serde_json::json;

use crate::author::{Author, PATIENCE, balance};

#[test]
fn a_change_takes_effect_and_a_build_that_writes_among_the_sources_comes_to_an_end() {
    let author = Author::with_project("rust");
    let mut followed = author.follow(&[]);
    followed.event("built");
    assert_eq!(
        balance(&followed.message("m-1", "committed")),
        (json!(0), json!(5))
    );
    followed.message("m-4", "dead");
    let builds = followed.count("building");

    author.replace(
        "src/lib.rs",
        "params![credit.amount,",
        "params![credit.amount * 2,",
    );
    assert_eq!(followed.event("building")["changed"], json!(["src/lib.rs"]));
    followed.log("swapped");
    author.add_message("m-5", 1);
    assert_eq!(
        balance(&followed.message("m-5", "committed")),
        (json!(15), json!(17))
    );
    assert_eq!(followed.count("building"), builds + 1);

    author.replace("src/lib.rs", "credit.amount * 2", "credit.amonut");
    let failed = followed.event("build_failed");
    let said = failed["error"].as_str().unwrap();
    assert!(said.contains("no field `amonut`"), "{said}");
    assert_eq!(failed["serves"], true);
    author.replace("src/lib.rs", "credit.amonut", "credit.amount * 2");
    assert_eq!(followed.event("built")["is_new"], false);

    // Cargo runs it each time, since the file that it looks at is never there.
    std::fs::write(
        author.file("build.rs"),
        "fn main() {\n\
         println!(\"cargo:rerun-if-changed=never\");\n\
         let now = std::time::SystemTime::now();\n\
         std::fs::write(\"src/stamp.txt\", format!(\"{now:?}\")).unwrap();\n\
         }\n",
    )
    .unwrap();
    let unfollowed = followed.event("unfollowed");
    assert_eq!(unfollowed["files"], json!(["src/stamp.txt"]));
    let builds = followed.count("building");
    // It goes on, and builds once for a change.
    author.replace("src/lib.rs", "credit.amount * 2", "credit.amount * 3");
    followed.log("swapped");
    author.add_message("m-6", 1);
    assert_eq!(
        balance(&followed.message("m-6", "committed")),
        (json!(17), json!(20))
    );
    followed.interrupt();
    assert!(followed.end().success());
    assert_eq!(followed.count("building"), builds + 1);
}

/// Whoever ends in the middle of a build wants nothing of it any more, least of all a compiler that goes on unseen.
#[test]
fn the_end_ends_a_build_with_all_that_it_has_started() {
    let author = Author::with_project("rust");
    let pipe = author.file(".alive");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    // Cargo's child holds the pipe open as long as it lives.
    std::fs::write(
        author.file("build.rs"),
        "use std::io::Write;\n\
         fn main() {\n\
         let mut pipe = std::fs::File::create(\".alive\").unwrap();\n\
         pipe.write_all(b\"here\").unwrap();\n\
         loop { std::thread::park(); }\n\
         }\n",
    )
    .unwrap();
    let mut followed = author.follow(&[]);
    let mut alive = std::fs::File::open(&pipe).unwrap();
    let mut here = [0; 4];
    alive.read_exact(&mut here).unwrap();
    followed.types("q");
    assert!(followed.end().success());
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(alive.read_to_end(&mut Vec::new()).unwrap()));
    assert_eq!(ended.recv_timeout(PATIENCE), Ok(0));
    assert_eq!(followed.count("built"), 0);
}

const BATCHES: &str = r#"
use hapax_guest::batch::Results;
use hapax_guest::{Failure, Message, params, sql};

#[derive(serde::Deserialize)]
struct Credit {
    account: String,
    amount: i64,
}

fn handle(messages: &[Message]) -> Result<Results, Failure> {
    let mut results = Results::ok(messages);
    let credits = results.each(messages, |message| message.json::<Credit>());
    let rows: Vec<_> = credits.iter().map(|(_, credit)| params![credit.amount, &credit.account].to_vec()).collect();
    let counts = sql::execute_many("UPDATE accounts SET balance = balance + $1 WHERE id = $2", &rows)?;
    for ((index, _), count) in credits.iter().zip(counts) {
        if count == 0 {
            results.fail(*index, Failure::reject("no account"));
        }
    }
    Ok(results)
}

hapax_guest::batch_handler!(handle);
"#;

/// How many messages come in one call is up to the host; what they changed is shown once, whatever it is.
#[test]
fn what_a_call_with_many_messages_changed_is_shown_once() {
    let author = Author::with_project("rust");
    std::fs::write(author.file("src/lib.rs"), BATCHES).unwrap();
    let mut followed = author.follow(&[]);
    followed.event("built");
    let mut waited: Vec<&str> = vec!["m-1", "m-2", "m-3", "m-4"];
    let (mut sum, mut quiet) = (0, 0);
    while !waited.is_empty() {
        let message = followed.event("message");
        waited.retain(|id| message["id"] != *id);
        if message["became"] != "committed" {
            assert_eq!(message["id"], "m-4", "{message}");
            assert_eq!(message["became"], "dead", "{message}");
            continue;
        }
        let rows = message["rows"].as_array().unwrap();
        for row in rows {
            let balance = |side: &str| row[side]["balance"].as_i64().unwrap();
            sum += balance("after") - balance("before");
        }
        if rows.is_empty() {
            quiet += 1;
            assert!(message["call_messages"].as_u64() >= Some(2), "{message}");
        }
    }
    assert_eq!(sum, 12, "{quiet} messages were behind the first of a call");
    followed.interrupt();
    assert!(followed.end().success());
}
