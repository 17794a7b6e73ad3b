//! `docs/error-codes.md` has every code that the source gives, and no other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The first string behind `at`, if nothing but blanks stands between.
fn literal(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix('"')?.split('"').next()
}

fn is_code(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'-' || byte == b'.')
}

/// The codes of errors that are made in place, and of those that the databases' errors become.
fn in_source() -> BTreeSet<String> {
    let mut paths = Vec::new();
    files(&root().join("host/src"), &mut paths);
    let mut codes = BTreeSet::new();
    for path in paths {
        if path.file_name().is_some_and(|name| name == "tests.rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        // Tests within a file stand at its end.
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for part in text.split("SqlError::new(").skip(1) {
            codes.extend(literal(part).map(str::to_owned));
        }
        // What a helper makes of a code that it is passed.
        for helper in ["fail(", "Misfit::", "denied_as("] {
            for part in text.split(helper).skip(1) {
                codes.extend(
                    literal(part)
                        .filter(|code| is_code(code) && code.contains('.'))
                        .map(str::to_owned),
                );
            }
        }
        // `invalid.subject`, ...: by the field's name.
        for part in text.split("check_text(").skip(1) {
            codes.extend(literal(part).map(|field| format!("invalid.{field}")));
        }
        if let Some((_, mapping)) = text.split_once("fn code_of(") {
            let mapping = mapping.split("\n}\n").next().unwrap();
            for line in mapping.lines() {
                let code = match line.split_once("=> \"") {
                    Some((_, rest)) => rest.split('"').next(),
                    None => literal(line).filter(|_| line.trim().ends_with('"')),
                };
                let code = code.or_else(|| literal(line.trim().strip_prefix("return ")?));
                codes.extend(code.filter(|code| is_code(code)).map(str::to_owned));
            }
        }
    }
    codes
}

fn in_table() -> BTreeSet<String> {
    let page = std::fs::read_to_string(root().join("docs/error-codes.md")).unwrap();
    let mut codes = BTreeSet::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").collect();
        assert_eq!(cells.len(), 4, "{line}");
        assert!(["yes", "no"].contains(&cells[2].trim()), "{line}");
        for code in cells[0].split('`').skip(1).step_by(2) {
            assert!(codes.insert(code.to_owned()), "`{code}` stands there twice");
        }
    }
    codes
}

#[test]
fn the_table_has_every_code_of_the_source_and_no_other() {
    let (source, table) = (in_source(), in_table());
    let missing: Vec<_> = source.difference(&table).collect();
    let ghosts: Vec<_> = table.difference(&source).collect();
    assert!(source.len() > 50, "{source:?}");
    assert!(missing.is_empty(), "not in the table: {missing:?}");
    assert!(ghosts.is_empty(), "only in the table: {ghosts:?}");
}
