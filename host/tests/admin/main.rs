//! The admin address of the real daemon: who may ask, what is refused and how, and that it does what the command line does.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod access;
mod bounds;
mod commands;
mod flood;
mod routes;

use hapax::store::StoreKind;
use serde_json::{Value, json};
use support::host::Host;
use support::http::Http;
use support::scene::{Scene, SourceSort, TestMessage, script};

/// On a port of the system's choice.
const LOOPBACK: (&str, &str) = ("HAPAX_ADMIN__LISTEN", "127.0.0.1:0");
const ANYWHERE: (&str, &str) = ("HAPAX_ADMIN__LISTEN", "0.0.0.0:0");
const TOKEN: &str = "correct-horse-battery-staple";
const TOKEN_SET: (&str, &str) = ("HAPAX_ADMIN__TOKEN", TOKEN);

/// `effects` has no key, so that an effect that is applied twice shows.
const TABLES: &str = "CREATE TABLE effects (id text NOT NULL)";
const HANDLER: &str = "lanes = 1\nretry = { attempts = 1, backoff = \"1ms\" }";

async fn scene(kind: StoreKind, source: SourceSort) -> Scene {
    Scene::new(kind, source, &script(), TABLES, HANDLER).await
}

/// A host that consumes, and its admin address.
fn start(scene: &Scene, variables: &[(&str, &str)]) -> (Host, Http) {
    let mut host = scene.host(&[], variables);
    let http = Http::of(&mut host);
    host.wait_until_ready();
    (host, http)
}

fn effect() -> Value {
    json!({ "execute": "INSERT INTO effects (id) VALUES ($1)", "params": [{ "message": "id" }] })
}

/// A message that takes effect.
fn good(id: &str) -> TestMessage {
    TestMessage::new(id, &json!({ "steps": [effect()] }))
}
