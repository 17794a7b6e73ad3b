//! The template that `hapax new` writes and the example are one handler, so that what holds for one holds for the other.

use std::path::Path;

use crate::LANGUAGES;

#[test]
fn a_templates_handler_is_the_examples() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: String| {
        let bytes = std::fs::read(root.join(&path)).unwrap_or_else(|err| panic!("{path}: {err}"));
        String::from_utf8(bytes).unwrap()
    };
    for language in LANGUAGES {
        let handler = match language {
            "rust" => "src/lib.rs",
            "js" => "handler.js",
            "ts" => "handler.ts",
            "python" => "handler.py",
            other => &format!("handler.{other}"),
        };
        assert_eq!(
            read(format!("guest-sdk/{language}/template/{handler}")),
            read(format!("examples/credit-account/{language}/{handler}")),
            "{language}"
        );
    }
}
