//! The host dies by SIGKILL in a batch's call and around it: nothing is lost, nothing happens twice.

use std::os::unix::process::ExitStatusExt as _;

use hapax::store::StoreKind;

use crate::stage::{assert_once, effect, message, scene};
use crate::support::scene::{SourceSort, TestMessage};

async fn dies_at(point: &str, pass: u32, kind: StoreKind, source: SourceSort) {
    let scene = scene(kind, source, "").await;
    let messages: Vec<TestMessage> = (1..=12).map(|n| message(n, &[effect(n)])).collect();
    scene.publish(&messages).await;
    let told = scene.folder().join("died-at");
    let host = scene.host(
        &["--until-idle"],
        &[
            ("HAPAX_FAULT_POINT", &format!("{point}:{pass}")),
            ("HAPAX_FAULT_FILE", &told.display().to_string()),
        ],
    );
    let (status, said) = host.wait();
    assert_eq!(status.signal(), Some(9), "{status}; the host said:\n{said}");
    assert_eq!(std::fs::read_to_string(&told).unwrap(), point);
    // Before the commit nothing of the call is there; after it, all is.
    let is_in = point == "before-ack";
    let done = scene.count("processed_messages", "outcome = 'done'").await;
    assert_eq!(done > 0, is_in, "{point}: {done}");
    assert_eq!(
        scene.store.number("SELECT count(*) FROM effects").await,
        done
    );

    scene.run_until_idle();
    assert_once(&scene, 12, &[]).await;
    assert_eq!(
        scene.store.number("SELECT max(attempt) FROM effects").await,
        1
    );
}

/// Makes a test for a point on each database; a point of the call counts its messages.
macro_rules! dies {
    ($($module:ident: $point:literal $pass:literal,)*) => {
        $(
            mod $module {
                use super::*;

                #[tokio::test]
                async fn on_postgres_with_jetstream() {
                    dies_at($point, $pass, StoreKind::Postgres, SourceSort::JetStream).await;
                }

                #[tokio::test]
                async fn on_sqlite_with_the_queue() {
                    dies_at($point, $pass, StoreKind::Sqlite, SourceSort::Queue).await;
                }
            }
        )*
    };
}

dies! {
    after_first_sql: "after-first-sql" 1,
    after_handler: "after-handler" 1,
    before_commit: "before-commit" 1,
    before_ack: "before-ack" 1,
}
