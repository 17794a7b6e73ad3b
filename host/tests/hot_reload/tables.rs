//! Handlers' tables that change.

use hapax::store::StoreKind;
use serde_json::json;

use crate::stage::{Stage, lines};
use crate::support::host::Host;
use crate::support::scene::TestMessage;

const OTHER: &str = "\n[sources.others]\nkind = \"queue\"\n[handlers.other]\ncomponent = \"handler.wasm\"\nsource = \"others\"\n\
     message_id = [\"header:Message-Id\"]\n";

fn write_config(stage: &Stage, text: &str) {
    let file = stage.scene.config();
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

fn end(host: Host) -> String {
    host.terminate();
    host.wait_well()
}

#[tokio::test(flavor = "multi_thread")]
async fn handlers_are_started_stopped_and_restarted() {
    for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
        let stage = Stage::new(kind, "").await;
        let before = std::fs::read_to_string(stage.scene.config()).unwrap();
        let mut host = stage.host();
        stage.assert_runs("m1", 1).await;

        // A new one, beside the other.
        write_config(&stage, &format!("{before}{OTHER}"));
        let line = host.wait_for_line("\"message\":\"started\"");
        assert!(line.contains("\"handler\":\"other\""), "{line}");
        stage
            .scene
            .store
            .run("INSERT INTO accounts (id) VALUES ('o1')")
            .await;
        let table = stage.scene.store.table("queue");
        let payload = json!({"account": "o1", "amount": 5}).to_string();
        let hex: String = payload.bytes().map(|byte| format!("{byte:02x}")).collect();
        let bytes = match kind {
            StoreKind::Postgres => format!("'\\x{hex}'"),
            StoreKind::Sqlite => format!("X'{hex}'"),
        };
        stage
            .scene
            .store
            .run(&format!(
                "INSERT INTO {table} (queue, headers, payload) VALUES ('others', '[[\"Message-Id\",\"o1\"]]', {bytes})"
            ))
            .await;
        stage.scene.wait_until_nothing_pends().await;
        let credited = "SELECT balance FROM accounts WHERE id = 'o1'";
        assert_eq!(stage.scene.store.number(credited).await, 5);

        // A table that changes restarts its handler alone; both follow the component's file.
        let changed = before.replace(
            "source = \"messages\"",
            "source = \"messages\"\nbatch = { max = 7 }",
        );
        assert_ne!(changed, before);
        write_config(&stage, &format!("{changed}{OTHER}"));
        let line = host.wait_for_line("restarted with its new table");
        assert!(line.contains("\"handler\":\"subject\""), "{line}");
        stage.assert_runs("m2", 1).await;
        stage.write_new(&stage.component(), &stage.second);
        for _ in 0..2 {
            host.wait_for_line("\"message\":\"swapped\"");
        }
        stage.assert_runs("m3", 2).await;

        // Gone, with its source.
        write_config(&stage, &changed);
        let line = host.wait_for_line("\"message\":\"stopped\"");
        assert!(line.contains("\"handler\":\"other\""), "{line}");
        stage.assert_runs("m4", 2).await;
        let said = end(host);
        assert_eq!(lines(&said, "restarted with"), 1, "{said}");
        // Counts of a handler that is gone are kept, too.
        let counted = stage.scene.status();
        assert_eq!(counted["claimed"], 4, "{counted}");
        let table = stage.scene.store.table("counters");
        let others =
            format!("SELECT CAST(sum(claimed) AS BIGINT) FROM {table} WHERE consumer = 'other'");
        assert_eq!(stage.scene.store.number(&others).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_or_takes_a_restart_is_told_and_changes_nothing() {
    let stage = Stage::new(StoreKind::Sqlite, "").await;
    let before = std::fs::read_to_string(stage.scene.config()).unwrap();
    let mut host = stage.host();
    // Not a configuration.
    write_config(&stage, "[store]\nurl = 5\n");
    host.wait_for_line("the new configuration is not in force");
    stage.assert_runs("m1", 1).await;
    // A handler whose component is refused, a new one and the old one.
    let broken = OTHER.replace("handler.wasm", "hapax.toml");
    write_config(&stage, &format!("{before}{broken}"));
    let line = host.wait_for_line("the new table is not in force");
    assert!(line.contains("\"handler\":\"other\""), "{line}");
    stage.assert_runs("m2", 1).await;
    write_config(&stage, &before.replace("handler.wasm", "missing.wasm"));
    let line = host.wait_for_line("the new table is not in force");
    assert!(line.contains("missing.wasm"), "{line}");
    stage.assert_runs("m3", 1).await;
    // The store can't be another one.
    write_config(&stage, &before.replace("hapax.db", "other.db"));
    let line = host.wait_for_line("which takes a restart");
    assert!(line.contains("\"key\":\"store\""), "{line}");
    stage.assert_runs("m4", 1).await;
    // No handlers at all.
    let none = before.split("[handlers.").next().unwrap().to_owned();
    write_config(&stage, &none);
    host.wait_for_line("the new configuration is not in force");
    stage.assert_runs("m5", 1).await;
    let message = TestMessage::new("m5", &json!({"account": "m5", "amount": 5}));
    stage.scene.publish(&[message]).await;
    stage.scene.wait_until_nothing_pends().await;
    end(host);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_migrations_are_applied_before_the_swap() {
    let stage = Stage::new(StoreKind::Postgres, "").await;
    let mut host = stage.host();
    stage.assert_runs("m1", 1).await;
    // The second version's columns come with it.
    let migrations = stage.scene.folder().join("migrations");
    std::fs::write(
        migrations.join("0002_broken.sql"),
        "ALTER TABLE accounts ADD COLUMN",
    )
    .unwrap();
    stage.write_new(&stage.component(), &stage.second);
    let line = host.wait_for_line("is not in force");
    assert!(line.contains("0002_broken.sql"), "{line}");
    stage.assert_runs("m2", 1).await;
    std::fs::remove_file(migrations.join("0002_broken.sql")).unwrap();
    std::fs::write(
        migrations.join("0002_more.sql"),
        "ALTER TABLE accounts ADD COLUMN more BIGINT",
    )
    .unwrap();
    // The same component again, on request: its migrations can be applied now.
    host.signal(rustix::process::Signal::HUP);
    host.wait_for_line("\"message\":\"swapped\"");
    stage.assert_runs("m3", 2).await;
    assert_eq!(
        stage
            .scene
            .store
            .number("SELECT count(*) FROM accounts WHERE more IS NULL")
            .await,
        3
    );
    end(host);
}
