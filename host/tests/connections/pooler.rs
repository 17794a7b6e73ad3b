//! PgBouncer: in session mode hapax works through it, in transaction mode it says that it does not.

use hapax::store::StoreKind;

use crate::support::host::Host;
use crate::support::pgbouncer::PgBouncer;
use crate::support::scene::{Scene, SourceSort, TestMessage, credit_account};

const TABLES: &str = "CREATE TABLE accounts (id TEXT PRIMARY KEY, balance BIGINT NOT NULL); \
                      INSERT INTO accounts VALUES ('a0', 0), ('a1', 0), ('a2', 0), ('a3', 0), ('a4', 0)";

async fn scene() -> Scene {
    let scene = Scene::new(
        StoreKind::Postgres,
        SourceSort::Queue,
        &credit_account(),
        TABLES,
        "lanes = 3",
    )
    .await;
    let messages: Vec<TestMessage> = (0..60)
        .map(|number| {
            let payload = serde_json::json!({ "account": format!("a{}", number % 5), "amount": 1 });
            TestMessage::new(number.to_string(), &payload)
        })
        .collect();
    scene.publish(&messages).await;
    scene
}

fn host(scene: &Scene, pooler: &PgBouncer) -> Host {
    let url = pooler.url(&scene.store.url);
    scene.host(&["--until-idle"], &[("HAPAX_STORE__URL", &url)])
}

#[tokio::test(flavor = "multi_thread")]
async fn in_session_mode_all_is_as_without() {
    let scene = scene().await;
    let pooler = PgBouncer::start(scene.store.postgres.as_ref().unwrap(), "session");
    // The second host gets sessions that the first one had.
    for _ in 0..2 {
        host(&scene, &pooler).wait_well();
    }
    assert_eq!(
        scene
            .store
            .number("SELECT sum(balance)::bigint FROM accounts")
            .await,
        60
    );
    assert_eq!(scene.count("processed_messages", "true").await, 60);
}

#[tokio::test(flavor = "multi_thread")]
async fn in_transaction_mode_it_is_refused_with_a_sentence() {
    let scene = scene().await;
    let pooler = PgBouncer::start(scene.store.postgres.as_ref().unwrap(), "transaction");
    let (status, said) = host(&scene, &pooler).wait();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains("PgBouncer in transaction mode"), "{said}");
    assert!(said.contains("pool_mode = session"), "{said}");
    assert!(!said.contains("secret"), "{said}");
    assert_eq!(scene.count("processed_messages", "true").await, 0);
}
