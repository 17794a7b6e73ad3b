//! A handler's table with every value valid.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Value;

use super::checked::{NAME_HINT, SourceConfig, SourceKind, name_is_valid};
use super::section::Section;
use crate::handler::{ConfigTable, Limits};
use crate::message::{ComponentDigest, Instant};
use crate::source::identity::{IdPlaces, KeyPlace};
use crate::source::jetstream::Start;
use crate::store::Rights;

/// Failed runs before a message becomes a dead letter.
const RETRY_ATTEMPTS_DEFAULT: u32 = 10;
/// The wait after the first failure; it doubles up to `RETRY_BACKOFF_MAX_DEFAULT`.
const RETRY_BACKOFF_MIN_DEFAULT: Duration = Duration::from_secs(1);
/// The longest wait between two runs.
const RETRY_BACKOFF_MAX_DEFAULT: Duration = Duration::from_secs(300);
/// Messages in one transaction, at the most.
const BATCH_MAX_DEFAULT: usize = 500;
/// How long a batch may hold its locks.
const BATCH_MAX_HOLD_DEFAULT: Duration = Duration::from_millis(250);
/// Messages of one handler that run at the same time, on PostgreSQL. SQLite has one writer, so one lane.
const LANES_POSTGRES_DEFAULT: usize = 4;

/// Whether a message's id is claimed before its handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dedup {
    /// It is, and stays claimed for ever.
    Claims,
    /// It is, and stays claimed for this long at least.
    Window(Duration),
    /// It is not: the handler runs for each delivery, and must be naturally idempotent.
    Off,
}

impl Dedup {
    /// Returns how long ids stay claimed; `None` for ever, or never.
    pub fn window(self) -> Option<Duration> {
        match self {
            Self::Window(window) => Some(window),
            Self::Claims | Self::Off => None,
        }
    }
}

/// What happens to a message without a claim that its source accepted before the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It becomes a dead letter of class `too-old`: its claim may have been pruned.
    Park,
    /// It runs.
    Run,
}

/// What happens to a message whose id was claimed with another payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictPolicy {
    /// It becomes a dead letter of class `conflict`.
    Park,
    /// It counts as a duplicate.
    Ignore,
}

/// How a handler's statements are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SqlMode {
    /// Ahead of the database where it is known what it will say: its answers are compared before anything is committed.
    Ahead,
    /// By the database.
    Await,
}

/// The shortest window: shorter than what any source may take to deliver again.
const DEDUP_WINDOW_MIN: Duration = Duration::from_secs(1);

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
    /// What holds where nothing is written.
    pub const DEFAULT: Self = Self {
        attempts: RETRY_ATTEMPTS_DEFAULT,
        backoff_min: RETRY_BACKOFF_MIN_DEFAULT,
        backoff_max: RETRY_BACKOFF_MAX_DEFAULT,
    };

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

/// Where a handler's component comes from, and so who decides which one it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentPlace {
    /// A file: whoever can write it.
    File(PathBuf),
    /// The store: `hapax handlers deploy`, for every host at once.
    Store,
}

impl ComponentPlace {
    /// Returns the file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            Self::Store => None,
        }
    }
}

impl fmt::Display for ComponentPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Store => f.write_str("store"),
        }
    }
}

/// A component and how it is run.
#[derive(Clone, Debug, PartialEq)]
pub struct HandlerConfig {
    /// The table's name in the file.
    pub name: String,
    /// Where its component comes from.
    pub component: ComponentPlace,
    /// The one component that it may run.
    pub sha256: Option<ComponentDigest>,
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
    /// Whether ids are claimed, and for how long.
    pub dedup: Dedup,
    /// What happens to messages that are older than the window.
    pub late: Late,
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
    /// Where messages go that the handler publishes without naming a target.
    pub target: Option<String>,
    /// How its statements are answered.
    pub sql: SqlMode,
    /// As whom its statements run, and what they may do.
    pub rights: Rights,
    /// True if its messages may be run again long after, on the same rows, and are to take the same effect: `check` then looks
    /// for SQL whose result differs from run to run.
    pub replayable: bool,
    /// The folder of the handler's own migrations.
    pub migrations: Option<PathBuf>,
    /// The handler's own settings.
    pub config: ConfigTable,
}

pub(super) fn check_handler(
    folder: &Path,
    name: &str,
    section: Section<'_>,
    sources: &BTreeMap<String, SourceConfig>,
    source_names: &[&String],
    target_names: &[&String],
    is_sqlite: bool,
) -> Option<HandlerConfig> {
    let component = section.required_text(
        "component",
        "write the file's path: `component = \"handler.wasm\"`",
    );
    let component = component.map(|text| match text {
        STORE => ComponentPlace::Store,
        path => ComponentPlace::File(folder.join(path)),
    });
    let sha256 = check_sha256(&section);
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
    let dedup = check_dedup(&section);
    let late = check_late(&section, dedup);
    if dedup == Dedup::Off && section.text("conflict").is_some() {
        section.problem(
            "conflict",
            "has no meaning with `dedup = \"off\"`: without claims no payload is compared with an earlier one",
            "leave one of the two out".to_owned(),
        );
    }
    let order = check_order(&section, dedup);
    let retry = check_retry(&section);
    let limits = super::limits::check_limits(&section);
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
    let sql = check_sql(&section);
    let target = section.text("target");
    if let Some(target) = target
        && !target_names.iter().any(|name| *name == target)
    {
        section.problem(
            "target",
            format!("there is no target `{target}`"),
            format!("write a table `[targets.{target}]`"),
        );
    }
    let rights = Rights {
        role: check_role(&section, is_sqlite),
        allow_ddl: section.boolean("allow_ddl", false),
    };
    let replayable = section.boolean("replayable", false);
    let migrations = section.text("migrations").map(|path| folder.join(path));
    if migrations.is_some() && component == Some(ComponentPlace::Store) {
        section.problem(
            "migrations",
            "has no meaning with `component = \"store\"`: the component's migrations come with it",
            format!(
                "leave it out, and deploy with `hapax handlers deploy {name} FILE --migrations DIR`"
            ),
        );
    }
    let config = section
        .section("config")
        .map(check_config_table)
        .unwrap_or_default();
    section.finish();
    Some(HandlerConfig {
        name: name.to_owned(),
        component: component?,
        sha256,
        source: source?.name.clone(),
        consumer: consumer.to_owned(),
        start,
        message_id: message_id?,
        order,
        dedup,
        late,
        conflict,
        retry,
        limits,
        lanes,
        batch,
        baton: baton.to_owned(),
        target: target.map(str::to_owned),
        sql,
        rights,
        replayable,
        migrations,
        config,
    })
}

/// The text in place of a file's path that makes the store the component's owner.
const STORE: &str = "store";

fn check_sql(section: &Section<'_>) -> SqlMode {
    match section.text("sql") {
        None | Some("ahead") => SqlMode::Ahead,
        Some("await") => SqlMode::Await,
        Some(other) => {
            section.problem(
                "sql",
                format!("`{other}` is not a way to answer statements"),
                "write `\"ahead\"` or `\"await\"`".to_owned(),
            );
            SqlMode::Ahead
        }
    }
}

fn check_sha256(section: &Section<'_>) -> Option<ComponentDigest> {
    let text = section.text("sha256")?;
    let digest = ComponentDigest::from_hex(text);
    if digest.is_none() {
        section.problem(
            "sha256",
            format!("`{}` is not a SHA-256", text.escape_debug()),
            "write 64 hexadecimal digits, as `sha256sum FILE` shows them".to_owned(),
        );
    }
    digest
}

fn check_dedup(section: &Section<'_>) -> Dedup {
    const HINT: &str = "leave `dedup` out (claims are kept for ever), write how long they are kept, such as `\"14d\"`, or \
         `\"off\"` for a naturally idempotent handler";
    let text = match section.text("dedup") {
        None => return Dedup::Claims,
        Some("off") => return Dedup::Off,
        Some(text) => text,
    };
    match super::units::duration(text) {
        Ok(window) if window >= DEDUP_WINDOW_MIN => Dedup::Window(window),
        Ok(_) => {
            section.problem(
                "dedup",
                format!("`{text}` is shorter than any source takes to deliver again"),
                format!("write at least `\"{}s\"`", DEDUP_WINDOW_MIN.as_secs()),
            );
            Dedup::Claims
        }
        Err(_) => {
            section.problem(
                "dedup",
                format!("`{text}` is not a way to tell duplicates"),
                HINT.to_owned(),
            );
            Dedup::Claims
        }
    }
}

fn check_late(section: &Section<'_>, dedup: Dedup) -> Late {
    let late = match section.text("late") {
        None => return Late::Park,
        Some("park") => Late::Park,
        Some("run") => Late::Run,
        Some(other) => {
            section.problem(
                "late",
                format!("`{other}` is not a way to treat messages older than the window"),
                "write `\"park\"` or `\"run\"`".to_owned(),
            );
            return Late::Park;
        }
    };
    if dedup.window().is_none() {
        section.problem(
            "late",
            "means nothing without a window: no claim is ever pruned",
            "leave `late` out, or write how long claims are kept: `dedup = \"14d\"`".to_owned(),
        );
    }
    late
}

/// The longest name that PostgreSQL keeps whole, in bytes.
const ROLE_MAX_BYTES: usize = 63;

fn check_role(section: &Section<'_>, is_sqlite: bool) -> Option<String> {
    let role = section.text("role")?;
    if is_sqlite {
        section.problem(
            "role",
            "SQLite has no roles: whoever can open the file may do everything".to_owned(),
            "leave `role` out, or use PostgreSQL".to_owned(),
        );
    } else if role.is_empty()
        || role.len() > ROLE_MAX_BYTES
        || role.contains('\0')
        || role.eq_ignore_ascii_case("none")
    {
        section.problem(
            "role",
            format!("`{}` is not the name of a role", role.escape_debug()),
            format!("write the name of a role of the database, of at most {ROLE_MAX_BYTES} bytes"),
        );
    }
    Some(role.to_owned())
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

pub(super) fn check_retry(section: &Section<'_>) -> Retry {
    let mut retry = Retry::DEFAULT;
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
