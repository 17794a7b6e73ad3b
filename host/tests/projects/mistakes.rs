//! Mistakes in a handler and in what is called a project: found while it is built, and the component stays as it was.

use crate::place::Place;

/// Builds after a piece of a file was replaced, and asserts that it fails with `words`.
fn is_found(language: &str, file: &str, old: &str, new: &str, words: &[&str]) {
    let place = Place::with_project(language);
    std::fs::write(place.project().join("handler.wasm"), "as it was").unwrap();
    place.replace(file, old, new);
    let output = place.build();
    assert_eq!(output.status.code(), Some(1), "{language}: {}", output.out);
    for words in words {
        assert!(output.err.contains(words), "{language}: {}", output.err);
    }
    // The tools' own words, never a stack trace of a tool's.
    assert!(!output.err.contains("    at "), "{}", output.err);
    assert_eq!(output.out, "");
    assert_eq!(place.read("handler.wasm"), "as it was");
}

#[test]
fn a_wrong_type_in_rust_is_found() {
    is_found(
        "rust",
        "src/lib.rs",
        "if updated == 0",
        "if updated == \"none\"",
        &[
            "error: cargo cannot compile it:",
            "src/lib.rs:",
            "can't compare",
        ],
    );
}

#[test]
fn a_wrong_type_in_typescript_is_found() {
    is_found(
        "ts",
        "handler.ts",
        "[amount, account]",
        "[amount, { account }]",
        &[
            "error: the types do not fit:",
            "handler.ts(",
            "'account' does not exist in type",
        ],
    );
    is_found(
        "ts",
        "handler.ts",
        "updated === 0",
        "updated === '0'",
        &["handler.ts(", "no overlap"],
    );
}

#[test]
fn a_wrong_type_in_c_is_found() {
    is_found(
        "c",
        "handler.c",
        "hapax_string(credit.account)",
        "hapax_string(credit.amount)",
        &[
            "error: the compiler does not take it:",
            "handler.c:",
            "handler_string_t",
        ],
    );
    // Nothing of a C library that is not there.
    is_found(
        "c",
        "handler.c",
        "  credit_t credit;",
        "  credit_t credit;\n  printf(\"here\");",
        &["handler.c:", "printf"],
    );
}

/// With the big sizes only, as Go is not there otherwise.
#[test]
fn a_wrong_type_in_go_is_found() {
    if std::env::var_os("HAPAX_TEST_FULL").is_none() {
        return;
    }
    is_found(
        "go",
        "handler.go",
        "if updated == 0",
        "if updated == \"none\"",
        &[
            "error: the compiler does not take it:",
            "./handler.go:",
            "mismatched types int and untyped string",
        ],
    );
    // The function that the program around it calls.
    is_found(
        "go",
        "handler.go",
        "func Handle(message hapax.Message) error",
        "func Handle(message *hapax.Message) error",
        &[
            "handler.Handle",
            "hint: correct what the compiler names; the handler is `func Handle(message hapax.Message) error`",
        ],
    );
    // Nothing is downloaded unless it is asked for.
    is_found(
        "go",
        "handler.go",
        "\t\"hapax/sql\"\n",
        "\t\"hapax/sql\"\n\t_ \"example.com/money\"\n",
        &[
            "error: modules are missing, which Go would download:",
            "example.com/money",
            "hint: run `hapax build --install`, which lets Go download them",
        ],
    );
}

#[test]
fn a_handler_in_javascript_that_exports_nothing_is_found() {
    is_found(
        "js",
        "handler.js",
        "export function handle",
        "function handle",
        &[
            "error: esbuild cannot make one module of the sources:",
            "\"handle\"",
            "hint: correct what it names; the handler is `export function handle(message)`",
        ],
    );
}

#[test]
fn a_folder_that_is_no_project_is_said() {
    let place = Place::new();
    for (arguments, words) in [
        (
            &["build"][..],
            "error: `.` is no project: it has none of `Cargo.toml`, `handler.js`, `handler.ts`, `handler.py`, `handler.c`, `handler.go`\n\
                         hint: name a project's folder; `hapax new NAME --lang rust` makes one\n",
        ),
        (
            &["build", "nowhere"],
            "error: cannot read the folder `nowhere`: No such file or directory (os error 2)\n\
                                 hint: name a project's folder, such as one that `hapax new` has made\n",
        ),
        (
            &["build", "--lang", "c"],
            "error: `.` is no project in C: it has no `handler.c`\nhint: leave `--lang` out, or name another folder\n",
        ),
    ] {
        let output = place.hapax("", arguments);
        assert_eq!(output.status.code(), Some(2));
        assert_eq!(output.err, words);
    }
    std::fs::write(place.path().join("handler.c"), "").unwrap();
    let output = place.hapax("", &["build"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        output
            .err
            .contains("where the component belongs is not known: there is no `./hapax.toml`"),
        "{}",
        output.err
    );
    std::fs::write(place.path().join("handler.js"), "").unwrap();
    let output = place.hapax("", &["build"]);
    assert!(
        output
            .err
            .contains("the language of `.` is not clear: it has `handler.js`, `handler.c`"),
        "{}",
        output.err
    );
}
