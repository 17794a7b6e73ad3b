//! Readiness: what is down is told while it is, and by nobody any more once it is not.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::time::{Duration, Instant};

use hapax::store::StoreKind;
use support::host::run;
use support::http::Http;
use support::scene::{Scene, SourceSort, credit_account};

const TABLES: &str = "CREATE TABLE accounts (id TEXT PRIMARY KEY, balance BIGINT NOT NULL)";
/// Longer than anything that a test waits for takes.
const LONG: Duration = Duration::from_secs(60);
const LISTEN: (&str, &str) = ("HAPAX_ADMIN__LISTEN", "127.0.0.1:0");

/// The status and the body of an answer.
fn get(admin: &Http, path: &str) -> (u16, serde_json::Value) {
    let answer = admin.get(path);
    (
        answer.status,
        serde_json::from_slice(&answer.body).unwrap_or_default(),
    )
}

/// Waits until `/readyz` answers with `status`; returns the body. The process lives all the while.
fn wait_for(admin: &Http, status: u16) -> serde_json::Value {
    wait_until(admin, |found, _| found == status)
}

/// Waits until `part` is down with a reason that contains `word`; returns the reason.
fn wait_until_down(admin: &Http, part: &str, word: &str) -> String {
    let why = |body: &serde_json::Value| {
        body["down"]
            .as_array()?
            .iter()
            .find(|down| down["part"] == part)?["why"]
            .as_str()
            .filter(|why| why.contains(word))
            .map(str::to_owned)
    };
    let body = wait_until(admin, |status, body| status == 503 && why(body).is_some());
    why(&body).unwrap()
}

fn wait_until(admin: &Http, is_it: impl Fn(u16, &serde_json::Value) -> bool) -> serde_json::Value {
    let started = Instant::now();
    loop {
        let (status, body) = get(admin, "/readyz");
        assert_eq!(status == 200, body["ready"] == true, "{body}");
        if is_it(status, &body) {
            return body;
        }
        assert_eq!(get(admin, "/healthz").0, 200);
        assert!(started.elapsed() < LONG, "{status}: {body}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_down_is_named_until_it_is_back() {
    let mut scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::JetStream,
        &credit_account(),
        TABLES,
        "",
    )
    .await;
    let mut host = scene.host(&[], &[LISTEN]);
    let admin = Http::of(&mut host);
    wait_for(&admin, 200);

    scene.store.postgres.as_mut().unwrap().kill();
    let why = wait_until_down(&admin, "store", "cannot connect to `postgres://tester@");
    assert!(!why.contains("secret"), "{why}");
    scene.store.postgres.as_mut().unwrap().restart();
    wait_for(&admin, 200);

    scene.nats.as_mut().unwrap().kill();
    wait_until_down(
        &admin,
        "source messages",
        "no connection to `nats://127.0.0.1:",
    );
    scene.nats.as_mut().unwrap().restart();
    wait_for(&admin, 200);

    assert_eq!(get(&admin, "/elsewhere").0, 404);
    host.terminate();
    host.wait_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_database_and_broker_waits_for_both() {
    let mut scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::JetStream,
        &credit_account(),
        TABLES,
        "",
    )
    .await;
    scene.store.postgres.as_mut().unwrap().stop();
    scene.nats.as_mut().unwrap().kill();
    let mut host = scene.host(&[], &[LISTEN]);
    let admin = Http::of(&mut host);
    host.wait_for_line("waiting for the database");
    wait_until_down(&admin, "store", "cannot connect");
    scene.store.postgres.as_mut().unwrap().restart();
    host.wait_for_line("waiting for the source");
    wait_until_down(&admin, "source messages", "cannot connect");
    assert_eq!(get(&admin, "/readyz").0, 503);
    scene.nats.as_mut().unwrap().restart();
    host.wait_until_ready();
    wait_for(&admin, 200);
    host.terminate();
    host.wait_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_in_use_is_told_with_what_to_do() {
    let scene = Scene::new(
        StoreKind::Sqlite,
        SourceSort::Queue,
        &credit_account(),
        TABLES,
        "",
    )
    .await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap().to_string();
    let host = scene.host(&[], &[("HAPAX_ADMIN__LISTEN", &listen)]);
    let (status, said) = host.wait();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(
        said.contains(&format!(
            "error: `admin.listen`: cannot listen at `{listen}`: Address already in use"
        )),
        "{said}"
    );
    assert!(said.contains("hint: another program"), "{said}");
    // Other commands do not listen.
    let config = std::fs::read_to_string(scene.config()).unwrap();
    std::fs::write(
        scene.config(),
        format!("{config}\n[admin]\nlisten = \"{listen}\"\n"),
    )
    .unwrap();
    let output = run(scene.folder(), &["status"]);
    assert!(output.status.success(), "{}", output.err);
}
