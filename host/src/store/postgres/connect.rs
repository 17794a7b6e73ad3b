//! Opens a session and sets what the rest of the room relies on, then reads it back.

use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _};

use super::errors::{self, Class};
use crate::store::{SessionOptions, StoreError};

/// The oldest server that has all that is needed (`client_connection_check_interval`), as `server_version_num` counts.
const SERVER_VERSION_MIN: u32 = 140_000;

/// How long the server may take to let a session in. The driver itself would wait for ever for one that does not answer.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How many statements the driver keeps prepared: the host's own and the descriptions of the handlers'.
const DRIVER_STATEMENTS_MAX: usize = 256;

/// Reads a URL; opens nothing.
pub(in crate::store) fn parse(url: &str) -> Result<PgConnectOptions, StoreError> {
    let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
        // The driver's words name the part that is wrong, never the whole URL.
        StoreError::Unusable(format!(
            "the store's URL can't be read: {}\nhint: write `postgres://user:password@host:port/database`",
            errors::describe(&error)
        ))
    })?;
    Ok(options
        .statement_cache_capacity(DRIVER_STATEMENTS_MAX)
        .disable_statement_logging())
}

/// Returns the URL of `options` without its password.
pub(in crate::store) fn display(options: &PgConnectOptions) -> String {
    let host = match options.get_socket() {
        Some(path) => path.display().to_string(),
        None => options.get_host().to_owned(),
    };
    format!(
        "postgres://{}@{host}:{}/{}",
        options.get_username(),
        options.get_port(),
        options.get_database().unwrap_or(options.get_username())
    )
}

/// Connects and prepares the session.
pub(super) async fn connect(
    base: &PgConnectOptions,
    options: &SessionOptions,
) -> Result<PgConnection, StoreError> {
    let driver_options = base
        .clone()
        .application_name(&format!("hapax {}", options.purpose));
    // Nothing has begun yet, so this may be dropped.
    let opened =
        tokio::time::timeout(CONNECT_MAX, PgConnection::connect_with(&driver_options)).await;
    let mut connection = match opened {
        Ok(opened) => opened.map_err(|error| connect_error(base, &error))?,
        Err(_) => {
            return Err(StoreError::Unavailable(format!(
                "cannot connect to `{}`: no answer within {} s",
                display(base),
                CONNECT_MAX.as_secs()
            )));
        }
    };
    if let Some(version) = connection.server_version_num()
        && version < SERVER_VERSION_MIN
    {
        return Err(StoreError::Unusable(format!(
            "the server at `{}` is PostgreSQL {}\nhint: use version 14 or newer",
            display(base),
            version / 10_000
        )));
    }

    let settings = settings(base, options);
    let mut message = String::new();
    for setting in &settings {
        message.push_str("SET ");
        message.push_str(setting.name);
        message.push_str(" = ");
        message.push_str(&setting.sql);
        message.push(';');
    }
    sqlx::raw_sql(AssertSqlSafe(message))
        .execute(&mut connection)
        .await
        .map_err(|error| session_error(base, &error))?;
    // Sent alone: a server on a platform without the means refuses it. Then the connection of a host that is cut off is
    // only noticed by keepalives.
    match sqlx::raw_sql("SET client_connection_check_interval = '1s'")
        .execute(&mut connection)
        .await
    {
        Ok(_) => {}
        Err(error) if errors::class(&error) == Class::Refused => {
            tracing::debug!(
                error = errors::describe(&error),
                "the server can't watch for a lost client"
            );
        }
        Err(error) => return Err(session_error(base, &error)),
    }

    let rows = sqlx::query(
        "SELECT name, setting, pg_catalog.pg_is_in_recovery() AS standby FROM pg_catalog.pg_settings",
    )
    .fetch_all(&mut connection)
    .await
    .map_err(|error| session_error(base, &error))?;
    for row in &rows {
        let unreadable = |error: sqlx::Error| session_error(base, &error);
        if row.try_get("standby").map_err(unreadable)? {
            return Err(StoreError::Unavailable(format!(
                "the server at `{}` is a standby, which takes no writes",
                display(base)
            )));
        }
        let name: String = row.try_get("name").map_err(unreadable)?;
        let value: String = row.try_get("setting").map_err(unreadable)?;
        if let Some(setting) = settings.iter().find(|setting| setting.name == name)
            && let Some(expected) = &setting.expected
            && !expected.contains(&value)
        {
            return Err(StoreError::Unusable(format!(
                "the session at `{}` has `{name} = {value}` although `{}` was set\nhint: connect to the server itself, or \
                 through a pooler in session mode",
                display(base),
                expected.join("` or `")
            )));
        }
    }
    Ok(connection)
}

struct Setting {
    name: &'static str,
    /// The value as it stands behind `=`.
    sql: String,
    /// What `pg_settings` must show then; none if that depends on the platform.
    expected: Option<Vec<String>>,
}

fn settings(base: &PgConnectOptions, options: &SessionOptions) -> Vec<Setting> {
    let text = |name, value: &str| Setting {
        name,
        sql: format!("'{value}'"),
        expected: Some(vec![value.to_owned()]),
    };
    let milliseconds = |name, span: Duration| {
        let value = span.as_millis().clamp(1, i32::MAX as u128).to_string();
        Setting {
            name,
            sql: value.clone(),
            expected: Some(vec![value]),
        }
    };
    let quiet = |name, sql: &str| Setting {
        name,
        sql: sql.to_owned(),
        expected: None,
    };
    let mut settings = vec![
        text("synchronous_commit", "on"),
        text("standard_conforming_strings", "on"),
        text("client_encoding", "UTF8"),
        text("TimeZone", "UTC"),
        text("DateStyle", "ISO, MDY"),
        text("IntervalStyle", "postgres"),
        text("bytea_output", "hex"),
        text("extra_float_digits", "1"),
        match options.statement_timeout {
            Some(timeout) => milliseconds("statement_timeout", timeout),
            None => text("statement_timeout", "0"),
        },
        milliseconds("lock_timeout", options.lock_timeout),
        milliseconds(
            "idle_in_transaction_session_timeout",
            options.idle_in_transaction,
        ),
        // On a Unix socket these stay 0.
        quiet("tcp_keepalives_idle", "30"),
        quiet("tcp_keepalives_interval", "10"),
        quiet("tcp_keepalives_count", "3"),
        // A migration's `CREATE TABLE IF NOT EXISTS` is nothing to report.
        quiet("client_min_messages", "warning"),
    ];
    // Without `$user`, so that all logins see the same tables; temporary ones last, so that they hide no other.
    if !base
        .get_options()
        .is_some_and(|options| options.contains("search_path"))
    {
        settings.push(Setting {
            name: "search_path",
            sql: "public, pg_temp".into(),
            expected: Some(vec!["public, pg_temp".into()]),
        });
    }
    settings
}

fn session_error(base: &PgConnectOptions, error: &sqlx::Error) -> StoreError {
    match errors::class(error) {
        Class::Refused => StoreError::Unusable(format!(
            "the session at `{}` can't be prepared: {}",
            display(base),
            errors::describe(error)
        )),
        _ => connect_error(base, error),
    }
}

fn connect_error(base: &PgConnectOptions, error: &sqlx::Error) -> StoreError {
    let text = format!(
        "cannot connect to `{}`: {}",
        display(base),
        errors::describe(error)
    );
    let sqlstate = error
        .as_database_error()
        .and_then(|error| error.code())
        .unwrap_or_default();
    // These don't mend themselves.
    let hint = match sqlstate.get(..2).unwrap_or_default() {
        "28" => "\nhint: check the user and the password in `store.url`",
        "3D" => "\nhint: create the database, or correct its name in `store.url`",
        "42" => "\nhint: give the login the right to connect, or use another in `store.url`",
        _ if matches!(error, sqlx::Error::Configuration(_)) => "\nhint: correct `store.url`",
        _ => return StoreError::Unavailable(text),
    };
    StoreError::Unusable(text + hint)
}

/// Returns the `SET LOCAL` that gives a transaction of the host's own all the time it needs.
pub(super) fn no_statement_timeout() -> &'static str {
    "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0"
}

/// The longest wait of a batch for a lock that another handler or program holds. Below the server's usual `deadlock_timeout`
/// of 1 s: two programs that lock rows in different orders part sooner, and the batch goes on in halves.
pub(super) const BATCH_LOCK_WAIT_MAX: Duration = Duration::from_millis(500);
/// How long a batch waits for the batch of another host. Longer than a batch may hold its locks.
const BATON_WAIT_MAX: Duration = Duration::from_secs(60);

/// Returns the `SET LOCAL`s for the wait for a baton.
pub(super) fn baton_timeouts() -> String {
    let wait = BATON_WAIT_MAX.as_millis();
    format!("SET LOCAL statement_timeout = {wait}; SET LOCAL lock_timeout = {wait}")
}

/// Returns the `SET LOCAL`s for all that follows it.
pub(super) fn timeouts(options: &SessionOptions) -> String {
    let statement = options
        .statement_timeout
        .map_or(0, |timeout| timeout.as_millis().clamp(1, i32::MAX as u128));
    format!(
        "SET LOCAL statement_timeout = {statement}; {}",
        lock_timeout(options)
    )
}

/// Returns the `SET LOCAL` that limits the waits for locks in the rest of a transaction.
pub(super) fn lock_timeout(options: &SessionOptions) -> String {
    format!(
        "SET LOCAL lock_timeout = {}",
        options.lock_timeout.as_millis().clamp(1, i32::MAX as u128)
    )
}
