//! Help, version, and command lines that are wrong.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::place::{Place, assert_prints};
use crate::support::host;

const COMMANDS: [&str; 15] = [
    "demo",
    "new",
    "build",
    "dev",
    "run",
    "check",
    "inspect",
    "test",
    "send",
    "handlers",
    "dead-letters",
    "outbox",
    "prune",
    "rewind",
    "status",
];
const OF_DEAD_LETTERS: [&str; 6] = ["list", "show", "replay", "drop", "export", "import"];
const OF_HANDLERS: [&str; 7] = [
    "list", "history", "deploy", "rollback", "pause", "resume", "remove",
];
const OF_OUTBOX: [&str; 4] = ["list", "show", "republish", "drop"];

fn help(arguments: &[&str]) -> String {
    let output = Place::empty().hapax(arguments);
    assert_eq!(
        (output.status.code(), output.err.as_str()),
        (Some(0), ""),
        "{arguments:?}"
    );
    output.out
}

/// The lines below `Example:` or `Examples:`.
fn examples(help: &str) -> Vec<String> {
    let (_, after) = help
        .split_once("\nExample")
        .unwrap_or_else(|| panic!("no example in:\n{help}"));
    after
        .lines()
        .skip(1)
        .take_while(|line| line.starts_with("  "))
        .map(|line| line.trim().to_owned())
        .collect()
}

#[test]
fn every_command_is_listed_and_has_help_with_examples_that_parse() {
    let listed: Vec<String> = help(&["--help"])
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|name| name != "help")
        .collect();
    assert_eq!(listed, COMMANDS);

    let folder = Path::new(env!("CARGO_BIN_EXE_hapax")).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(folder.to_owned())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    )
    .unwrap();
    let helps = std::iter::once(help(&["--help"]))
        .chain(COMMANDS.map(|name| help(&[name, "--help"])))
        .chain(OF_DEAD_LETTERS.map(|name| help(&["dead-letters", name, "--help"])))
        .chain(OF_HANDLERS.map(|name| help(&["handlers", name, "--help"])))
        .chain(OF_OUTBOX.map(|name| help(&["outbox", name, "--help"])));
    for text in helps {
        let examples = examples(&text);
        assert!(!examples.is_empty(), "{text}");
        for example in examples {
            // What stands before `--help` is parsed first.
            let output = Command::new("sh")
                .arg("-c")
                .arg(format!("generate() {{ :; }}; {example} --help"))
                .env("PATH", &path)
                .output()
                .unwrap();
            assert!(output.status.success(), "{example}: {output:?}");
        }
    }
}

#[test]
fn each_commands_examples_are_its_own() {
    for name in COMMANDS {
        for example in examples(&help(&[name, "--help"])) {
            assert!(example.contains(&format!("hapax {name}")), "{example}");
        }
    }
    for name in OF_DEAD_LETTERS {
        for example in examples(&help(&["dead-letters", name, "--help"])) {
            let own = format!("hapax dead-letters {name}");
            assert!(example.contains(&own), "{example}");
        }
    }
    for name in OF_HANDLERS {
        for example in examples(&help(&["handlers", name, "--help"])) {
            let own = format!("hapax handlers {name}");
            assert!(example.contains(&own), "{example}");
        }
    }
    for name in OF_OUTBOX {
        for example in examples(&help(&["outbox", name, "--help"])) {
            assert!(
                example.contains(&format!("hapax outbox {name}")),
                "{example}"
            );
        }
    }
}

#[test]
fn help_explains_exit_codes_and_overrides() {
    let text = help(&["--help"]);
    for words in [
        "Exit codes: 0 done",
        "2 bad command line",
        "HAPAX_STORE__URL",
    ] {
        assert!(text.contains(words), "{text}");
    }
    // The short form is help too.
    assert!(help(&["send", "-h"]).contains("Examples:"));
}

#[test]
fn the_version_is_printed() {
    for argument in ["--version", "-V"] {
        assert_prints(
            &Place::empty().hapax(&[argument]),
            &format!("hapax {}\n", env!("CARGO_PKG_VERSION")),
        );
    }
}

#[test]
fn a_wrong_command_line_ends_with_code_2_and_says_what_is_wrong() {
    let place = Place::with_queue("");
    for (arguments, words) in [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'"),
        (&["run", "--quick"], "unexpected argument '--quick'"),
        (&["run", "now"], "unexpected argument 'now'"),
        (
            &["check", "--config"],
            "a value is required for '--config <FILE>'",
        ),
        (
            &["status", "--log-format", "xml"],
            "possible values: text, json",
        ),
        (&["send"], "<SOURCE>"),
        (&["send", "orders"], "<PAYLOAD>"),
        (
            &["send", "orders", "x", "--file", "y"],
            "cannot be used with",
        ),
        (
            &["send", "orders", "x", "--lines", "y"],
            "cannot be used with",
        ),
        (
            &["send", "orders", "--file", "y", "--lines", "y"],
            "cannot be used with",
        ),
        (
            &["send", "orders", "x", "--envelope"],
            "cannot be used with",
        ),
        (
            &["send", "orders", "--file", "y", "--envelope"],
            "cannot be used with",
        ),
        (&["send", "orders", "--envelope"], "--lines <FILE>"),
        (
            &["send", "orders", "--lines", "y", "--envelope", "--id", "1"],
            "cannot be used with",
        ),
        (
            &["send", "orders", "x", "--id", "1", "--header", "novalue"],
            "write it as `Name: value`",
        ),
        (
            &["send", "orders", "x", "--id", "1", "--header", ": v"],
            "write it as `Name: value`",
        ),
        (&["check", "--log", "x=y=z"], "`x=y=z` is not a log filter"),
        (&["dead-letters", "show"], "<NUMBER>"),
        (&["dead-letters", "show", "x"], "invalid digit"),
        (
            &["dead-letters", "list", "--class", "sad"],
            "the classes are missing-id, conflict, too-old, rejected, retried, trapped, limit, sql",
        ),
        (
            &["dead-letters", "list", "--since", "yesterday"],
            "write a time such as `30m`, `2h` or `14d`, or a moment such as `2026-05-01T12:00:00Z`",
        ),
        (
            &["dead-letters", "list", "--fingerprint", "xyz"],
            "a fingerprint has up to 12 hexadecimal digits",
        ),
        (
            &["dead-letters", "replay", "1", "--all"],
            "cannot be used with",
        ),
        (
            &["dead-letters", "drop", "1", "--handler", "ship"],
            "cannot be used with",
        ),
        (
            &["dead-letters", "replay", "--force"],
            "which dead letters are meant is not said",
        ),
    ] {
        let output = place.hapax(arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            output.err
        );
        assert_eq!(output.out, "", "{arguments:?}");
        assert!(
            output.err.starts_with("error: "),
            "{arguments:?}: {}",
            output.err
        );
        assert!(output.err.contains(words), "{arguments:?}: {}", output.err);
    }
    // Without any argument, the help is what is wanted.
    let output = place.hapax(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.err.contains("Usage: hapax"), "{}", output.err);
    assert!(!place.path().join("hapax.db").exists());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let place = Place::with_queue("");
    for arguments in [
        &["--help"][..],
        &["check"],
        &["check", "--json"],
        &["send", "orders", "x", "--id", "1"],
        &["status"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = host::hapax()
            .args(arguments)
            .current_dir(place.path())
            .stdin(Stdio::null())
            .stdout(writer)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
    // The message was sent nevertheless.
    let status = place.hapax(&["status", "--json"]).out;
    assert!(status.contains("\"backlog\":1"), "{status}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output_is_an_error() {
    let place = Place::with_queue("");
    let output = host::hapax()
        .arg("check")
        .current_dir(place.path())
        .stdout(
            std::fs::File::options()
                .write(true)
                .open("/dev/full")
                .unwrap(),
        )
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        "error: cannot write to standard output: No space left on device (os error 28)\n"
    );
}
