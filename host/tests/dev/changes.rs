//! A source that changes: the new version serves, a broken one is told, and nothing is built more often than it has to be.

use serde_json::json;

use crate::author::{Author, balance};

const AMOUNT: &str = "hapax_int64(credit.amount)";

#[test]
fn a_change_takes_effect_and_a_broken_one_leaves_the_old_version() {
    let author = Author::with_project("c");
    let mut followed = author.follow(&[]);
    assert_eq!(followed.event("built")["is_new"], true);
    assert_eq!(followed.event("serving")["is_fresh"], true);
    assert_eq!(followed.event("sent")["messages"], 4);
    let first = followed.message("m-1", "committed");
    assert_eq!(balance(&first), (json!(0), json!(5)));
    assert_eq!(first["rows"][0]["key"], json!(["id"]));
    assert_eq!(first["rows"][0]["after"]["id"], "a1");
    let dead = followed.message("m-4", "dead");
    assert_eq!(
        dead["why"],
        json!(["rejected", "account `nobody` does not exist"])
    );

    // Swapped in, on the rows that are there.
    author.replace("handler.c", AMOUNT, "hapax_int64(credit.amount * 2)");
    assert_eq!(followed.event("building")["changed"], json!(["handler.c"]));
    assert_eq!(followed.event("built")["is_new"], true);
    followed.log("swapped");
    author.add_message("m-5", 1);
    followed.message("m-1", "duplicate");
    assert_eq!(
        balance(&followed.message("m-5", "committed")),
        (json!(15), json!(17))
    );

    // The compiler's words come out, and what was built before serves.
    author.replace("handler.c", "credit.amount * 2", "credit.amout * 3");
    let failed = followed.event("build_failed");
    assert_eq!(failed["serves"], true);
    let said = failed["error"].as_str().unwrap();
    assert!(
        said.contains("handler.c:") && said.contains("amout"),
        "{said}"
    );
    author.add_message("m-6", 1);
    assert_eq!(
        balance(&followed.message("m-6", "committed")),
        (json!(17), json!(19))
    );

    // What fails is retried, and the retry runs the cure.
    author.replace(
        "handler.c",
        "hapax_int64(credit.amout * 3)",
        "(__builtin_trap(), hapax_int64(0))",
    );
    followed.log("swapped");
    author.add_message("m-7", 1);
    let retry = followed.message("m-7", "retry");
    assert_eq!(retry["why"][0], "trapped");
    author.replace(
        "handler.c",
        "(__builtin_trap(), hapax_int64(0))",
        "hapax_int64(credit.amount * 3)",
    );
    followed.log("swapped");
    let cured = followed.message("m-7", "committed");
    assert_eq!(balance(&cured), (json!(19), json!(22)));
    assert!(cured["attempt"].as_u64().unwrap() >= 2, "{cured}");

    // No source: nothing is built of it.
    std::fs::write(author.file("NOTES.md"), "note").unwrap();
    author.add_message("m-8", 1);
    followed.message("m-8", "committed");

    followed.interrupt();
    let status = followed.end();
    assert!(status.success(), "{status}");
    // One for the start and one for each change.
    assert_eq!(followed.count("building"), 5);
    // The store of the configuration was not touched.
    assert!(!author.file("hapax.db").exists());
    assert!(author.file(".hapax/dev.db").exists());
}

#[test]
fn a_change_during_a_build_leads_to_one_more_build() {
    let author = Author::with_project("c");
    let mut followed = author.follow(&[]);
    followed.message("m-4", "dead");
    author.replace("handler.c", AMOUNT, "hapax_int64(credit.amount * 2)");
    followed.event("building");
    author.replace("handler.c", "credit.amount * 2", "credit.amount * 7");
    followed.event("built");
    assert_eq!(followed.event("building")["changed"], json!(["handler.c"]));
    let built = followed.event("built");
    followed.serves(&built);
    author.add_message("m-5", 1);
    let committed = followed.message("m-5", "committed");
    assert_eq!(balance(&committed), (json!(15), json!(22)));
    followed.interrupt();
    assert!(followed.end().success());
    assert_eq!(followed.count("building"), 3);
}

#[test]
fn a_project_that_does_not_build_at_first_is_served_when_it_does() {
    let author = Author::with_project("c");
    author.replace("handler.c", AMOUNT, "hapax_int64(credit.amount");
    let mut followed = author.follow(&["--no-send"]);
    assert_eq!(followed.event("build_failed")["serves"], false);
    author.replace("handler.c", "hapax_int64(credit.amount", AMOUNT);
    followed.event("serving");
    // A line of input sends what was not sent.
    followed.types("s");
    followed.message("m-3", "committed");
    followed.types("q");
    assert!(followed.end().success());
}
