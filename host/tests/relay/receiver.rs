//! Where messages leave for, what they are, and rows as handlers leave them.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::support::nats::Nats;
use crate::support::scene::{Scene, TestMessage};

const STREAM: &str = "OUT";

/// The broker that messages leave for, with a stream that takes `out.*`, and a record of all that was published, duplicates too.
pub(crate) struct Receiver {
    pub(crate) nats: Nats,
    pub(crate) client: async_nats::Client,
    raw: async_nats::Subscriber,
    /// As whom the relay asks.
    user: &'static str,
}

/// Who may publish anything, and the relay, which may not publish to `out.secret` and not ask what streams there are.
const USERS: &str = r#"authorization { users: [
    { user: admin, password: admin }
    { user: relay, password: relay, permissions: { publish: { allow: ["out.>"], deny: ["out.secret"] } } }
] }"#;

impl Receiver {
    pub(crate) async fn start() -> Self {
        Self::at(Nats::start(), false, "").await
    }

    /// One whose relay may not publish everything.
    pub(crate) async fn start_with_users() -> Self {
        Self::at(Nats::start_with(USERS), true, "relay:relay@").await
    }

    async fn at(nats: Nats, has_users: bool, user: &'static str) -> Self {
        let mut options = async_nats::ConnectOptions::new();
        if has_users {
            options = options.user_and_password("admin".into(), "admin".into());
        }
        let client = options.connect(nats.url()).await.unwrap();
        let raw = client.subscribe("out.>").await.unwrap();
        client.flush().await.unwrap();
        let receiver = Self {
            nats,
            client,
            raw,
            user,
        };
        receiver.add_stream(STREAM, "out.*").await;
        receiver
    }

    pub(crate) async fn add_stream(&self, name: &str, subject: &str) {
        self.add(name, subject, false).await;
    }

    /// A stream that confirms nothing.
    pub(crate) async fn add_silent_stream(&self, name: &str, subject: &str) {
        self.add(name, subject, true).await;
    }

    async fn add(&self, name: &str, subject: &str, no_ack: bool) {
        async_nats::jetstream::new(self.client.clone())
            .create_stream(async_nats::jetstream::stream::Config {
                name: name.into(),
                subjects: vec![subject.into()],
                no_ack,
                ..Default::default()
            })
            .await
            .unwrap();
    }

    /// The lines of a handler's table and of the target that it publishes to.
    pub(crate) fn target(&self) -> String {
        format!(
            "target = \"out\"\n\n[targets.out]\nkind = \"jetstream\"\nurl = \"nats://{}127.0.0.1:{}\"\n",
            self.user,
            self.nats.port()
        )
    }

    pub(crate) async fn stored(&self) -> u64 {
        let mut stream = async_nats::jetstream::new(self.client.clone())
            .get_stream(STREAM)
            .await
            .unwrap();
        stream.info().await.unwrap().state.messages
    }

    pub(crate) async fn wait_for_stored(&self, at_least: u64) {
        let started = Instant::now();
        while self.stored().await < at_least {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "{} of {at_least} messages came",
                self.stored().await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// All messages of the stream in its order: id, key and number.
    pub(crate) async fn messages(&self) -> Vec<(String, Value)> {
        let stream = async_nats::jetstream::new(self.client.clone())
            .get_stream(STREAM)
            .await
            .unwrap();
        let consumer = stream
            .create_consumer(async_nats::jetstream::consumer::pull::Config {
                ack_policy: async_nats::jetstream::consumer::AckPolicy::None,
                ..Default::default()
            })
            .await
            .unwrap();
        let stored = usize::try_from(self.stored().await).unwrap();
        let mut messages = consumer
            .fetch()
            .max_messages(stored)
            .expires(Duration::from_secs(60))
            .messages()
            .await
            .unwrap();
        let mut all = Vec::new();
        while all.len() < stored {
            let message = messages.next().await.unwrap().unwrap();
            let id = message
                .headers
                .as_ref()
                .unwrap()
                .get("Nats-Msg-Id")
                .unwrap()
                .to_string();
            all.push((id, serde_json::from_slice(&message.payload).unwrap()));
        }
        all
    }

    /// The ids of everything that was published since the last call, each as often as it was.
    pub(crate) async fn published(&mut self) -> Vec<String> {
        let messages = self.published_messages().await;
        messages
            .iter()
            .map(|message| value(message, "Nats-Msg-Id"))
            .collect()
    }

    /// Everything that was published since the last call.
    pub(crate) async fn published_messages(&mut self) -> Vec<async_nats::Message> {
        // Whatever the server has taken before this one comes before it.
        self.client
            .publish("out.end.of.it", "".into())
            .await
            .unwrap();
        let mut messages = Vec::new();
        loop {
            let message = self.raw.next().await.unwrap();
            if message.subject.as_str() == "out.end.of.it" {
                return messages;
            }
            messages.push(message);
        }
    }
}

/// The one value of a header.
pub(crate) fn value(message: &async_nats::Message, name: &str) -> String {
    let headers = message.headers.as_ref().unwrap();
    let values: Vec<_> = headers.get_all(name).collect();
    assert_eq!(values.len(), 1, "{name}: {values:?}");
    values[0].to_string()
}

/// A message whose handler writes a row and publishes three: two of one key, one without.
pub(crate) fn publishing(id: &str) -> TestMessage {
    let publish = |n: u32, key: Option<&str>| {
        json!({ "publish": {
            "subject": "out.thing", "key": key, "content_type": "application/json",
            "headers": [["n", n.to_string()]], "payload": json!({ "of": id, "n": n }).to_string(),
        } })
    };
    TestMessage::new(
        id,
        &json!({ "steps": [
            { "execute": "INSERT INTO effects (id) VALUES ($1)", "params": [{ "message": "id" }] },
            publish(1, Some("a")), publish(2, None), publish(3, Some("a")),
        ] }),
    )
}

/// A payload in the database's own words.
pub(crate) fn bytes(scene: &Scene, text: &str) -> String {
    match scene.store.kind() {
        StoreKind::Postgres => format!("'{text}'"),
        StoreKind::Sqlite => format!("CAST('{text}' AS BLOB)"),
    }
}

/// Rows as another transaction of the handler's may leave them.
pub(crate) fn insert(scene: &Scene, id: &str, key: Option<&str>, subject: &str) -> String {
    insert_for(scene, "out", id, key, subject)
}

pub(crate) fn insert_for(
    scene: &Scene,
    target: &str,
    id: &str,
    key: Option<&str>,
    subject: &str,
) -> String {
    let table = scene.store.table("outbox");
    let key = key.map_or("NULL".to_owned(), |key| format!("'{key}'"));
    format!(
        "INSERT INTO {table} (id, consumer, message_id, ordinal, target, subject, key, headers, payload) \
         VALUES ('{id}', 'subject', '{id}', 0, '{target}', '{subject}', {key}, '[]', {})",
        bytes(scene, "{}")
    )
}
