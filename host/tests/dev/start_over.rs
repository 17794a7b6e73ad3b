//! Starting over: by hand, after a changed migration, after each new version.

use serde_json::json;

use crate::author::{Author, balance};

#[test]
fn messages_are_sent_again_or_to_an_empty_database() {
    let author = Author::with_project("c");
    let mut followed = author.follow(&[]);
    followed.message("m-4", "dead");
    followed.types("");
    followed.message("m-3", "duplicate");
    followed.types("f");
    assert_eq!(followed.event("serving")["is_fresh"], true);
    assert_eq!(
        balance(&followed.message("m-3", "committed")),
        (json!(5), json!(15))
    );

    // Tables are made anew of a migration that was applied before.
    author.replace(
        "migrations/sqlite/0001_accounts.sql",
        "DEFAULT 0",
        "DEFAULT 100",
    );
    assert_eq!(followed.event("serving")["is_fresh"], true);
    assert_eq!(
        balance(&followed.message("m-1", "committed")),
        (json!(100), json!(105))
    );
    assert_eq!(followed.count("building"), 1);

    // One that the database refuses is told, and cured by the next change.
    author.replace(
        "migrations/sqlite/0001_accounts.sql",
        "CREATE TABLE",
        "CREATE TABEL",
    );
    let failed = followed.event("failed");
    assert!(
        failed["error"].as_str().unwrap().contains("TABEL"),
        "{failed}"
    );
    author.replace(
        "migrations/sqlite/0001_accounts.sql",
        "CREATE TABEL",
        "CREATE TABLE",
    );
    assert_eq!(
        balance(&followed.message("m-1", "committed")),
        (json!(100), json!(105))
    );
    followed.types("q");
    assert!(followed.end().success());

    // What is kept is what was there.
    let mut followed = author.follow(&["--keep"]);
    assert_eq!(followed.event("serving")["is_fresh"], false);
    followed.message("m-1", "duplicate");
    author.add_message("m-5", 1);
    assert_eq!(
        balance(&followed.message("m-5", "committed")),
        (json!(115), json!(116))
    );
    followed.interrupt();
    assert!(followed.end().success());
}

#[test]
fn with_resend_each_version_is_seen_with_all_messages() {
    let author = Author::with_project("c");
    let mut followed = author.follow(&["--resend"]);
    followed.message("m-4", "dead");
    author.replace(
        "handler.c",
        "hapax_int64(credit.amount)",
        "hapax_int64(credit.amount * 2)",
    );
    assert_eq!(followed.event("serving")["is_fresh"], true);
    assert_eq!(
        balance(&followed.message("m-3", "committed")),
        (json!(10), json!(30))
    );
    followed.message("m-4", "dead");
    followed.interrupt();
    assert!(followed.end().success());
}
