//! Which functions a handler may call on PostgreSQL.
//!
//! The server says which functions of its catalog are volatile: it knows those of its own version, and a list of ours would
//! miss what a newer one adds. Of these a short list is allowed: what a rollback undoes, or leaves nothing behind. A few that are not
//! volatile are refused as well: they run SQL text, which nobody has checked. Functions outside the catalog are their
//! owner's trust and the role's right to EXECUTE, but for those of extensions whose purpose is to reach outside.

use std::collections::HashSet;

use super::{SqlError, denied_as, shorten};

/// Extensions whose functions reach other databases, files, processes or the network.
pub(crate) const EXTENSIONS: &[&str] = &[
    "adminpack",
    "dblink",
    "file_fdw",
    "http",
    "pg_background",
    "pg_cron",
    "pg_net",
    "pg_prewarm",
    "pg_surgery",
    "plproxy",
    "postgres_fdw",
    "pg_buffercache",
    "pg_stat_statements",
    "pg_visibility",
    "pg_walinspect",
];

/// Volatile functions of the catalog that are allowed: what they do is undone by a rollback, or nothing is left of it (gaps in
/// sequences aside).
const VOLATILE_ALLOWED: &[&str] = &[
    "array_sample",
    "array_shuffle",
    "bernoulli",
    "clock_timestamp",
    "current_query",
    "currval",
    "gen_random_uuid",
    "lastval",
    "nextval",
    "pg_indexes_size",
    "pg_relation_size",
    "pg_sleep",
    "pg_sleep_for",
    "pg_sleep_until",
    "pg_table_size",
    "pg_total_relation_size",
    "random",
    "random_normal",
    "system",
    "timeofday",
    "uuidv4",
    "uuidv7",
];

/// Functions that are allowed with one argument: the forms with two share their locks with hapax's own.
const LOCKS_OF_ONE: &[&str] = &[
    "pg_advisory_xact_lock",
    "pg_advisory_xact_lock_shared",
    "pg_try_advisory_xact_lock",
    "pg_try_advisory_xact_lock_shared",
];

/// What the server says of its functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Functions {
    refused: HashSet<String>,
}

/// Why a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Unless it has so many arguments.
    Arguments(usize, &'static str),
    /// In any form.
    Always(&'static str),
}

impl Functions {
    /// Takes the names of the catalog's volatile functions, and of those of `EXTENSIONS`.
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self {
            refused: names.into_iter().collect(),
        }
    }

    /// Returns why a function with this name is refused, if it is.
    pub(super) fn refusal(functions: Option<&Self>, name: &str) -> Option<Refusal> {
        if LOCKS_OF_ONE.contains(&name) {
            return Some(Refusal::Arguments(
                1,
                "use the form with one bigint: the one with two numbers shares its locks with the host",
            ));
        }
        if name == "ts_rewrite" {
            return Some(Refusal::Arguments(3, RUNS_TEXT));
        }
        if ["_to_xml", "_to_xmlschema", "_to_xml_and_xmlschema"]
            .iter()
            .any(|end| name.ends_with(end))
            || name == "ts_stat"
        {
            return Some(Refusal::Always(RUNS_TEXT));
        }
        if name.starts_with("dblink") {
            return Some(Refusal::Always(OUTSIDE));
        }
        if VOLATILE_ALLOWED.contains(&name) || !functions?.refused.contains(name) {
            return None;
        }
        Some(Refusal::Always(match name {
            "set_config" | "setseed" => {
                "settings are the host's; set them for the login with ALTER ROLE .. SET"
            }
            "setval" => "set sequences in the handler's migrations",
            "pg_notify" => "publish a message through the outbox; it leaves after the commit",
            _ if name.starts_with("pg_advisory") || name.starts_with("pg_try_advisory") => {
                "a session's lock outlives the transaction; use pg_advisory_xact_lock with one bigint"
            }
            _ if name.starts_with("lo_") || name == "loread" || name == "lowrite" => {
                "store bytes in a bytea column"
            }
            _ => OUTSIDE,
        }))
    }
}

const RUNS_TEXT: &str = "it runs text as SQL, which can't be checked; write the query itself";
const OUTSIDE: &str = "it may reach past the transaction, where a rollback undoes nothing; do without it, or have the database's owner \
                       wrap it in a function";

impl Refusal {
    /// Returns the number of arguments with which the call is allowed.
    pub(super) fn arguments(self) -> Option<usize> {
        match self {
            Self::Arguments(number, _) => Some(number),
            Self::Always(_) => None,
        }
    }

    pub(super) fn error(self, name: &str) -> SqlError {
        let (Self::Arguments(_, hint) | Self::Always(hint)) = self;
        denied_as(
            "denied.function",
            format!("the statement calls `{}`", shorten(name)),
            hint.into(),
        )
    }
}
