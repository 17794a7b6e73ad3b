//! Components in the store: deployed to one host, run by all; paused, rolled back and removed; and what is left when a host dies of it.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod asked;
mod dies;
mod fleet;
mod refused;
mod stream;

use std::path::{Path, PathBuf};

use hapax::message::ComponentDigest;
use hapax::store::StoreKind;
use serde_json::{Value, json};
use support::host::{Host, Output, run_with};
use support::scene::{Scene, SourceSort, TestMessage, credit_account};

const ACCOUNTS: &str = "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint NOT NULL);\n\
                        INSERT INTO accounts (id, balance) VALUES ('a', 0);";

/// A scene whose handler's component the store holds; hosts have an admin address.
async fn scene(kind: StoreKind) -> Scene {
    scene_of(kind, SourceSort::Queue).await
}

async fn scene_of(kind: StoreKind, source: SourceSort) -> Scene {
    let scene = Scene::new(kind, source, &credit_account(), ACCOUNTS, "").await;
    let config = std::fs::read_to_string(scene.config()).unwrap();
    let file = format!("component = \"{}\"", credit_account().display());
    assert!(config.contains(&file));
    let config = config
        .replace(&file, "component = \"store\"")
        .replace("migrations = \"migrations\"\n", "");
    let config = format!("{config}\n[admin]\nlisten = \"127.0.0.1:0\"\n");
    std::fs::write(scene.config(), config).unwrap();
    scene
}

/// The same handler, and another component: a custom section more.
fn other_version(scene: &Scene) -> PathBuf {
    let mut bytes = std::fs::read(credit_account()).unwrap();
    bytes.extend_from_slice(b"\0\x06\x05other");
    let path = scene.folder().join("other.wasm");
    std::fs::write(&path, bytes).unwrap();
    path
}

fn digest(component: &Path) -> String {
    ComponentDigest::of(&std::fs::read(component).unwrap()).to_string()
}

/// A running host, and where it can be asked.
struct Asked {
    host: Host,
    url: String,
}

impl Asked {
    fn start(scene: &Scene, variables: &[(&str, &str)]) -> Self {
        let mut host = scene.host(&[], variables);
        let line = host.wait_for_line("the admin address is open");
        let line: Value = serde_json::from_str(&line).unwrap();
        let url = format!("http://{}", line["address"].as_str().unwrap());
        host.wait_until_ready();
        Self { host, url }
    }

    fn try_ask(&self, scene: &Scene, arguments: &[&str]) -> Output {
        let variables = [("HAPAX_ADMIN_URL", self.url.as_str()), ("USER", "tester")];
        let all = [&["handlers"], arguments].concat();
        run_with(scene.folder(), &all, &variables, b"")
    }

    /// Asks, asserts that it was done, and returns what was told.
    fn ask(&self, scene: &Scene, arguments: &[&str]) -> Value {
        let output = self.try_ask(scene, &[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{arguments:?}: {}", output.err);
        serde_json::from_str(&output.out).unwrap()
    }

    fn deploy(&self, scene: &Scene, component: &Path) -> Value {
        let component = component.to_str().unwrap();
        self.ask(
            scene,
            &["deploy", "subject", component, "--migrations", "migrations"],
        )
    }
}

/// States and digests of the hosts in an answer, which must be so many.
fn states(answer: &Value, count: usize) -> Vec<(String, Option<String>)> {
    let hosts = answer["hosts"].as_array().unwrap();
    assert_eq!(hosts.len(), count, "{answer}");
    let text = |value: &Value| value.as_str().map(str::to_owned);
    hosts
        .iter()
        .map(|host| {
            assert_eq!(host["error"], Value::Null, "{answer}");
            (text(&host["state"]).unwrap(), text(&host["digest"]))
        })
        .collect()
}

fn credit(id: &str) -> TestMessage {
    TestMessage::new(id, &json!({ "account": "a", "amount": 1 }))
}

/// Waits until the message is done, and returns the digest that is recorded with its claim.
async fn done_by(scene: &Scene, id: &str) -> String {
    let [claims, components] = ["processed_messages", "components"].map(|t| scene.store.table(t));
    let mut probe = scene.store.probe().await;
    let count = format!("SELECT count(*) FROM {claims} WHERE message_id = '{id}'");
    probe.wait_for(&count, 1).await;
    let hex = match scene.store.kind() {
        StoreKind::Postgres => "encode(c.digest, 'hex')",
        StoreKind::Sqlite => "lower(hex(c.digest))",
    };
    probe
        .text(&format!(
            "SELECT {hex} FROM {claims} p JOIN {components} c ON c.id = p.component WHERE p.message_id = '{id}'"
        ))
        .await
        .unwrap()
}

async fn balance(scene: &Scene) -> i64 {
    scene.store.number("SELECT balance FROM accounts").await
}
