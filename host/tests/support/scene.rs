//! A whole installation of a test's own: a database, a source, a configuration with one handler.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hapax::store::StoreKind;
use tempfile::TempDir;

use super::database::TestStore;
use super::host::Host;
use super::nats::Nats;

/// The name of the stream, and of the subject before the dot.
const STREAM: &str = "MESSAGES";
/// The durable.
const CONSUMER: &str = "subject";

/// Which source a scene has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceSort {
    /// The embedded queue.
    Queue,
    /// A stream.
    JetStream,
}

/// A message to publish; its id stands in the header `Message-Id`, which no broker looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestMessage {
    /// Without one, there is no such header.
    pub id: Option<String>,
    /// Any bytes.
    pub payload: Vec<u8>,
}

impl TestMessage {
    /// A message with an id and a JSON payload.
    pub fn new(id: impl Into<String>, payload: &serde_json::Value) -> Self {
        Self {
            id: Some(id.into()),
            payload: payload.to_string().into_bytes(),
        }
    }
}

/// The parts that a test stands on.
#[derive(Debug)]
pub struct Scene {
    /// The database.
    pub store: TestStore,
    /// The broker, if there is one.
    pub nats: Option<Nats>,
    folder: TempDir,
}

/// The scriptable handler: what it does stands in the payload.
pub fn script() -> PathBuf {
    component("host/tests/guests/script.wasm")
}

/// `script` for batches.
pub fn script_batch() -> PathBuf {
    component("host/tests/guests/script-batch.wasm")
}

/// `credit_account` for batches, with one statement for all.
pub fn credit_accounts() -> PathBuf {
    component("examples/credit-accounts/credit-accounts.wasm")
}

/// `balance = balance + amount`.
pub fn credit_account() -> PathBuf {
    component("examples/credit-account/rust/credit-account.wasm")
}

/// Keeps the newest version of each profile.
pub fn upsert_profile() -> PathBuf {
    component("examples/upsert-profile/upsert-profile.wasm")
}

/// Returns the path of a component, from the repository's root.
pub fn component(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    assert!(
        path.exists(),
        "`{}` is missing: run `cargo xtask guests`",
        path.display()
    );
    path
}

impl Scene {
    /// Makes the servers and writes `hapax.toml` with the handler `subject`: `handler` is more lines of its table, `tables`
    /// its one migration.
    pub async fn new(
        kind: StoreKind,
        source: SourceSort,
        component: &Path,
        tables: &str,
        handler: &str,
    ) -> Self {
        let store = match kind {
            StoreKind::Postgres => TestStore::empty_postgres().await,
            StoreKind::Sqlite => TestStore::empty_sqlite(),
        };
        let folder = TempDir::with_prefix("hapax-scene-").unwrap();
        // Room for payloads of 8 MiB.
        let nats = (source == SourceSort::JetStream).then(|| Nats::start_with("max_payload: 16MB"));
        let mut config = format!("[store]\nurl = \"{}\"\n\n[sources.messages]\n", store.url);
        match &nats {
            None => config.push_str("kind = \"queue\"\n"),
            Some(nats) => write!(
                config,
                "kind = \"jetstream\"\nurl = \"{}\"\nstream = \"{STREAM}\"\nsubjects = [\"messages.>\"]\nack_wait = \"2s\"\n",
                nats.url()
            )
            .unwrap(),
        }
        let migrations = folder.path().join("migrations");
        std::fs::create_dir(&migrations).unwrap();
        std::fs::write(migrations.join("0001_tables.sql"), tables).unwrap();
        write!(
            config,
            "\n[handlers.{CONSUMER}]\ncomponent = \"{}\"\nsource = \"messages\"\nmigrations = \"migrations\"\n\
             message_id = [\"header:Message-Id\"]\n{}{handler}\n",
            component.display(),
            if nats.is_some() { "start = \"all\"\n" } else { "" },
        )
        .unwrap();
        std::fs::write(folder.path().join("hapax.toml"), config).unwrap();
        let scene = Self {
            store,
            nats,
            folder,
        };
        if scene.nats.is_some() {
            scene
                .jetstream()
                .await
                .create_stream(async_nats::jetstream::stream::Config {
                    name: STREAM.into(),
                    subjects: vec!["messages.>".into()],
                    ..Default::default()
                })
                .await
                .unwrap();
        }
        scene
    }

    /// The configuration's file.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("hapax.toml")
    }

    /// The folder of the configuration.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Starts a host.
    ///
    /// On PostgreSQL `HAPAX_TEST_LANES`, `HAPAX_TEST_BATCH_MAX` and `HAPAX_TEST_SQL` decide about these three, whatever the test says.
    pub fn host(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Host {
        let mut variables = variables.to_vec();
        let shape =
            ["LANES", "BATCH_MAX", "SQL"].map(|key| std::env::var(format!("HAPAX_TEST_{key}")));
        if self.store.kind() == StoreKind::Postgres {
            let keys = [
                "HAPAX_HANDLERS__SUBJECT__LANES",
                "HAPAX_HANDLERS__SUBJECT__BATCH__MAX",
                "HAPAX_HANDLERS__SUBJECT__SQL",
            ];
            for (key, value) in keys.into_iter().zip(&shape) {
                if let Ok(value) = value {
                    variables.push((key, value));
                }
            }
        }
        Host::start(&self.config(), arguments, &variables)
    }

    /// Runs a host until nothing waits, and asserts that it ended well. Returns its log.
    pub fn run_until_idle(&self) -> String {
        self.host(&["--until-idle"], &[]).wait_well()
    }

    async fn jetstream(&self) -> async_nats::jetstream::Context {
        let url = self.nats.as_ref().expect("the scene has a broker").url();
        async_nats::jetstream::new(async_nats::connect(url).await.unwrap())
    }

    /// Publishes messages in their order, and returns when the source has them all.
    pub async fn publish(&self, messages: &[TestMessage]) {
        if self.nats.is_some() {
            let jetstream = self.jetstream().await;
            // The client lets a few thousand acknowledgements be outstanding at a time.
            for some in messages.chunks(1_000) {
                let mut acks = Vec::with_capacity(some.len());
                for message in some {
                    let mut headers = async_nats::HeaderMap::new();
                    if let Some(id) = &message.id {
                        headers.insert("Message-Id", id.as_str());
                    }
                    let payload = message.payload.clone().into();
                    acks.push(
                        jetstream
                            .publish_with_headers("messages.test", headers, payload)
                            .await
                            .unwrap(),
                    );
                }
                for ack in acks {
                    ack.await.unwrap();
                }
            }
            return;
        }
        // Plain SQL, as any program may write it.
        self.store.connect().await.migrate().await.unwrap();
        let table = self.store.table("queue");
        let mut probe = self.store.probe().await;
        let mut sql = String::new();
        for message in messages {
            let headers = match &message.id {
                Some(id) => serde_json::json!([["Message-Id", id]])
                    .to_string()
                    .replace('\'', "''"),
                None => "[]".to_owned(),
            };
            let hex: String = message
                .payload
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let payload = match self.store.kind() {
                StoreKind::Postgres => format!("'\\x{hex}'"),
                StoreKind::Sqlite => format!("X'{hex}'"),
            };
            writeln!(
                sql,
                "INSERT INTO {table} (queue, headers, payload) VALUES ('messages', '{headers}', {payload});"
            )
            .unwrap();
        }
        probe.run(&format!("BEGIN; {sql} COMMIT")).await;
    }

    /// How many messages the source still holds: undelivered, or delivered and not answered.
    pub async fn pending(&self) -> u64 {
        if self.nats.is_some() {
            let mut consumer: async_nats::jetstream::consumer::PullConsumer = self
                .jetstream()
                .await
                .get_consumer_from_stream(CONSUMER, STREAM)
                .await
                .unwrap();
            let info = consumer.info().await.unwrap();
            return info.num_pending + info.num_ack_pending as u64;
        }
        let table = self.store.table("queue");
        u64::try_from(
            self.store
                .number(&format!("SELECT count(*) FROM {table}"))
                .await,
        )
        .unwrap()
    }

    /// How often the stream's consumer has delivered, again or for the first time.
    pub async fn deliveries(&self) -> u64 {
        let mut consumer: async_nats::jetstream::consumer::PullConsumer = self
            .jetstream()
            .await
            .get_consumer_from_stream(CONSUMER, STREAM)
            .await
            .unwrap();
        consumer.info().await.unwrap().delivered.consumer_sequence
    }

    /// Waits until the source holds nothing any more.
    pub async fn wait_until_nothing_pends(&self) {
        let started = Instant::now();
        while self.pending().await > 0 {
            assert!(
                started.elapsed() < Duration::from_secs(120),
                "messages stay in the source"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Counts rows of one of hapax's own tables.
    pub async fn count(&self, table: &str, condition: &str) -> i64 {
        let table = self.store.table(table);
        self.store
            .number(&format!("SELECT count(*) FROM {table} WHERE {condition}"))
            .await
    }

    /// Reads what the handler has done from `hapax status --json`.
    pub fn status(&self) -> serde_json::Value {
        let output = super::host::run(self.folder(), &["status", "--json"]);
        assert!(output.status.success(), "{}", output.err);
        let status: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        status["handlers"][0].clone()
    }
}
