//! The example `stock-and-shipment`: two handlers in a chain, of which each order takes effect once.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

mod support;

use std::path::Path;

use support::database::TestStore;
use support::host::run_with;

async fn orders_are_shipped_once(store: TestStore) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/stock-and-shipment");
    assert!(
        folder.join("stock-and-shipment.wasm").exists(),
        "the example is not built: run `cargo xtask guests`"
    );
    let hapax = |arguments: &[&str]| {
        let variables = [("HAPAX_STORE__URL", store.url.as_str())];
        let output = run_with(&folder, arguments, &variables, b"");
        assert!(output.status.success(), "{arguments:?}: {}", output.err);
        output.out
    };
    let send = |order: &str, item: &str, quantity: i64| {
        let payload = format!(r#"{{"order":"{order}","item":"{item}","quantity":{quantity}}}"#);
        hapax(&["send", "orders", &payload, "--id", order]);
    };
    for _ in 0..3 {
        send("o1", "chair", 2);
        send("o2", "table", 3);
        send("o3", "chair", 8);
        send("o4", "chair", 1);
    }
    hapax(&["run", "--until-idle"]);
    send("o1", "chair", 2);
    hapax(&["run", "--until-idle"]);

    let number = async |sql: &str| store.number(sql).await;
    assert_eq!(
        number("SELECT quantity FROM stock WHERE item = 'chair'").await,
        0
    );
    assert_eq!(
        number("SELECT quantity FROM stock WHERE item = 'table'").await,
        2
    );
    assert_eq!(number("SELECT count(*) FROM shipments").await, 2);
    assert_eq!(
        number(
            "SELECT CAST(sum(quantity) AS bigint) FROM shipments WHERE order_id IN ('o1', 'o3')"
        )
        .await,
        10
    );
    let status: serde_json::Value = serde_json::from_str(&hapax(&["status", "--json"])).unwrap();
    let stock = status["handlers"]
        .as_array()
        .unwrap()
        .iter()
        .find(|handler| handler["name"] == "stock")
        .unwrap();
    // One item was not there, one was gone.
    assert_eq!(
        (&stock["claimed"], &stock["dead"]),
        (&2.into(), &2.into()),
        "{stock}"
    );
    assert_eq!(stock["outbox"]["unpublished"], 0);
}

#[tokio::test]
async fn orders_are_shipped_once_on_postgres() {
    orders_are_shipped_once(TestStore::empty_postgres().await).await;
}

#[tokio::test]
async fn orders_are_shipped_once_on_sqlite() {
    orders_are_shipped_once(TestStore::empty_sqlite()).await;
}
