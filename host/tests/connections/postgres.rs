//! PostgreSQL: certificates and passwords, with a server that listens on this machine's own network.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::support::certificates::Authority;
use crate::support::host::{Output, hapax};
use crate::support::postgres::Postgres;

/// Variables of this machine's own must not decide.
const VARIABLES: [&str; 6] = [
    "PGPASSWORD",
    "PGPASSFILE",
    "PGSSLMODE",
    "PGSSLROOTCERT",
    "PGSSLCERT",
    "PGSSLKEY",
];

struct Place {
    postgres: Postgres,
    port: u16,
    folder: TempDir,
    authority: Authority,
}

impl Place {
    /// A server with TLS that asks for what `rules` say, the last one first; its roles are `plain` with the password `s3cret` and `tester`.
    async fn new(rules: &str) -> Self {
        let authority = Authority::new();
        let mut postgres = Postgres::start();
        let roles = "CREATE ROLE plain LOGIN SUPERUSER PASSWORD 's3cret'";
        use sqlx::Connection as _;
        let mut connection = sqlx::PgConnection::connect(&postgres.url("postgres"))
            .await
            .unwrap();
        sqlx::raw_sql(roles).execute(&mut connection).await.unwrap();
        drop(connection);
        let server = authority.server(&["localhost"]);
        let path = |path: std::path::PathBuf| path.display().to_string();
        let certificate = path(postgres.write("server.pem", &server.certificate));
        let key = path(postgres.write("server.key", &server.key));
        let ca = path(postgres.write("ca.pem", &authority.pem));
        let hba = path(postgres.write("hba", &format!("local all all trust\n{rules}\n")));
        let port = free_port();
        postgres.set(&[
            ("listen_addresses", "localhost"),
            ("port", &port.to_string()),
            ("ssl", "on"),
            ("ssl_cert_file", &certificate),
            ("ssl_key_file", &key),
            ("ssl_ca_file", &ca),
            ("hba_file", &hba),
        ]);
        postgres.restart();
        let folder = TempDir::with_prefix("hapax-postgres-access-").unwrap();
        std::fs::write(folder.path().join("ca.pem"), &authority.pem).unwrap();
        Self {
            postgres,
            port,
            folder,
            authority,
        }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.folder.path().join(name), text).unwrap();
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Sends a message through `postgres://<user>@<host>:<port>/postgres?<query>`.
    fn send(&self, user: &str, host: &str, query: &str, variables: &[(&str, &str)]) -> Output {
        let config = format!(
            "[store]\nurl = \"postgres://{user}@{host}:{}/postgres?{query}\"\n[sources.s]\nkind = \"queue\"\n",
            self.port
        );
        self.write("hapax.toml", &config);
        let mut command: Command = hapax();
        for name in VARIABLES {
            command.env_remove(name);
        }
        let output = command
            .args(["send", "s", "hello"])
            .env("HOME", self.path())
            .envs(variables.iter().copied())
            .current_dir(self.path())
            .output()
            .unwrap();
        Output {
            status: output.status,
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn assert_open(&self, user: &str, host: &str, query: &str, variables: &[(&str, &str)]) {
        let output = self.send(user, host, query, variables);
        assert!(output.status.success(), "{query}: {}", output.err);
    }

    fn assert_refused(&self, user: &str, host: &str, query: &str, words: &[&str]) {
        let output = self.send(user, host, query, &[]);
        assert_eq!(output.status.code(), Some(3), "{query}: {}", output.err);
        for word in words {
            assert!(
                output.err.contains(word),
                "{query}: no `{word}` in: {}",
                output.err
            );
        }
        assert!(!output.err.contains("s3cret"), "{}", output.err);
    }
}

/// Below those that the system gives to others, so that nobody takes it meanwhile.
fn free_port() -> u16 {
    let first = 20_000 + u16::try_from(std::process::id() % 10_000).unwrap();
    (first..first + 1_000)
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sslmode_does_what_libpq_documents() {
    let place =
        Place::new("hostssl all all samehost trust\nhostnossl all all samehost reject").await;
    let root = "sslrootcert=ca.pem";
    place.assert_refused(
        "plain",
        "localhost",
        "sslmode=disable",
        &["no encryption", "`sslmode=require`"],
    );
    for query in ["", "sslmode=prefer", "sslmode=require"] {
        place.assert_open("plain", "localhost", query, &[]);
    }
    // The file is found from the configuration's folder, not from where hapax runs.
    for mode in ["require", "verify-ca", "verify-full"] {
        place.assert_open("plain", "localhost", &format!("sslmode={mode}&{root}"), &[]);
    }
    // The certificate is for `localhost`.
    place.assert_open(
        "plain",
        "127.0.0.1",
        &format!("sslmode=verify-ca&{root}"),
        &[],
    );
    place.assert_refused(
        "plain",
        "127.0.0.1",
        &format!("sslmode=verify-full&{root}"),
        &["`sslmode=verify-ca`"],
    );
    place.write("other.pem", &Authority::new().pem);
    for mode in ["require", "verify-ca", "verify-full"] {
        let query = format!("sslmode={mode}&sslrootcert=other.pem");
        place.assert_refused("plain", "localhost", &query, &["`sslrootcert=FILE`"]);
    }
    place.assert_refused(
        "plain",
        "localhost",
        "sslmode=verify-full",
        &["`sslrootcert=FILE`"],
    );
    place.assert_refused(
        "plain",
        "localhost",
        "sslmode=verify-full&sslrootcert=nowhere.pem",
        &["/nowhere.pem`", "cannot be read"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_is_the_login() {
    let place = Place::new("hostssl all all samehost cert").await;
    let (certificate, _) = place
        .authority
        .client("plain")
        .write(place.path(), "client");
    assert!(certificate.exists());
    let root = "sslmode=verify-full&sslrootcert=ca.pem";
    place.assert_open(
        "plain",
        "localhost",
        &format!("{root}&sslcert=client.pem&sslkey=client.key"),
        &[],
    );
    place.assert_refused("plain", "localhost", root, &["`sslcert=FILE&sslkey=FILE`"]);
    place.assert_refused(
        "plain",
        "localhost",
        &format!("{root}&sslcert=client.pem"),
        &["`sslkey`"],
    );
    // Another's certificate is no login.
    place.assert_refused(
        "tester",
        "localhost",
        &format!("{root}&sslcert=client.pem&sslkey=client.key"),
        &["certificate"],
    );
    drop(place.postgres);
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_from_the_environment_and_from_files() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new("host all all samehost scram-sha-256").await;
    place.assert_open("plain:s3cret", "localhost", "", &[]);
    place.assert_open("plain", "localhost", "", &[("PGPASSWORD", "s3cret")]);
    place.assert_refused("plain", "localhost", "", &["`PGPASSWORD`", "password file"]);
    place.assert_refused(
        "plain:wr0ng",
        "localhost",
        "",
        &["check the user and the password"],
    );

    let line = format!(
        "otherhost:*:*:*:wrong\nlocalhost:{}:*:plain:s3cret\n",
        place.port
    );
    for (name, variable) in [("passwords", "PGPASSFILE"), (".pgpass", "HOME")] {
        let file = place.path().join(name);
        std::fs::write(&file, &line).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let shown = match variable {
            "HOME" => place.path().display().to_string(),
            _ => file.display().to_string(),
        };
        place.assert_open("plain", "localhost", "", &[(variable, &shown)]);
        // Others may read it: it is passed over, and said so.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        let output = place.send("plain", "localhost", "", &[(variable, &shown)]);
        assert!(!output.status.success());
        assert!(output.err.contains("others may read it"), "{}", output.err);
        assert!(!output.err.contains("s3cret"), "{}", output.err);
        std::fs::remove_file(&file).unwrap();
    }

    // A line that is none is not shown.
    let file = place.path().join("passwords");
    std::fs::write(&file, "s3cret\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let shown = file.display().to_string();
    let output = place.send("plain", "localhost", "", &[("PGPASSFILE", &shown)]);
    assert!(!output.status.success());
    assert!(!output.err.contains("s3cret"), "{}", output.err);
}
