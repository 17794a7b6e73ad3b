//! A stream or a durable that was made before is used or reported, and never changed.

use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy};
use async_nats::jetstream::{self, stream};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::host::Host;
use crate::support::nats::Nats;
use crate::support::scene::script;

struct Place {
    jetstream: jetstream::Context,
    folder: TempDir,
    _nats: Nats,
}

impl Place {
    async fn new(storage: stream::StorageType) -> Self {
        let nats = Nats::start();
        let jetstream = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
        jetstream
            .create_stream(stream::Config {
                name: "S".into(),
                subjects: vec!["s.>".into()],
                storage,
                ..Default::default()
            })
            .await
            .unwrap();
        // A stream with a past: where a durable begins makes a difference.
        let past = jetstream.publish("s.one", "".into()).await.unwrap();
        past.await.unwrap();
        let folder = TempDir::with_prefix("hapax-durables-").unwrap();
        let config = format!(
            "[store]\nurl = \"sqlite:hapax.db\"\n[sources.s]\nkind = \"jetstream\"\nurl = \"{}\"\nstream = \"S\"\n\
             subjects = [\"s.one\"]\nack_wait = \"7s\"\n[handlers.h]\ncomponent = \"{}\"\nsource = \"s\"\nstart = \"all\"\n",
            nats.url(),
            script().display()
        );
        std::fs::write(folder.path().join("hapax.toml"), config).unwrap();
        Self {
            jetstream,
            folder,
            _nats: nats,
        }
    }

    async fn make(&self, config: consumer::Config) -> consumer::Config {
        let stream = self.jetstream.get_stream("S").await.unwrap();
        let _ = stream.delete_consumer("h").await;
        let made: consumer::Consumer<consumer::Config> =
            stream.create_consumer(config).await.unwrap();
        made.cached_info().config.clone()
    }

    /// Runs a host against what is there; returns its exit code and what it said. Asserts that the durable stayed as it was.
    async fn run(&self, before: &consumer::Config) -> (Option<i32>, String) {
        let host = Host::start(
            &self.folder.path().join("hapax.toml"),
            &["--until-idle"],
            &[],
        );
        let (status, said) = host.wait();
        let stream = self.jetstream.get_stream("S").await.unwrap();
        let after = stream.consumer_info("h").await.unwrap().config;
        assert_eq!(*before, after, "{said}");
        (status.code(), said)
    }
}

/// As hapax makes it.
fn durable() -> consumer::Config {
    consumer::Config {
        durable_name: Some("h".into()),
        name: Some("h".into()),
        deliver_policy: DeliverPolicy::All,
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(7),
        max_deliver: -1,
        max_ack_pending: 1_600,
        filter_subjects: vec!["s.one".into()],
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_differs_is_used_and_reported_or_refused() {
    let place = Place::new(stream::StorageType::File).await;
    // What was made, the exit code, and words of the log.
    let table: [(consumer::Config, i32, &[&str]); 8] = [
        (durable(), 0, &[]),
        (
            consumer::Config {
                ack_wait: Duration::from_secs(3),
                ..durable()
            },
            0,
            &["has the ack wait 3s, the configuration 7s"],
        ),
        (
            consumer::Config {
                filter_subjects: vec!["s.two".into()],
                ..durable()
            },
            0,
            &["has the filter `s.two`, the configuration `s.one`"],
        ),
        (
            consumer::Config {
                deliver_policy: DeliverPolicy::New,
                ..durable()
            },
            0,
            &["begins at new messages, the configuration at the first message"],
        ),
        (
            consumer::Config {
                max_deliver: 5,
                ..durable()
            },
            3,
            &["max_deliver = 5", "hint: "],
        ),
        (
            consumer::Config {
                ack_policy: AckPolicy::All,
                max_ack_pending: 1_000,
                ..durable()
            },
            3,
            &["the ack policy `all`", "hint: "],
        ),
        (
            consumer::Config {
                ack_policy: AckPolicy::None,
                max_ack_pending: 0,
                ack_wait: Duration::ZERO,
                ..durable()
            },
            3,
            &["the ack policy `none`", "hint: "],
        ),
        (
            consumer::Config {
                deliver_subject: Some("elsewhere".into()),
                ..durable()
            },
            3,
            &["is a push consumer", "hint: "],
        ),
    ];
    for (config, code, words) in table {
        let made = place.make(config).await;
        let (exit, said) = place.run(&made).await;
        assert_eq!(exit, Some(code), "{made:?}: {said}");
        for word in words {
            assert!(said.contains(word), "no `{word}` in: {said}");
        }
        assert_eq!(
            said.contains("is used as it is"),
            code == 0 && !words.is_empty(),
            "{said}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_in_memory_can_lose_what_waits() {
    let place = Place::new(stream::StorageType::Memory).await;
    let made = place.make(durable()).await;
    let (exit, said) = place.run(&made).await;
    assert_eq!(exit, Some(0), "{said}");
    assert!(said.contains("stream `S` is kept in memory"), "{said}");
}
