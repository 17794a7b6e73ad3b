//! What a receiver gets: once, with its headers and the trace, however often the message came that it was published for.

use std::collections::BTreeSet;

use hapax::store::StoreKind;
use serde_json::json;

use crate::TABLES;
use crate::receiver::{Receiver, value};
use crate::support::scene::{Scene, SourceSort, script};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OWN_TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";

/// From a stream to a stream.
async fn headers_arrive_once(kind: StoreKind) {
    let mut receiver = Receiver::start().await;
    let scene = Scene::new(
        kind,
        SourceSort::JetStream,
        &script(),
        TABLES,
        &receiver.target(),
    )
    .await;
    let payload = json!({ "steps": [
        { "publish": {
            "subject": "out.plain", "content_type": "application/json", "payload": "{\"n\":1}",
            "headers": [["Ce-Type", "order"], ["Many", "one"], ["Many", "two"], ["Words", "grün, \u{1f600}"], ["Nats-Msg-Id", "not this one"]],
        } },
        { "publish": {
            "subject": "out.traced", "payload": "2", "headers": [["traceparent", OWN_TRACE], ["Content-Type", "text/plain"]],
            "content_type": "application/json",
        } },
    ] })
    .to_string();
    let url = scene.nats.as_ref().unwrap().url();
    let incoming = async_nats::jetstream::new(async_nats::connect(url).await.unwrap());
    let send = async |times: usize| {
        for _ in 0..times {
            let mut headers = async_nats::HeaderMap::new();
            headers.insert("Message-Id", "m1");
            headers.insert("traceparent", TRACE);
            let sent =
                incoming.publish_with_headers("messages.test", headers, payload.clone().into());
            sent.await.unwrap().await.unwrap();
        }
    };
    // Duplicates before and after it took effect.
    send(3).await;
    scene.run_until_idle();
    send(2).await;
    scene.run_until_idle();
    let status = scene.status();
    assert_eq!(
        (&status["claimed"], &status["duplicates"]),
        (&json!(1), &json!(4))
    );

    let messages = receiver.published_messages().await;
    assert_eq!(messages.len(), 2);
    let of = |subject: &str| {
        let mut found = messages
            .iter()
            .filter(|message| message.subject.as_str() == subject);
        found.next().unwrap()
    };
    let (plain, traced) = (of("out.plain"), of("out.traced"));
    let names = |message: &async_nats::Message| -> BTreeSet<String> {
        let headers = message.headers.as_ref().unwrap();
        headers.iter().map(|(name, _)| name.to_string()).collect()
    };
    let expected = [
        "Ce-Type",
        "Many",
        "Words",
        "Content-Type",
        "traceparent",
        "Nats-Msg-Id",
    ];
    assert_eq!(names(plain), expected.map(str::to_owned).into());
    assert_eq!(value(plain, "Ce-Type"), "order");
    assert_eq!(value(plain, "Words"), "grün, \u{1f600}");
    assert_eq!(value(plain, "Content-Type"), "application/json");
    assert_eq!(value(plain, "traceparent"), TRACE);
    assert_eq!(plain.payload, "{\"n\":1}");
    let many = plain.headers.as_ref().unwrap().get_all("Many");
    let many: Vec<String> = many.map(ToString::to_string).collect();
    assert_eq!(many, ["one", "two"]);
    let expected = ["Content-Type", "traceparent", "Nats-Msg-Id"];
    assert_eq!(names(traced), expected.map(str::to_owned).into());
    // The handler's own ones count.
    assert_eq!(value(traced, "traceparent"), OWN_TRACE);
    assert_eq!(value(traced, "Content-Type"), "text/plain");
    let table = scene.store.table("outbox");
    for message in [plain, traced] {
        let id = value(message, "Nats-Msg-Id");
        let known = format!("SELECT count(*) FROM {table} WHERE id = '{id}'");
        assert_eq!(scene.store.number(&known).await, 1, "{id}");
    }
}

#[tokio::test]
async fn headers_arrive_once_on_postgres() {
    headers_arrive_once(StoreKind::Postgres).await;
}

#[tokio::test]
async fn headers_arrive_once_on_sqlite() {
    headers_arrive_once(StoreKind::Sqlite).await;
}
