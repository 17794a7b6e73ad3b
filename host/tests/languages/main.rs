//! The contract in six languages: the same handler does the same in each, on both databases, and what it leaves is compared with the files in
//! `expected/`. `credit` is the example, under killed hosts and both sources; `suite` goes through all of an SDK, every kind of value, every way to
//! fail, and the limits.
//!
//! TypeScript and Go run with `HAPAX_TEST_FULL` only (`cargo xtask test --full`): to build them and to compile what is built takes minutes.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod credit;
mod expected;
mod same;
mod suite;

use std::path::PathBuf;

use support::scene::component;

/// The words that `hapax new --lang` takes.
const LANGUAGES: [&str; 6] = ["rust", "c", "js", "python", "ts", "go"];

/// Returns whether the language is run: some only with the big sizes.
fn is_run(language: &str) -> bool {
    !matches!(language, "ts" | "go") || std::env::var_os("HAPAX_TEST_FULL").is_some()
}

/// The example in a language.
fn credit_account(language: &str) -> PathBuf {
    component(&format!(
        "examples/credit-account/{language}/credit-account.wasm"
    ))
}

/// The handler of the suite in a language.
fn suite_handler(language: &str) -> PathBuf {
    match language {
        "rust" => component("host/tests/guests/suite.wasm"),
        _ => component(&format!(
            "host/tests/languages/handlers/{language}/handler.wasm"
        )),
    }
}

/// Makes the tests of each language, from a function of the language, the database and the source.
macro_rules! in_each_language {
    ($run:path) => {
        in_each_language!($run: rust "rust", c "c", javascript "js", python "python", typescript "ts", go "go");
    };
    ($run:path: $($name:ident $word:literal),*) => {$(
        mod $name {
            #[tokio::test]
            async fn on_sqlite() {
                if crate::is_run($word) {
                    $run($word, hapax::store::StoreKind::Sqlite).await;
                }
            }

            #[tokio::test]
            async fn on_postgres() {
                if crate::is_run($word) {
                    $run($word, hapax::store::StoreKind::Postgres).await;
                }
            }
        }
    )*};
}
pub(crate) use in_each_language;

#[test]
fn every_language_is_run() {
    let listed: Vec<&str> = hapax::app::Language::ALL
        .iter()
        .map(|language| language.word())
        .collect();
    let mut run = LANGUAGES.to_vec();
    let mut listed = listed;
    run.sort_unstable();
    listed.sort_unstable();
    assert_eq!(run, listed);
}
