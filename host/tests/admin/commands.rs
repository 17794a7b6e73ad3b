//! It does what the command line does, and answers with what `--json` prints.

use std::time::{Duration, Instant};

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::support::host::run;
use crate::support::http::Http;
use crate::support::scene::{Scene, SourceSort};
use crate::{LOOPBACK, effect, scene, start};

/// What the command prints.
fn printed(scene: &Scene, arguments: &[&str]) -> String {
    let output = run(scene.folder(), arguments);
    assert!(output.status.success(), "{arguments:?}: {}", output.err);
    output.out
}

fn printed_json(scene: &Scene, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(scene, arguments)).unwrap()
}

/// Looks until it finds what it waits for.
fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(90), "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn message(id: &str, steps: &Value) -> Value {
    json!({
        "subject": "messages.test",
        "headers": { "Message-Id": id },
        "payload": { "steps": steps },
    })
}

/// Three that take effect, of which one publishes, and three that are given up on.
fn send(http: &Http) {
    let published = json!({ "publish": { "subject": "out.a", "payload": "{\"a\":1}" } });
    let sent = http.post_json(
        "/api/send",
        &json!({ "source": "messages", "messages": [
            message("a", &json!([effect()])),
            message("bad-1", &json!([{ "reject": "number 1" }])),
            message("bad-2", &json!([{ "reject": "number 2" }])),
            message("trap", &json!([{ "panic": "over" }])),
            message("p", &json!([effect(), published, published])),
            {
                "subject": "messages.test",
                "headers": { "Message-Id": "d" },
                // {"steps":[]}
                "payload_base64": "eyJzdGVwcyI6W119",
            },
        ] }),
    );
    assert_eq!(sent, json!({ "sent": 6, "duplicates": 0 }));
    wait_for("all six settle", || {
        let status = &http.get_json("/api/status")["handlers"][0];
        status["claimed"] == 3 && status["dead"] == 3 && status["backlog"] == 0
    });
}

fn dead_letters(scene: &Scene, http: &Http) {
    let list = http.get_json("/api/dead-letters");
    assert_eq!(list["dead_letters"].as_array().unwrap().len(), 3, "{list}");
    assert_eq!(
        list,
        printed_json(scene, &["dead-letters", "list", "--json"])
    );
    let filtered =
        http.get_json("/api/dead-letters?class=rejected&handler=subject&since=1h&limit=1");
    assert_eq!(filtered["more"], true);
    assert_eq!(
        filtered,
        printed_json(
            scene,
            &[
                "dead-letters",
                "list",
                "--class",
                "rejected",
                "--limit",
                "1",
                "--json"
            ]
        )
    );
    let groups = http.get_json("/api/dead-letters/groups");
    assert_eq!(groups["groups"].as_array().unwrap().len(), 2, "{groups}");
    assert_eq!(
        groups,
        printed_json(scene, &["dead-letters", "list", "--group", "--json"])
    );

    let number = filtered["dead_letters"][0]["number"].as_i64().unwrap();
    let text = number.to_string();
    let shown = http.get_json(&format!("/api/dead-letters/{number}"));
    assert_eq!(
        shown,
        printed_json(scene, &["dead-letters", "show", &text, "--json"])
    );
    let payload = http.get(&format!("/api/dead-letters/{number}/payload"));
    assert_eq!(
        payload.text(),
        printed(scene, &["dead-letters", "show", &text, "--payload", "-"])
    );
    let exported = http.get("/api/dead-letters/export");
    assert_eq!((exported.status, exported.text().lines().count()), (200, 3));
    assert_eq!(exported.text(), printed(scene, &["dead-letters", "export"]));
    assert_eq!(http.get("/api/dead-letters/export?id=nobody").text(), "");

    // Nothing is dropped, nor are several replayed, unless that is said twice.
    for (path, body) in [
        ("/api/dead-letters/drop", json!({ "numbers": [number] })),
        ("/api/dead-letters/drop", json!({ "class": "rejected" })),
        ("/api/dead-letters/replay", json!({ "all": true })),
    ] {
        let answer = http.post(path, &body);
        assert_eq!(
            (answer.status, answer.code()),
            (428, "not-confirmed".to_owned()),
            "{body}"
        );
    }
    assert_eq!(http.get_json("/api/dead-letters"), list);

    // It runs once more, and is rejected once more.
    let replayed = http.post_json(
        "/api/dead-letters/replay",
        &json!({ "numbers": [number, number] }),
    );
    assert_eq!(
        replayed,
        json!({ "queued": [number], "queued_already": [], "refused": [] })
    );
    wait_for("the replay", || {
        let shown = http.get_json(&format!("/api/dead-letters/{number}"));
        shown["dead_letter"]["attempts"].as_array().unwrap().len() == 2
    });
    let refused = http.post_json(
        "/api/dead-letters/replay",
        &json!({ "numbers": [number + 1000] }),
    );
    assert_eq!(refused["refused"][0]["reason"], "not-there");

    let exported = http.get("/api/dead-letters/export?class=rejected");
    let all_rejected = json!({ "class": "rejected", "confirm": true });
    let dropped = http.post_json("/api/dead-letters/drop", &all_rejected);
    assert_eq!(dropped["dropped"].as_array().unwrap().len(), 2, "{dropped}");
    assert_eq!(http.get(&format!("/api/dead-letters/{number}")).status, 404);
    assert_eq!(
        http.get_json("/api/dead-letters")["dead_letters"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    let import = |lines: &[u8]| {
        let kind = [("Content-Type", "application/x-ndjson")];
        http.ask("POST", "/api/dead-letters/import", &kind, lines)
    };
    let imported = import(&exported.body).json();
    assert_eq!(
        imported,
        json!({ "imported": 2, "renumbered": 0, "there_already": 0, "processed_already": 0 })
    );
    assert_eq!(
        http.get("/api/dead-letters/export?class=rejected").text(),
        exported.text()
    );
    assert_eq!(import(&exported.body).json()["there_already"], 2);
    let answer = import(b"{\"hapax_dead_letter\": 1}\n");
    assert_eq!(
        (answer.status, answer.code()),
        (400, "bad-request".to_owned())
    );
    assert!(
        answer.text().contains("the body, line 1"),
        "{}",
        answer.text()
    );
    let confirmed = json!({ "all": true, "confirm": true });
    let replayed = http.post_json("/api/dead-letters/replay", &confirmed);
    assert_eq!(
        replayed["queued"].as_array().unwrap().len(),
        3,
        "{replayed}"
    );
}

fn outbox(scene: &Scene, http: &Http) {
    let list = http.get_json("/api/outbox?state=unpublished&handler=subject");
    assert_eq!(list["messages"].as_array().unwrap().len(), 2, "{list}");
    assert_eq!(list, printed_json(scene, &["outbox", "list", "--json"]));
    assert_eq!(http.get_json("/api/outbox?limit=1")["has_more"], true);
    assert_eq!(
        http.get_json("/api/outbox?target=elsewhere")["messages"],
        json!([])
    );
    let number = list["messages"][0]["number"].as_i64().unwrap();
    let text = number.to_string();
    let shown = http.get_json(&format!("/api/outbox/{number}"));
    assert_eq!(
        shown,
        printed_json(scene, &["outbox", "show", &text, "--json"])
    );
    let payload = http.get(&format!("/api/outbox/{number}/payload")).text();
    assert_eq!(
        payload,
        printed(scene, &["outbox", "show", &text, "--payload", "-"])
    );

    for (path, body) in [
        ("/api/outbox/republish", json!({ "all": true })),
        ("/api/outbox/drop", json!({ "numbers": [number] })),
    ] {
        let answer = http.post(path, &body);
        assert_eq!(
            (answer.status, answer.code()),
            (428, "not-confirmed".to_owned()),
            "{body}"
        );
    }
    let one = json!({ "numbers": [number] });
    assert_eq!(
        http.post_json("/api/outbox/republish", &one),
        json!({ "republished": [number] })
    );
    let one = json!({ "numbers": [number], "confirm": true });
    assert_eq!(
        http.post_json("/api/outbox/drop", &one),
        json!({ "dropped": [number] })
    );
    assert_eq!(
        http.post_json("/api/outbox/drop", &one),
        json!({ "dropped": [] })
    );
    assert_eq!(http.get(&format!("/api/outbox/{number}")).status, 404);
    assert_eq!(
        http.get_json("/api/outbox")["messages"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
}

fn check_and_prune(scene: &Scene, http: &Http) {
    assert_eq!(
        http.get_json("/api/check"),
        printed_json(scene, &["check", "--json"])
    );
    assert_eq!(
        http.get_json("/api/check?database=true"),
        printed_json(scene, &["check", "--database", "--json"])
    );
    // The file as it is now, not as it was at the start.
    let before = std::fs::read_to_string(scene.config()).unwrap();
    std::fs::write(scene.config(), before.replace("lanes = 1", "lanez = 1")).unwrap();
    let answer = http.get("/api/check");
    assert_eq!(
        (answer.status, answer.code()),
        (422, "configuration".to_owned())
    );
    assert!(
        answer.text().contains("did you mean `lanes`?"),
        "{}",
        answer.text()
    );
    std::fs::write(scene.config(), before).unwrap();

    let dry = http.post_json("/api/prune", &json!({ "dry_run": true }));
    assert_eq!(dry, printed_json(scene, &["prune", "--dry-run", "--json"]));
    wait_for("the host itself prunes no more", || {
        let pruned = http.post("/api/prune", &json!({}));
        if pruned.status == 409 {
            assert_eq!(pruned.code(), "refused");
            return false;
        }
        assert_eq!(
            (pruned.status, &pruned.json()["dry_run"]),
            (200, &json!(false))
        );
        true
    });
    let answer = http.post("/api/prune", &json!({ "handler": "nobody" }));
    assert_eq!(
        (answer.status, answer.code()),
        (404, "not-found".to_owned())
    );
    let answer = http.post("/api/prune", &json!({ "handler": "subject" }));
    assert_eq!(
        (answer.status, answer.code()),
        (422, "configuration".to_owned())
    );
}

async fn all_commands(kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source).await;
    let (host, http) = start(&scene, &[LOOPBACK]);
    send(&http);
    wait_for("both say the same", || {
        http.get_json("/api/status") == printed_json(&scene, &["status", "--json"])
    });
    check_and_prune(&scene, &http);
    outbox(&scene, &http);
    dead_letters(&scene, &http);

    let to = |confirm: bool| json!({ "handler": "subject", "to": 1, "confirm": confirm });
    if source == SourceSort::Queue {
        let answer = http.post("/api/rewind", &to(true));
        assert_eq!(
            (answer.status, answer.code()),
            (400, "bad-request".to_owned())
        );
    } else {
        let before = http.get_json("/api/status")["handlers"][0]["duplicates"]
            .as_u64()
            .unwrap();
        let answer = http.post("/api/rewind", &to(false));
        assert_eq!(
            (answer.status, answer.code()),
            (428, "not-confirmed".to_owned())
        );
        assert!(
            answer.text().contains("would read 6 messages again"),
            "{}",
            answer.text()
        );
        let told = http.post_json("/api/rewind", &to(true));
        assert_eq!(
            (&told["messages"], &told["sequence"]),
            (&json!(6), &json!(1))
        );
        wait_for("all six come again", || {
            let status = &http.get_json("/api/status")["handlers"][0];
            status["duplicates"].as_u64().unwrap() >= before + 6 && status["backlog"] == 0
        });
    }
    assert_eq!(scene.store.number("SELECT count(*) FROM effects").await, 2);
    host.terminate();
    host.wait_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_the_command_line_does_on_sqlite() {
    all_commands(StoreKind::Sqlite, SourceSort::Queue).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_that_the_command_line_does_on_postgres() {
    all_commands(StoreKind::Postgres, SourceSort::JetStream).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_away_is_said_to_be() {
    let mut scene = scene(StoreKind::Postgres, SourceSort::Queue).await;
    let (_host, http) = start(&scene, &[LOOPBACK]);
    scene.store.postgres.as_mut().unwrap().kill();
    for path in [
        "/api/status",
        "/api/dead-letters",
        "/api/dead-letters/export",
    ] {
        let answer = http.get(path);
        assert_eq!(
            (answer.status, answer.code()),
            (503, "unavailable".to_owned()),
            "{path}"
        );
        assert!(answer.head.contains("retry-after: "), "{}", answer.head);
    }
    assert_eq!(http.get("/metrics").status, 200);
}
