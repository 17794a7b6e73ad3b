//! The configuration with every value valid.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value};

use super::admin::{AdminConfig, check_admin};
use super::connections::{check_access, with_absolute_files};
use super::handler::{HandlerConfig, check_handler};
use super::outbox::{OutboxConfig, TargetConfig, check_outbox, check_target};
use super::problem::{ConfigError, Problem};
use super::section::Section;
use super::telemetry::{TelemetryConfig, check_telemetry};
use crate::source::jetstream::Access;

/// How long running batches may take to finish after SIGTERM.
const SHUTDOWN_GRACE_DEFAULT: Duration = Duration::from_secs(10);
/// After this long without an answer JetStream delivers a message again.
const ACK_WAIT_DEFAULT: Duration = Duration::from_secs(30);
/// Dead letters are kept for this long at least.
const DEAD_LETTERS_AGE_MIN: Duration = Duration::from_secs(3_600);
/// Shorter waits than this cannot be kept alive by progress on a loaded machine.
const ACK_WAIT_MIN: Duration = Duration::from_millis(500);

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
    /// Where published messages go, by name.
    pub targets: BTreeMap<String, TargetConfig>,
    /// How they get there.
    pub outbox: OutboxConfig,
    /// How long running batches may take to finish after SIGTERM.
    pub shutdown_grace: Duration,
    /// The address for operators and their tools, if there is one.
    pub admin: Option<AdminConfig>,
    /// Where traces go, and which; `None` without the table.
    pub telemetry: Option<TelemetryConfig>,
    /// Where compiled code is kept.
    pub cache: CacheConfig,
}

/// Where compiled code is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheConfig {
    /// In systemd's folder for it, or the user's.
    #[default]
    Default,
    /// In this folder.
    At(PathBuf),
    /// Nowhere.
    Off,
}

/// The database that holds hapax's own tables and the handlers'.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// `sqlite:<absolute path>` or `postgres://...`; may hold a password.
    pub url: String,
    /// After how long dead letters are deleted; `None` for never.
    pub dead_letters: Option<Duration>,
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
    /// Who asks, and how the server's certificate is checked.
    pub access: Access,
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

impl Config {
    /// As `load`, with the overrides of this process's own environment.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_here(file: &Path) -> Result<Self, ConfigError> {
        // A variable that is not UTF-8 can't be an override.
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self::load(file, environment)
    }

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

/// Names a host for `hapax handlers`, and is no key.
const ADMIN_URL: &str = "ADMIN_URL";

/// True for what names a key, or would if its underscore were doubled: ignoring that in silence would leave the file's value.
fn is_override(name: &str) -> bool {
    name.strip_prefix("HAPAX_").is_some_and(|rest| {
        rest.contains("__")
            || rest == "SHUTDOWN_GRACE"
            || rest != ADMIN_URL
                && [
                    "STORE_",
                    "SOURCES_",
                    "HANDLERS_",
                    "TARGETS_",
                    "OUTBOX_",
                    "ADMIN_",
                    "CACHE_",
                    "TELEMETRY_",
                ]
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
    let admin = root
        .section("admin")
        .and_then(|section| check_admin(folder, section));
    let cache = root
        .section("cache")
        .map(|section| check_cache(folder, section))
        .unwrap_or_default();
    let telemetry = root
        .section("telemetry")
        .map(|section| check_telemetry(folder, section));
    let mut sources = BTreeMap::new();
    for (name, section) in root
        .section("sources")
        .map(Section::sections)
        .unwrap_or_default()
    {
        check_name(&section, &name);
        if let Some(source) = check_source(folder, &name, section) {
            sources.insert(name, source);
        }
    }
    let source_names: Vec<&String> = table
        .get("sources")
        .and_then(Value::as_table)
        .map(|sources| sources.keys().collect())
        .unwrap_or_default();
    let mut targets = BTreeMap::new();
    for (name, section) in root
        .section("targets")
        .map(Section::sections)
        .unwrap_or_default()
    {
        check_name(&section, &name);
        if let Some(target) = check_target(folder, &name, section, &sources) {
            targets.insert(name, target);
        }
    }
    let outbox = check_outbox(root.section("outbox"));
    let target_names: Vec<&String> = table
        .get("targets")
        .and_then(Value::as_table)
        .map(|targets| targets.keys().collect())
        .unwrap_or_default();
    let is_sqlite = store.as_ref().is_some_and(StoreConfig::is_sqlite);
    let mut handlers = BTreeMap::new();
    for (name, section) in root
        .section("handlers")
        .map(Section::sections)
        .unwrap_or_default()
    {
        check_name(&section, &name);
        if let Some(handler) = check_handler(
            folder,
            &name,
            section,
            &sources,
            &source_names,
            &target_names,
            is_sqlite,
        ) {
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
        targets,
        outbox,
        shutdown_grace,
        admin,
        cache,
        telemetry,
    })
}

/// Names are part of durables, claims and metrics: letters, digits, `-` and `_`, at most 64.
pub(super) fn name_is_valid(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

pub(super) const NAME_HINT: &str = "use 1 to 64 letters, digits, `-` and `_`";

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
    let dead_letters = section.text("dead_letters").and_then(|text| {
        match super::units::duration(text) {
            Ok(age) if age >= DEAD_LETTERS_AGE_MIN => Some(age),
            Ok(_) => {
                section.problem(
                    "dead_letters",
                    format!("`{text}` leaves nobody the time to look at them"),
                    "write at least `\"1h\"`, or leave it out: they are kept until somebody drops them".to_owned(),
                );
                None
            }
            Err((problem, hint)) => {
                section.problem("dead_letters", problem, hint);
                None
            }
        }
    });
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
                dead_letters,
            });
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Some(StoreConfig {
                url: with_absolute_files(url, folder),
                dead_letters,
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

fn check_cache(folder: &Path, section: Section<'_>) -> CacheConfig {
    let cache = match section.text("directory") {
        None => CacheConfig::Default,
        Some("off") => CacheConfig::Off,
        Some(path) => CacheConfig::At(folder.join(path)),
    };
    section.finish();
    cache
}

fn check_source(folder: &Path, name: &str, section: Section<'_>) -> Option<SourceConfig> {
    let kind = section.required_text("kind", "write `kind = \"queue\"` or `kind = \"jetstream\"`");
    let kind = match kind {
        Some("queue") => Some(SourceKind::Queue),
        Some("jetstream") => check_jetstream(folder, &section).map(SourceKind::JetStream),
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

fn check_jetstream(folder: &Path, section: &Section<'_>) -> Option<JetStreamConfig> {
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
    let access = check_access(folder, section, url);
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
        access,
        stream: stream?.to_owned(),
        subjects,
        create,
        ack_wait,
    })
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
