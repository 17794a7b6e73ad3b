//! The store's URL, made into what the driver connects with. As libpq reads it, where the driver differs.
//!
//! **Invariant**: no value of a parameter is in any text that is made here, except paths of files.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgSslMode};

use super::errors;
use crate::store::StoreError;
use crate::text::url_decoded;

/// How many statements the driver keeps prepared: the host's own and the descriptions of the handlers'.
const DRIVER_STATEMENTS_MAX: usize = 256;

/// What the driver reads.
const KNOWN: [&str; 18] = [
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "statement-cache-capacity",
];
/// What hapax does by itself, or what changes nothing that counts.
const IGNORED: [&str; 9] = [
    "connect_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "target_session_attrs",
    "client_encoding",
    "fallback_application_name",
];

/// Reads a URL and looks at the files that it names; connects to nothing.
pub(in crate::store) fn parse(url: &str) -> Result<PgConnectOptions, StoreError> {
    let (front, query) = url.split_once('?').unwrap_or((url, ""));
    let mut kept = Vec::new();
    let mut trusts_system = false;
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        if key == "sslrootcert" && value == "system" {
            trusts_system = true;
        } else if KNOWN.contains(&key) || key.starts_with("options[") {
            kept.push(part);
        } else if !IGNORED.contains(&key) {
            return Err(unknown(key));
        }
    }
    let url = match kept.is_empty() {
        true => front.to_owned(),
        false => format!("{front}?{}", kept.join("&")),
    };
    let mut options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
        // The driver's words name the part that is wrong, never the whole URL.
        StoreError::Unusable(format!(
            "the store's URL can't be read: {}\nhint: write `postgres://user:password@host:port/database`",
            errors::describe(&error)
        ))
    })?;
    let files = Files::of(&kept);
    let mode = options.get_ssl_mode();
    if matches!(mode, PgSslMode::Allow) {
        return Err(StoreError::Unusable(
            "`sslmode=allow` is not supported\nhint: write `prefer`, or better `verify-full`"
                .into(),
        ));
    }
    if trusts_system {
        // As libpq: who trusts every authority has to look at the name.
        options = options.ssl_mode(PgSslMode::VerifyFull);
    } else if matches!(mode, PgSslMode::Require) && files.root.is_some() {
        // As libpq: an authority that is named counts.
        options = options.ssl_mode(PgSslMode::VerifyCa);
    }
    files.check()?;
    warn_of_open_password_file();
    Ok(options
        .statement_cache_capacity(DRIVER_STATEMENTS_MAX)
        // It is set afterwards: a pooler refuses what it does not know at the start of a session.
        .extra_float_digits(None)
        .disable_statement_logging())
}

fn unknown(key: &str) -> StoreError {
    let hint = match key {
        "passfile" => "name the file with the variable `PGPASSFILE`",
        "channel_binding" => "leave it out, and use `sslmode=verify-full`",
        "service" => "write out what the service file says",
        _ => {
            "the parameters are those of libpq: `sslmode`, `sslrootcert`, `sslcert`, `sslkey`, `host`, `port`, `dbname`, `user`, \
             `password`, `options`"
        }
    };
    let key = crate::text::one_line(key);
    StoreError::Unusable(format!(
        "the store's URL has the parameter `{key}`, which hapax does not know\nhint: {hint}"
    ))
}

/// The files that the driver reads at each connection: what the URL says, else what the environment says.
struct Files {
    root: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Files {
    fn of(parameters: &[&str]) -> Self {
        let named = |names: [&str; 3], variable: &str| {
            parameters
                .iter()
                .filter_map(|part| part.split_once('='))
                .filter(|(key, _)| names.contains(key))
                .map(|(_, value)| PathBuf::from(url_decoded(value)))
                .next_back()
                .or_else(|| std::env::var_os(variable).map(PathBuf::from))
        };
        Self {
            root: named(["sslrootcert", "ssl-root-cert", "ssl-ca"], "PGSSLROOTCERT"),
            certificate: named(["sslcert", "ssl-cert", "sslcert"], "PGSSLCERT"),
            key: named(["sslkey", "ssl-key", "sslkey"], "PGSSLKEY"),
        }
    }

    fn check(&self) -> Result<(), StoreError> {
        let files = [
            ("sslrootcert", &self.root, "CERTIFICATE"),
            ("sslcert", &self.certificate, "CERTIFICATE"),
            ("sslkey", &self.key, "PRIVATE KEY"),
        ];
        for (parameter, path, kind) in files {
            if let Some(path) = path {
                check_pem(parameter, path, kind)?;
            }
        }
        match (&self.certificate, &self.key) {
            (Some(_), None) => Err(alone("sslcert", "sslkey")),
            (None, Some(_)) => Err(alone("sslkey", "sslcert")),
            _ => Ok(()),
        }
    }
}

fn alone(named: &str, missing: &str) -> StoreError {
    StoreError::Unusable(format!(
        "`{named}` is of no use without `{missing}`\nhint: name both, a certificate and its key"
    ))
}

fn check_pem(parameter: &str, path: &Path, kind: &str) -> Result<(), StoreError> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        StoreError::Unusable(format!(
            "`{}`, which `{parameter}` names, cannot be read: {error}\nhint: correct the path in `store.url`, or let the user \
             that hapax runs as read it",
            path.display()
        ))
    })?;
    let is_there = text.lines().any(|line| {
        line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{kind}-----"))
    });
    if is_there {
        return Ok(());
    }
    Err(StoreError::Unusable(format!(
        "`{}`, which `{parameter}` names, holds no {} in PEM\nhint: name a file with a line `-----BEGIN {kind}-----`",
        path.display(),
        kind.to_ascii_lowercase()
    )))
}

/// The driver passes over a password file that others may read, as libpq does; its own words for it are not in our log, since
/// they show lines of such files.
fn warn_of_open_password_file() {
    let path = match std::env::var_os("PGPASSFILE") {
        Some(path) => PathBuf::from(path),
        None => match std::env::home_dir() {
            Some(home) => home.join(".pgpass"),
            None => return,
        },
    };
    if std::fs::metadata(&path).is_ok_and(|metadata| metadata.mode() & 0o077 != 0) {
        tracing::warn!(
            file = %path.display(),
            hint = "chmod 600",
            "the password file is not used: others may read it"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(url: &str) -> String {
        parse(url).unwrap_err().to_string()
    }

    #[test]
    fn parameters_are_known_or_named() {
        let text = refusal("postgres://me:s3cret@h/d?pasword=s3cret");
        assert!(
            text.contains("`pasword`") && !text.contains("s3cret"),
            "{text}"
        );
        assert!(refusal("postgres://h/d?passfile=x").contains("PGPASSFILE"));
        assert!(refusal("postgres://h/d?sslmode=allow").contains("prefer"));
        assert!(parse("postgres://h/d?connect_timeout=3&target_session_attrs=read-write").is_ok());
    }

    #[test]
    fn files_are_looked_at_before_the_first_connection() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pem");
        let shown = file.display().to_string();
        let url = format!("postgres://h/d?sslmode=verify-full&sslrootcert={shown}");
        let text = refusal(&url);
        assert!(
            text.contains(&shown) && text.contains("`sslrootcert`"),
            "{text}"
        );
        std::fs::write(&file, "no certificate").unwrap();
        assert!(refusal(&url).contains("-----BEGIN CERTIFICATE-----"));
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n").unwrap();
        assert!(parse(&url).is_ok());
        let text = refusal(&format!("postgres://h/d?sslcert={shown}"));
        assert!(text.contains("`sslkey`"), "{text}");
    }

    #[test]
    fn an_authority_that_is_named_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.pem");
        std::fs::write(&file, "-----BEGIN CERTIFICATE-----\n").unwrap();
        let mode = |query: &str| {
            let options = parse(&format!("postgres://h/d?{query}")).unwrap();
            format!("{:?}", options.get_ssl_mode())
        };
        let root = format!("sslrootcert={}", file.display());
        assert_eq!(mode(&format!("sslmode=require&{root}")), "VerifyCa");
        assert_eq!(mode("sslmode=require"), "Require");
        assert_eq!(mode("sslmode=require&sslrootcert=system"), "VerifyFull");
    }
}
