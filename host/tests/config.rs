//! The configuration's rules: one small file each in `config/`, and the words for what is wrong.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use hapax::config::{Config, ConfigError, SourceKind};
use hapax::source::jetstream::Start;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/config")
        .join(name)
}

fn files(name: &str, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder(name))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

fn load(file: &Path) -> Result<Config, ConfigError> {
    Config::load(file, [])
}

#[test]
fn every_valid_file_loads() {
    for file in files("valid", "toml") {
        if let Err(error) = load(&file) {
            panic!("{error}");
        }
    }
}

#[test]
fn every_invalid_file_names_all_its_problems() {
    for file in files("invalid", "toml") {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let said = load(&file)
            .expect_err(&name)
            .to_string()
            .replace(&file.display().to_string(), &name);
        let expected = file.with_extension("txt");
        if name == "not-toml.toml" {
            assert!(
                said.starts_with("error: `not-toml.toml`: is not TOML: TOML parse error at line 1"),
                "{said}"
            );
            continue;
        }
        let expected = std::fs::read_to_string(&expected).unwrap();
        assert_eq!(said, expected.trim_end(), "{name}");
    }
}

#[test]
fn a_missing_file_says_what_to_do() {
    let error = load(Path::new("/nowhere/hapax.toml"))
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "error: `/nowhere/hapax.toml`: cannot be read: No such file or directory (os error 2)\n\
         hint: name the file with `--config FILE`, or start from `hapax.example.toml`"
    );
}

#[test]
fn the_example_is_valid_and_shows_every_key() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hapax.example.toml");
    let config = match load(&file) {
        Ok(config) => config,
        Err(error) => panic!("{error}"),
    };
    let credit = &config.handlers["credit"];
    assert_eq!(credit.start, Some(Start::All));
    assert_eq!(credit.limits.memory_bytes, 64 << 20);
    assert_eq!(credit.retry.backoff(1), Duration::from_secs(1));
    assert_eq!(credit.retry.backoff(4), Duration::from_secs(8));
    assert_eq!(credit.retry.backoff(40), Duration::from_secs(300));

    // The hint for an unknown key lists the known ones: each must stand in the example.
    let text = std::fs::read_to_string(&file).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let probe = folder.path().join("probe.toml");
    let unknown = "xxxxxxxxxxxxxxxxxxxxxxxxxxxx = 1\n";
    let mut keys = 0;
    let mut lines: Vec<&str> = text.lines().collect();
    let tables: Vec<usize> = (0..lines.len())
        // Names of the user's own have no list.
        .filter(|index| {
            let line = lines[*index];
            line.starts_with('[') && !line.ends_with(".config]") && !line.ends_with(".headers]")
        })
        .collect();
    for table in tables {
        lines.insert(table + 1, unknown.trim_end());
        std::fs::write(&probe, lines.join("\n")).unwrap();
        lines.remove(table + 1);
        let error = load(&probe).unwrap_err();
        let hint = error.problems[0].hint.clone().unwrap();
        for key in hint.trim_start_matches("the keys here are ").split(", ") {
            let key = key.trim_matches('`');
            assert!(
                text.contains(&format!("\n{key} = "))
                    || text.contains(&format!("\n# {key} = "))
                    || text.contains(&format!(".{key}]")),
                "`{key}` is not in hapax.example.toml"
            );
            keys += 1;
        }
    }
    assert!(keys > 20, "{keys}");
}

#[test]
fn variables_override_keys() {
    let file = folder("valid").join("queue.toml");
    let set = |pairs: &[(&str, &str)]| {
        Config::load(
            &file,
            pairs
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    };
    let config = set(&[
        ("HAPAX_STORE__URL", "postgres://elsewhere/db"),
        ("HAPAX_HANDLERS__SHIP__RETRY__ATTEMPTS", "7"),
        ("HAPAX_HANDLERS__SHIP__LIMITS__TIME", "3s"),
        ("HAPAX_SOURCES__EXTRA__KIND", "queue"),
        ("HAPAX_LOG", "debug"),
        ("HAPAX_SHUTDOWN_GRACE", "3s"),
        ("HAPAX_TEST_NATS", "x"),
    ])
    .unwrap();
    assert_eq!(config.store.url, "postgres://elsewhere/db");
    assert_eq!(config.handlers["ship"].retry.attempts, 7);
    assert_eq!(config.handlers["ship"].limits.time, Duration::from_secs(3));
    assert_eq!(config.sources["extra"].kind, SourceKind::Queue);

    assert_eq!(config.shutdown_grace, Duration::from_secs(3));

    let error = set(&[("HAPAX_STORE_URL", "sqlite:x.db")])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        format!(
            "error: `{}`: the variable `HAPAX_STORE_URL` has one underscore where keys are separated by two\n\
             hint: write it as `HAPAX_STORE__URL` for `store.url`",
            file.display()
        )
    );

    let error = set(&[("HAPAX_STORE__URL__X", "1"), ("HAPAX___", "1")])
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("the variable `HAPAX___` does not name a key"),
        "{error}"
    );
    assert!(
        error.contains("the variable `HAPAX_STORE__URL__X` goes through a key that is not a table"),
        "{error}"
    );
}

#[test]
fn the_handlers_own_table_is_text_or_json() {
    let config = load(&folder("valid").join("queue.toml")).unwrap();
    let table = &config.handlers["ship"].config;
    assert_eq!(table["text"], "as written");
    assert_eq!(table["number"], "3");
    assert_eq!(table["list"], r#"[1,"two",true]"#);
}

#[test]
fn no_text_about_a_configuration_shows_its_passwords() {
    let config = load(&folder("valid").join("postgres.toml")).unwrap();
    assert!(!format!("{config:?}").contains("secret"));
    let error = load(&folder("invalid").join("store-url-kind.toml"))
        .unwrap_err()
        .to_string();
    assert!(!error.contains("secret"));
    let token = (
        "HAPAX_ADMIN__TOKEN".to_owned(),
        "secret-token-of-many-bytes".to_owned(),
    );
    let config = Config::load(&folder("valid").join("admin-token.toml"), [token]).unwrap();
    assert!(config.admin.as_ref().unwrap().token.is_some());
    assert!(!format!("{config:?}").contains("secret-token"));
}
