//! Opens a session and sets what the rest of the room relies on, then reads it back.

use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use super::errors::{self, Class};
use crate::store::{SessionOptions, StoreError};

/// The oldest server that has all that is needed (`client_connection_check_interval`), as `server_version_num` counts.
const SERVER_VERSION_MIN: u32 = 140_000;

/// How long the server may take to let a session in. The driver itself would wait for ever for one that does not answer.
const CONNECT_MAX: Duration = Duration::from_secs(10);

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
    let mark = format!("{:016x}", rand::random::<u64>());
    let mut message = format!("{READ_MARK}; SET {MARK} = '{mark}';");
    for setting in &settings {
        message.push_str("SET ");
        message.push_str(setting.name);
        message.push_str(" = ");
        message.push_str(&setting.sql);
        message.push(';');
    }
    let rows = sqlx::raw_sql(AssertSqlSafe(message))
        .fetch_all(&mut connection)
        .await
        .map_err(|error| session_error(base, &error))?;
    // A new session has none.
    if rows.first().and_then(mark_in).is_some() {
        return Err(shared_session(base));
    }
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
        "SELECT name, setting, pg_catalog.pg_is_in_recovery() AS standby, pg_catalog.current_setting('hapax.session', true) AS mark \
         FROM pg_catalog.pg_settings",
    )
    .fetch_all(&mut connection)
    .await
    .map_err(|error| session_error(base, &error))?;
    for row in &rows {
        let unreadable = |error: sqlx::Error| session_error(base, &error);
        if mark_in(row).as_deref() != Some(&mark) {
            return Err(shared_session(base));
        }
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

/// The setting by which a session knows itself.
const MARK: &str = "hapax.session";
const READ_MARK: &str = "SELECT pg_catalog.current_setting('hapax.session', true) AS mark";

fn mark_in(row: &PgRow) -> Option<String> {
    let mark: Option<String> = row.try_get("mark").ok()?;
    mark.filter(|mark| !mark.is_empty())
}

/// Looks, while another connection of this process is prepared and idle, whether a new one gets the same session: then a pooler hands sessions
/// from one transaction to the next. Returns what makes acknowledged data losable, a sentence each.
pub(in crate::store) async fn look(base: &PgConnectOptions) -> Result<Vec<String>, StoreError> {
    let options = base.clone().application_name("hapax look");
    let look = async {
        let mut connection = PgConnection::connect_with(&options).await?;
        let rows = sqlx::raw_sql(
            "SELECT pg_catalog.current_setting('hapax.session', true) AS mark, pg_catalog.current_setting('fsync') AS fsync, \
             pg_catalog.current_setting('full_page_writes') AS full_page_writes",
        )
        .fetch_all(&mut connection)
        .await?;
        // An error changes nothing: it is closed.
        let _ = connection.close().await;
        Ok(rows)
    };
    // Nothing has begun, so this may be dropped.
    let rows = match tokio::time::timeout(CONNECT_MAX, look).await {
        Ok(Ok(rows)) => rows,
        Ok(Err(error)) => return Err(connect_error(base, &error)),
        Err(_) => return Ok(Vec::new()),
    };
    let Some(row) = rows.first() else {
        return Ok(Vec::new());
    };
    if mark_in(row).is_some() {
        return Err(shared_session(base));
    }
    let is_off = |name: &str| {
        row.try_get::<String, _>(name)
            .is_ok_and(|value| value == "off")
    };
    let mut losable = Vec::new();
    if is_off("fsync") {
        losable.push(
            "the server runs with `fsync = off`: after a crash of its machine, effects of acknowledged messages may be gone, and the \
             database damaged"
                .to_owned(),
        );
    }
    if is_off("full_page_writes") {
        losable.push(
            "the server runs with `full_page_writes = off`: after a crash of its machine, pages may be damaged, unless its file \
             system writes them whole"
                .to_owned(),
        );
    }
    Ok(losable)
}

fn shared_session(base: &PgConnectOptions) -> StoreError {
    StoreError::Unusable(format!(
        "the connection to `{}` goes through a pooler that hands sessions from one client to another, such as PgBouncer in \
         transaction mode: settings and locks of a session do not stay with it\nhint: use the pooler in session mode \
         (`pool_mode = session`, with its usual `server_reset_query`), or connect to the server itself",
        display(base)
    ))
}

fn session_error(base: &PgConnectOptions, error: &sqlx::Error) -> StoreError {
    // A statement that another session prepared, or that is prepared in another.
    if error
        .as_database_error()
        .and_then(|error| error.code())
        .is_some_and(|code| code == "42P05" || code == "26000")
    {
        return shared_session(base);
    }
    match errors::class(error) {
        Class::Refused => StoreError::Unusable(format!(
            "the session at `{}` can't be prepared: {}",
            display(base),
            errors::describe(error)
        )),
        _ => connect_error(base, error),
    }
}

/// Returns what to do about a connection that cannot be encrypted as it should. What is wrong stands only in the text.
fn tls_hint(error: &sqlx::Error) -> Option<&'static str> {
    let text = error.to_string();
    if text.contains("server does not support TLS") {
        return Some(
            "\nhint: switch `ssl` on in the server, or write another `sslmode` in `store.url`",
        );
    }
    if text.contains("NotValidForName") || text.contains("not valid for name") {
        return Some(
            "\nhint: use the host's name in `store.url` that its certificate is for; or `sslmode=verify-ca`, which looks at the \
             authority only",
        );
    }
    if text.contains("invalid peer certificate") {
        return Some(
            "\nhint: name the file of the authority that signed the server's certificate with `sslrootcert=FILE` in `store.url`",
        );
    }
    text.contains("received fatal alert").then_some(
        "\nhint: the server refuses the client certificate: check `sslcert` in `store.url`, and that the server trusts its \
         authority",
    )
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
        "28" if text.contains("certificate") => {
            "\nhint: name the client certificate that the server asks for with `sslcert=FILE&sslkey=FILE` in `store.url`"
        }
        "28" if text.contains("no encryption") => {
            "\nhint: the server wants TLS: write `sslmode=require`, or better `verify-full`, in `store.url`"
        }
        "28" => {
            "\nhint: check the user and the password in `store.url`; a password may also stand in `PGPASSWORD` or in a password file"
        }
        "3D" => "\nhint: create the database, or correct its name in `store.url`",
        "42" => "\nhint: give the login the right to connect, or use another in `store.url`",
        _ if text.contains("startup parameter") => {
            "\nhint: add the parameter to `ignore_startup_parameters` of the pooler"
        }
        _ if let Some(hint) = tls_hint(error) => hint,
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
