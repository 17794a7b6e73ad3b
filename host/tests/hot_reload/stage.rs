//! A host whose component can be replaced, and two components whose effects differ.

use std::path::PathBuf;

use hapax::message::ComponentDigest;
use hapax::store::StoreKind;
use serde_json::json;

use crate::support::host::Host;
use crate::support::scene::{Scene, SourceSort, TestMessage, credit_account};

/// What the first version runs.
const FIRST: &str = "UPDATE accounts SET balance = balance + $1 WHERE id = $2";
/// What the second one runs: of the same length, so that it fits into its place.
const SECOND: &str = "UPDATE accounts SET t = t + 3*$1, m = m+1 WHERE id = $2 ";

const TABLES: &str = "CREATE TABLE accounts (id TEXT PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0, \
     t BIGINT NOT NULL DEFAULT 0, m BIGINT NOT NULL DEFAULT 0)";

/// A scene with the component `handler.wasm` in its folder.
pub(crate) struct Stage {
    pub(crate) scene: Scene,
    pub(crate) first: Vec<u8>,
    pub(crate) second: Vec<u8>,
}

impl Stage {
    /// With the first version; `handler` is more lines of the handler's table.
    pub(crate) async fn new(kind: StoreKind, handler: &str) -> Self {
        let scene = Scene::new(
            kind,
            SourceSort::Queue,
            std::path::Path::new("handler.wasm"),
            TABLES,
            handler,
        )
        .await;
        let first = std::fs::read(credit_account()).unwrap();
        let second = patched(&first);
        let stage = Self {
            scene,
            first,
            second,
        };
        stage.write_new(&stage.component(), &stage.first);
        stage
    }

    pub(crate) fn component(&self) -> PathBuf {
        self.scene.folder().join("handler.wasm")
    }

    pub(crate) fn host(&self) -> Host {
        let mut host = self
            .scene
            .host(&[], &[("HAPAX_LOG", "info,hapax=debug,sqlx=warn")]);
        host.wait_until_ready();
        host
    }

    /// Has `path` lead to a new file with these bytes, at once.
    pub(crate) fn write_new(&self, path: &std::path::Path, bytes: &[u8]) {
        let new = self.scene.folder().join("handler.new");
        std::fs::write(&new, bytes).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    /// Sends a message, and waits until it has taken effect; asserts that it took that of `version` (1 or 2).
    pub(crate) async fn assert_runs(&self, id: &str, version: u8) {
        self.scene
            .store
            .run(&format!("INSERT INTO accounts (id) VALUES ('{id}')"))
            .await;
        let message = TestMessage::new(id, &json!({"account": id, "amount": 5}));
        self.scene.publish(&[message]).await;
        self.scene.wait_until_nothing_pends().await;
        let expected = match version {
            1 => "balance = 5 AND t = 0 AND m = 0",
            _ => "balance = 0 AND t = 15 AND m = 1",
        };
        let sql = format!("SELECT count(*) FROM accounts WHERE id = '{id}' AND {expected}");
        assert_eq!(self.scene.store.number(&sql).await, 1, "{id}: {version}");
    }

    pub(crate) fn digests(&self) -> (String, String) {
        (
            ComponentDigest::of(&self.first).to_string(),
            ComponentDigest::of(&self.second).to_string(),
        )
    }
}

/// How many lines of the log contain `text`.
pub(crate) fn lines(said: &str, text: &str) -> usize {
    said.lines().filter(|line| line.contains(text)).count()
}

/// Asks for another effect, in the bytes of the component itself.
fn patched(first: &[u8]) -> Vec<u8> {
    assert_eq!(FIRST.len(), SECOND.len());
    let at = first
        .windows(FIRST.len())
        .position(|window| window == FIRST.as_bytes())
        .expect("the component holds its statement as it is written");
    let mut second = first.to_vec();
    second[at..at + FIRST.len()].copy_from_slice(SECOND.as_bytes());
    second
}

impl Stage {
    /// Puts messages `m<from>` and following into the queue, each with an account of its own; on PostgreSQL.
    pub(crate) async fn send(&self, from: i64, count: i64) {
        self.scene.store.run(&sending(from, count)).await;
    }
}

/// What `Stage::send` runs.
pub(crate) fn sending(from: i64, count: i64) -> String {
    let numbers = format!("generate_series({from}, {})", from + count - 1);
    format!(
        "BEGIN; INSERT INTO accounts (id) SELECT 'm' || n FROM {numbers} n; \
         INSERT INTO hapax.queue (queue, headers, payload) SELECT 'messages', \
         CAST('[[\"Message-Id\",\"m' || n || '\"]]' AS json), \
         convert_to('{{\"account\":\"m' || n || '\",\"amount\":5}}', 'UTF8') FROM {numbers} n; COMMIT"
    )
}
