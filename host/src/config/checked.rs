//! The configuration with every value valid.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value};

use super::problem::{ConfigError, Problem};
use super::section::Section;
use crate::handler::{ConfigTable, Limits};
use crate::message::Instant;
use crate::source::identity::{IdPlaces, KeyPlace};
use crate::source::jetstream::Start;

/// How long running batches may take to finish after SIGTERM.
const SHUTDOWN_GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// After this long without an answer JetStream delivers a message again.
const ACK_WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// Shorter waits than this cannot be kept alive by progress on a loaded machine.
const ACK_WAIT_MIN: Duration = Duration::from_millis(500);
/// Failed runs before a message becomes a dead letter.
const RETRY_ATTEMPTS_DEFAULT: u32 = 10;
/// The wait after the first failure; it doubles up to `RETRY_BACKOFF_MAX_DEFAULT`.
const RETRY_BACKOFF_MIN_DEFAULT: Duration = Duration::from_secs(1);
/// The longest wait between two runs.
const RETRY_BACKOFF_MAX_DEFAULT: Duration = Duration::from_secs(300);
/// Linear memory of one call.
const LIMIT_MEMORY_DEFAULT: u64 = 64 << 20;
/// Time that the handler's own code may run.
const LIMIT_CPU_DEFAULT: Duration = Duration::from_secs(1);
/// Time from the start of a call to its end.
const LIMIT_TIME_DEFAULT: Duration = Duration::from_secs(10);
/// Rows that one query may return.
const LIMIT_ROWS_DEFAULT: u64 = 10_000;
/// Messages in one transaction, at the most.
const BATCH_MAX_DEFAULT: usize = 50;
/// How long a batch may hold its locks.
const BATCH_MAX_HOLD_DEFAULT: Duration = Duration::from_millis(250);
/// Messages of one handler that run at the same time, on PostgreSQL. SQLite has one writer, so one lane.
const LANES_POSTGRES_DEFAULT: usize = 4;

/// Everything that the file says.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The file, as it was named.
    pub file: PathBuf,
    /// The database.
    pub store: StoreConfig,
    /// By name.
    pub sources: BTreeMap<String, SourceConfig>,
    /// By name.
    pub handlers: BTreeMap<String, HandlerConfig>,
    /// How long running batches may take to finish after SIGTERM.
    pub shutdown_grace: Duration,
}

/// The database that holds hapax's own tables and the handlers'.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// `sqlite:<absolute path>` or `postgres://...`; may hold a password.
    pub url: String,
}

impl std::fmt::Debug for StoreConfig {
    /// Leaves the URL out: it may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreConfig").finish_non_exhaustive()
    }
}

impl StoreConfig {
    /// True if the database is SQLite.
    pub fn is_sqlite(&self) -> bool {
        self.url.starts_with("sqlite:")
    }
}

/// Where messages come from.
#[derive(Clone, Debug, PartialEq)]
pub struct SourceConfig {
    /// The table's name in the file.
    pub name: String,
    /// What it is.
    pub kind: SourceKind,
}

/// What a source is.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceKind {
    /// A table in the store.
    Queue,
    /// A NATS JetStream stream.
    JetStream(JetStreamConfig),
}

/// A NATS JetStream stream.
#[derive(Clone, PartialEq, Eq)]
pub struct JetStreamConfig {
    /// `nats://host:port`; may hold credentials.
    pub url: String,
    /// The stream's name.
    pub stream: String,
    /// Which of the stream's subjects are read, and the subjects of a stream that is created.
    pub subjects: Vec<String>,
    /// Create the stream if it is missing.
    pub create: bool,
    /// After this long without an answer the broker delivers a message again.
    pub ack_wait: Duration,
}

impl std::fmt::Debug for JetStreamConfig {
    /// Leaves the URL out: it may hold a password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JetStreamConfig")
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// Whether a message's id is claimed before its handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// It is, and stays claimed.
    Claims,
    /// It is not: the handler runs for each delivery, and must be naturally idempotent.
    Off,
}

/// What happens to a message whose id was claimed with another payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictPolicy {
    /// It becomes a dead letter of class `conflict`.
    Park,
    /// It counts as a duplicate.
    Ignore,
}

/// How often and when a failed message runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Failed runs before it becomes a dead letter; at least 1.
    pub attempts: u32,
    /// The wait after the first failure; it doubles with each.
    pub backoff_min: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
}

impl Retry {
    /// Returns the wait after the failure with this number (from 1).
    pub fn backoff(&self, attempt: u32) -> Duration {
        let factor = 1_u32
            .checked_shl(attempt.saturating_sub(1))
            .unwrap_or(u32::MAX);
        self.backoff_min
            .saturating_mul(factor)
            .min(self.backoff_max)
    }
}

/// How many messages go into one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batch {
    /// At the most; at least 1.
    pub max: usize,
    /// How long a batch of more than one may hold its locks before it is cut.
    pub max_hold: Duration,
}

/// In which order messages run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Where a message's key stands: those of one key run one at a time, in the source's order.
    pub by: KeyPlace,
    /// What a dead letter means for the messages of its key that come after it.
    pub on_dead: OnDead,
}

/// What a dead letter means for the messages of its key that come after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDead {
    /// They go on without it.
    Continue,
    /// They wait until it is gone from the dead letters.
    Hold,
}

impl OnDead {
    /// Returns the word of the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Continue => "continue",
            Self::Hold => "hold",
        }
    }
}

/// A component and how it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerConfig {
    /// The table's name in the file.
    pub name: String,
    /// The component's file.
    pub component: PathBuf,
    /// The source's name.
    pub source: String,
    /// The claims' key and the durable's name: survives a rename of the handler.
    pub consumer: String,
    /// Where a new durable begins; `None` for a queue.
    pub start: Option<Start>,
    /// Where the message id stands.
    pub message_id: IdPlaces,
    /// In which order messages run; `None` for any.
    pub order: Option<Order>,
    /// Whether ids are claimed.
    pub dedup: Dedup,
    /// What happens to another payload under a claimed id.
    pub conflict: ConflictPolicy,
    /// How often and when a failed message runs again.
    pub retry: Retry,
    /// What one call may use.
    pub limits: Limits,
    /// Connections on which messages run.
    pub lanes: usize,
    /// Messages in one transaction.
    pub batch: Batch,
    /// Whose batches it never overlaps with: those of all handlers that name the same one. The consumer by default.
    pub baton: String,
    /// The folder of the handler's own migrations.
    pub migrations: Option<PathBuf>,
    /// The handler's own settings.
    pub config: ConfigTable,
}

impl Config {
    /// Reads and checks `file`, with the overrides that `environment` holds.
    ///
    /// An override's name is `HAPAX_` and the key's path in upper case with `__` between the keys and `_` for `-`;
    /// other names without `__` are not overrides, but one that lacks it by mistake is a problem. Its value is TOML if it parses as such, else text.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn load(
        file: &Path,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let failed = |text: String, hint: Option<String>| ConfigError {
            file: file.to_owned(),
            problems: vec![Problem {
                key: String::new(),
                text,
                hint,
            }],
        };
        let text = std::fs::read_to_string(file).map_err(|err| {
            let hint = match err.kind() {
                std::io::ErrorKind::NotFound => Some(
                    "name the file with `--config FILE`, or start from `hapax.example.toml`"
                        .to_owned(),
                ),
                _ => None,
            };
            failed(format!("cannot be read: {err}"), hint)
        })?;
        let mut table: Table = toml::from_str(&text).map_err(|err: toml::de::Error| {
            failed(format!("is not TOML: {}", err.to_string().trim_end()), None)
        })?;
        let problems = RefCell::new(Vec::new());
        apply_overrides(&mut table, environment, &problems);
        // An absolute folder, so that the database's path means the same wherever the process goes.
        let folder = std::path::absolute(file)
            .ok()
            .and_then(|path| path.parent().map(Path::to_owned))
            .unwrap_or_else(|| PathBuf::from("."));
        let config = check(file, &folder, &table, &problems);
        let problems = problems.into_inner();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError {
                file: file.to_owned(),
                problems,
            }),
        }
    }
}

/// True for what names a key, or would if its underscore were doubled: ignoring that in silence would leave the file's value.
fn is_override(name: &str) -> bool {
    name.strip_prefix("HAPAX_").is_some_and(|rest| {
        rest.contains("__")
            || rest == "SHUTDOWN_GRACE"
            || ["STORE_", "SOURCES_", "HANDLERS_"]
                .iter()
                .any(|table| rest.starts_with(table))
    })
}

fn apply_overrides(
    table: &mut Table,
    environment: impl IntoIterator<Item = (String, String)>,
    problems: &RefCell<Vec<Problem>>,
) {
    let mut overrides: Vec<(String, String)> = environment
        .into_iter()
        .filter(|(name, _)| is_override(name))
        .collect();
    overrides.sort();
    for (name, text) in overrides {
        let keys: Vec<String> = name["HAPAX_".len()..]
            .split("__")
            .map(str::to_lowercase)
            .collect();
        let value = toml::from_str::<Table>(&format!("value = {text}"))
            .ok()
            .filter(|table| table.len() == 1)
            .and_then(|mut table| table.remove("value"))
            .unwrap_or_else(|| Value::String(text.clone()));
        let problem = match keys.split_last() {
            Some((_, [])) if keys[0] != "shutdown_grace" => {
                format!("the variable `{name}` has one underscore where keys are separated by two")
            }
            Some((last, parents)) if keys.iter().all(|key| !key.is_empty()) => {
                match table_at(table, parents) {
                    Some(here) => {
                        let last = existing_name(here, last);
                        here.insert(last, value);
                        continue;
                    }
                    None => format!("the variable `{name}` goes through a key that is not a table"),
                }
            }
            _ => format!("the variable `{name}` does not name a key"),
        };
        problems.borrow_mut().push(Problem {
            key: String::new(),
            text: problem,
            hint: Some("write it as `HAPAX_STORE__URL` for `store.url`".into()),
        });
    }
}

/// Returns the table at the end of `path`, made where it is missing. `None` if something else is in the way.
fn table_at<'a>(table: &'a mut Table, path: &[String]) -> Option<&'a mut Table> {
    let Some((first, rest)) = path.split_first() else {
        return Some(table);
    };
    let name = existing_name(table, first);
    match table
        .entry(name)
        .or_insert_with(|| Value::Table(Table::new()))
    {
        Value::Table(inner) => table_at(inner, rest),
        _ => None,
    }
}

/// Returns the key of `table` that a variable's lower-case part means: names of variables have no `-`.
fn existing_name(table: &Table, part: &str) -> String {
    table
        .keys()
        .find(|key| key.to_lowercase().replace('-', "_") == part)
        .cloned()
        .unwrap_or_else(|| part.to_owned())
}

fn check(
    file: &Path,
    folder: &Path,
    table: &Table,
    problems: &RefCell<Vec<Problem>>,
) -> Option<Config> {
    let root = Section::new(String::new(), table, problems);
    let store = match root.section("store") {
        Some(section) => check_store(folder, section),
        None => {
            if !table.contains_key("store") {
                root.problem(
                    "store",
                    "is missing",
                    "write `[store]` with `url = \"sqlite:hapax.db\"` or `url = \"postgres://user@host/database\"`".to_owned(),
                );
            }
            None
        }
    };
    let shutdown_grace = root.duration("shutdown_grace", SHUTDOWN_GRACE_DEFAULT, Duration::ZERO);
    let mut sources = BTreeMap::new();
    for (name, section) in root
        .section("sources")
        .map(Section::sections)
        .unwrap_or_default()
    {
        check_name(&section, &name);
        if let Some(source) = check_source(&name, section) {
            sources.insert(name, source);
        }
    }
    let source_names: Vec<&String> = table
        .get("sources")
        .and_then(Value::as_table)
        .map(|sources| sources.keys().collect())
        .unwrap_or_default();
    let is_sqlite = store.as_ref().is_some_and(StoreConfig::is_sqlite);
    let mut handlers = BTreeMap::new();
    for (name, section) in root
        .section("handlers")
        .map(Section::sections)
        .unwrap_or_default()
    {
        check_name(&section, &name);
        if let Some(handler) =
            check_handler(folder, &name, section, &sources, &source_names, is_sqlite)
        {
            handlers.insert(name, handler);
        }
    }
    check_sharing(&root, &sources, &handlers);
    root.finish();
    Some(Config {
        file: file.to_owned(),
        store: store?,
        sources,
        handlers,
        shutdown_grace,
    })
}

/// Names are part of durables, claims and metrics: letters, digits, `-` and `_`, at most 64.
fn name_is_valid(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

const NAME_HINT: &str = "use 1 to 64 letters, digits, `-` and `_`";

fn check_name(section: &Section<'_>, name: &str) {
    if !name_is_valid(name) {
        section.problem(
            "",
            format!("`{name}` is not a valid name"),
            NAME_HINT.to_owned(),
        );
    }
}

fn check_store(folder: &Path, section: Section<'_>) -> Option<StoreConfig> {
    const HINT: &str =
        "write `url = \"sqlite:hapax.db\"` or `url = \"postgres://user@host/database\"`";
    let url = section.required_text("url", HINT);
    let store = url.and_then(|url| {
        if let Some(path) = url.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path.contains('?') || path == ":memory:" {
                section.problem(
                    "url",
                    "the SQLite database must be a file",
                    "write `url = \"sqlite:hapax.db\"`".to_owned(),
                );
                return None;
            }
            return Some(StoreConfig {
                url: format!("sqlite:{}", folder.join(path).display()),
            });
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Some(StoreConfig {
                url: url.to_owned(),
            });
        }
        // The text is not repeated: it may hold a password.
        section.problem(
            "url",
            "is neither `sqlite:` nor `postgres://`",
            HINT.to_owned(),
        );
        None
    });
    section.finish();
    store
}

fn check_source(name: &str, section: Section<'_>) -> Option<SourceConfig> {
    let kind = section.required_text("kind", "write `kind = \"queue\"` or `kind = \"jetstream\"`");
    let kind = match kind {
        Some("queue") => Some(SourceKind::Queue),
        Some("jetstream") => check_jetstream(&section).map(SourceKind::JetStream),
        Some(other) => {
            section.problem(
                "kind",
                format!("`{other}` is not a kind of source"),
                "the kinds are `queue` and `jetstream`".to_owned(),
            );
            // Which keys belong to it is not known either.
            return None;
        }
        None => return None,
    };
    section.finish();
    Some(SourceConfig {
        name: name.to_owned(),
        kind: kind?,
    })
}

fn check_jetstream(section: &Section<'_>) -> Option<JetStreamConfig> {
    let url = section.required_text("url", "write `url = \"nats://127.0.0.1:4222\"`");
    let url = url.filter(|url| {
        let valid = url.starts_with("nats://") || url.starts_with("tls://");
        if !valid {
            section.problem(
                "url",
                "does not start with `nats://` or `tls://`",
                "write `url = \"nats://127.0.0.1:4222\"`".to_owned(),
            );
        }
        valid
    });
    let stream =
        section.required_text("stream", "write the stream's name: `stream = \"PAYMENTS\"`");
    let subjects = section.texts("subjects").unwrap_or_default();
    let create = section.boolean("create", false);
    if create && subjects.is_empty() {
        section.problem(
            "subjects",
            "is missing, and `create = true` needs it",
            "write `subjects = [\"payments.>\"]`".to_owned(),
        );
    }
    let ack_wait = section.duration("ack_wait", ACK_WAIT_DEFAULT, ACK_WAIT_MIN);
    Some(JetStreamConfig {
        url: url?.to_owned(),
        stream: stream?.to_owned(),
        subjects,
        create,
        ack_wait,
    })
}

fn check_handler(
    folder: &Path,
    name: &str,
    section: Section<'_>,
    sources: &BTreeMap<String, SourceConfig>,
    source_names: &[&String],
    is_sqlite: bool,
) -> Option<HandlerConfig> {
    let component = section.required_text(
        "component",
        "write the file's path: `component = \"handler.wasm\"`",
    );
    let source_name =
        section.required_text("source", "write the name of a table under `[sources]`");
    let source = source_name.and_then(|name| sources.get(name));
    if let Some(name) = source_name
        && !source_names.iter().any(|known| *known == name)
    {
        let hint = if source_names.is_empty() {
            format!("write `[sources.{name}]` with `kind = \"queue\"`")
        } else {
            let names: Vec<String> = source_names
                .iter()
                .map(|name| format!("`{name}`"))
                .collect();
            format!("the sources are {}", names.join(", "))
        };
        section.problem("source", format!("there is no source `{name}`"), hint);
    }
    let consumer = section.text("consumer").unwrap_or(name);
    if !name_is_valid(consumer) {
        section.problem(
            "consumer",
            format!("`{consumer}` is not a valid name"),
            NAME_HINT.to_owned(),
        );
    }
    let is_queue = source.is_some_and(|source| source.kind == SourceKind::Queue);
    let start = check_start(&section, source);
    let message_id = check_message_id(&section, source, is_queue);
    let conflict = match section.text("conflict") {
        None | Some("park") => ConflictPolicy::Park,
        Some("ignore") => ConflictPolicy::Ignore,
        Some(other) => {
            section.problem(
                "conflict",
                format!("`{other}` is not a way to treat conflicts"),
                "write `\"park\"` or `\"ignore\"`".to_owned(),
            );
            ConflictPolicy::Park
        }
    };
    let dedup = match section.text("dedup") {
        None => Dedup::Claims,
        Some("off") => Dedup::Off,
        Some(other) => {
            section.problem(
                "dedup",
                format!("`{other}` is not a way to tell duplicates"),
                "leave `dedup` out (claims are kept for ever so far), or write `\"off\"` for a naturally idempotent handler"
                    .to_owned(),
            );
            Dedup::Claims
        }
    };
    if dedup == Dedup::Off && section.text("conflict").is_some() {
        section.problem(
            "conflict",
            "has no meaning with `dedup = \"off\"`: without claims no payload is compared with an earlier one",
            "leave one of the two out".to_owned(),
        );
    }
    let order = check_order(&section, dedup);
    let retry = check_retry(&section);
    let limits = check_limits(&section);
    let lanes = match section.integer("lanes", 1..=64) {
        Some(lanes) if is_sqlite && lanes > 1 => {
            section.problem(
                "lanes",
                format!("`{lanes}` lanes cannot run at once: SQLite has one writer"),
                "leave `lanes` out, or use PostgreSQL".to_owned(),
            );
            1
        }
        Some(lanes) => usize::try_from(lanes).unwrap_or(1),
        None if is_sqlite => 1,
        None => LANES_POSTGRES_DEFAULT,
    };
    let batch = check_batch(&section);
    let baton = section.text("baton").unwrap_or(consumer);
    if !name_is_valid(baton) {
        section.problem(
            "baton",
            format!("`{baton}` is not a valid name"),
            NAME_HINT.to_owned(),
        );
    }
    let migrations = section.text("migrations").map(|path| folder.join(path));
    let config = section
        .section("config")
        .map(check_config_table)
        .unwrap_or_default();
    section.finish();
    Some(HandlerConfig {
        name: name.to_owned(),
        component: folder.join(component?),
        source: source?.name.clone(),
        consumer: consumer.to_owned(),
        start,
        message_id: message_id?,
        order,
        dedup,
        conflict,
        retry,
        limits,
        lanes,
        batch,
        baton: baton.to_owned(),
        migrations,
        config,
    })
}

fn check_start(section: &Section<'_>, source: Option<&SourceConfig>) -> Option<Start> {
    const HINT: &str = "write `\"all\"`, `\"new\"` or a time such as `\"2026-01-31T00:00:00Z\"`";
    let text = section.text("start");
    match &source?.kind {
        SourceKind::Queue => {
            if text.is_some() {
                section.problem(
                    "start",
                    "a queue has no past to start from: every row waits until it is done",
                    "leave `start` out".to_owned(),
                );
            }
            None
        }
        SourceKind::JetStream(_) => match text {
            None => {
                section.required_text("start", HINT);
                None
            }
            Some("all") => Some(Start::All),
            Some("new") => Some(Start::New),
            Some(text) => {
                match time::OffsetDateTime::parse(
                    text,
                    &time::format_description::well_known::Rfc3339,
                ) {
                    Ok(time) => Some(Start::Time(Instant {
                        seconds: time.unix_timestamp(),
                        nanoseconds: time.nanosecond(),
                    })),
                    Err(_) => {
                        section.problem(
                            "start",
                            format!("`{text}` is not a place to start"),
                            HINT.to_owned(),
                        );
                        None
                    }
                }
            }
        },
    }
}

fn check_message_id(
    section: &Section<'_>,
    source: Option<&SourceConfig>,
    is_queue: bool,
) -> Option<IdPlaces> {
    let places = section.texts("message_id");
    source?;
    let places = places.unwrap_or_else(|| {
        let mut places = vec![
            "header:Nats-Msg-Id".to_owned(),
            "header:ce-source+ce-id".to_owned(),
        ];
        if is_queue {
            places.insert(0, "queue:id".to_owned());
        }
        places
    });
    if places.is_empty() {
        section.problem(
            "message_id",
            "names no place",
            "write `[\"header:Nats-Msg-Id\"]`, or leave it out for the usual places".to_owned(),
        );
        return None;
    }
    for (place, wanted, has) in [
        ("queue:id", "queue", is_queue),
        ("stream-sequence", "jetstream", !is_queue),
    ] {
        if !has && places.iter().any(|given| given == place) {
            section.problem(
                "message_id",
                format!("`{place}` exists only in a source of kind `{wanted}`"),
                None,
            );
        }
    }
    match IdPlaces::parse(&places) {
        Ok(places) => Some(places),
        Err(text) => {
            section.problem(
                "message_id",
                text,
                "the places are `header:NAME`, `header:A+B`, `json:/pointer`, `stream-sequence` and `queue:id`".to_owned(),
            );
            None
        }
    }
}

fn check_order(section: &Section<'_>, dedup: Dedup) -> Option<Order> {
    let by = section.text("order_by");
    let on_dead = match section.text("on_dead") {
        Some(_) if by.is_none() => {
            section.problem(
                "on_dead",
                "means nothing without `order_by`",
                "leave `on_dead` out, or name the key's place: `order_by = \"json:/account\"`"
                    .to_owned(),
            );
            return None;
        }
        None | Some("continue") => OnDead::Continue,
        Some("hold") => OnDead::Hold,
        Some(other) => {
            section.problem(
                "on_dead",
                format!("`{other}` is not a way to treat the messages behind a dead letter"),
                "write `\"continue\"` or `\"hold\"`".to_owned(),
            );
            return None;
        }
    };
    let by = match KeyPlace::parse(by?) {
        Ok(by) => by,
        Err(text) => {
            section.problem(
                "order_by",
                text,
                "the places of a key are `header:NAME`, `header:A+B` and `json:/pointer`"
                    .to_owned(),
            );
            return None;
        }
    };
    if dedup == Dedup::Off {
        // A late redelivery of a message that is done would run again, after newer ones of its key.
        section.problem(
            "order_by",
            "no order can be kept with `dedup = \"off\"`: a late redelivery runs after newer messages of its key",
            "leave out one of the two".to_owned(),
        );
        return None;
    }
    Some(Order { by, on_dead })
}

fn check_retry(section: &Section<'_>) -> Retry {
    let mut retry = Retry {
        attempts: RETRY_ATTEMPTS_DEFAULT,
        backoff_min: RETRY_BACKOFF_MIN_DEFAULT,
        backoff_max: RETRY_BACKOFF_MAX_DEFAULT,
    };
    let Some(section) = section.section("retry") else {
        return retry;
    };
    if let Some(attempts) = section.integer("attempts", 1..=1_000) {
        retry.attempts = u32::try_from(attempts).unwrap_or(RETRY_ATTEMPTS_DEFAULT);
    }
    if let Some(text) = section.text("backoff") {
        const HINT: &str = "write the first and the longest wait, such as `\"1s..5m\"`, or one for both, such as `\"10s\"`";
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        match (
            super::units::duration(first.trim()),
            super::units::duration(last.trim()),
        ) {
            (Ok(first), Ok(last)) if first <= last => {
                retry.backoff_min = first;
                retry.backoff_max = last;
            }
            (Ok(_), Ok(_)) => section.problem(
                "backoff",
                format!("`{text}`: the first wait is longer than the longest"),
                HINT.to_owned(),
            ),
            (Err((text, _)), _) | (_, Err((text, _))) => {
                section.problem("backoff", text, HINT.to_owned())
            }
        }
    }
    section.finish();
    retry
}

fn check_limits(section: &Section<'_>) -> Limits {
    let defaults = Limits {
        memory_bytes: usize::try_from(LIMIT_MEMORY_DEFAULT).unwrap_or(usize::MAX),
        cpu: LIMIT_CPU_DEFAULT,
        time: LIMIT_TIME_DEFAULT,
        rows: LIMIT_ROWS_DEFAULT,
    };
    let Some(section) = section.section("limits") else {
        return defaults;
    };
    let memory = section.size("memory", LIMIT_MEMORY_DEFAULT, (1 << 20)..=(4 << 30));
    let limits = Limits {
        memory_bytes: usize::try_from(memory).unwrap_or(usize::MAX),
        cpu: section.duration("cpu", LIMIT_CPU_DEFAULT, Duration::from_millis(20)),
        time: section.duration("time", LIMIT_TIME_DEFAULT, Duration::from_millis(20)),
        rows: section
            .integer("rows", 1..=10_000_000)
            .and_then(|rows| u64::try_from(rows).ok())
            .unwrap_or(LIMIT_ROWS_DEFAULT),
    };
    section.finish();
    limits
}

fn check_batch(section: &Section<'_>) -> Batch {
    let mut batch = Batch {
        max: BATCH_MAX_DEFAULT,
        max_hold: BATCH_MAX_HOLD_DEFAULT,
    };
    let Some(section) = section.section("batch") else {
        return batch;
    };
    if let Some(max) = section.integer("max", 1..=10_000) {
        batch.max = usize::try_from(max).unwrap_or(BATCH_MAX_DEFAULT);
    }
    batch.max_hold = section.duration("max_hold", BATCH_MAX_HOLD_DEFAULT, Duration::from_millis(1));
    section.finish();
    batch
}

fn check_config_table(section: Section<'_>) -> ConfigTable {
    section
        .entries()
        .map(|(name, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                other => to_json(other).to_string(),
            };
            (name.clone(), text)
        })
        .collect()
}

fn to_json(value: &Value) -> serde_json::Value {
    match value {
        Value::String(text) => text.clone().into(),
        Value::Integer(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Boolean(value) => (*value).into(),
        Value::Datetime(time) => time.to_string().into(),
        Value::Array(values) => values.iter().map(to_json).collect(),
        Value::Table(table) => serde_json::Value::Object(
            table
                .iter()
                .map(|(name, value)| (name.clone(), to_json(value)))
                .collect(),
        ),
    }
}

/// A queue's row is deleted once it is done, so two handlers would each see a part of the messages; and two handlers
/// with one consumer would share their claims.
fn check_sharing(
    root: &Section<'_>,
    sources: &BTreeMap<String, SourceConfig>,
    handlers: &BTreeMap<String, HandlerConfig>,
) {
    let mut queues: HashMap<&str, &str> = HashMap::new();
    let mut consumers: HashMap<&str, &str> = HashMap::new();
    for handler in handlers.values() {
        let is_queue = sources
            .get(&handler.source)
            .is_some_and(|source| source.kind == SourceKind::Queue);
        if is_queue && let Some(other) = queues.insert(&handler.source, &handler.name) {
            root.problem(
                &format!("handlers.{}.source", handler.name),
                format!(
                    "the queue `{}` serves `{other}` already: each row goes to one handler only",
                    handler.source
                ),
                "give each handler a queue of its own, or use a `jetstream` source".to_owned(),
            );
        }
        if let Some(other) = consumers.insert(&handler.consumer, &handler.name) {
            root.problem(
                &format!("handlers.{}.consumer", handler.name),
                format!(
                    "`{}` is the consumer of `{other}` already",
                    handler.consumer
                ),
                "each handler needs a consumer of its own".to_owned(),
            );
        }
    }
}
