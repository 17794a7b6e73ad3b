//! What `hapax new` writes, and what it refuses.

use crate::place::Place;

const LANGUAGES: [&str; 6] = ["rust", "js", "ts", "python", "c", "go"];

#[test]
fn a_project_is_whole_in_every_language() {
    for language in LANGUAGES {
        let place = Place::new();
        let output = place.hapax("", &["new", "pay-out", "--lang", language]);
        assert_eq!((output.status.code(), output.err.as_str()), (Some(0), ""));
        assert!(
            output.out.contains("next:\n  cd pay-out\n  hapax build\n"),
            "{}",
            output.out
        );
        let folder = place.path().join("pay-out");
        for file in [
            ".gitignore",
            "README.md",
            "hapax.toml",
            "messages.jsonl",
            "expected.jsonl",
            "migrations/sqlite/0001_accounts.sql",
            "migrations/postgres/0001_accounts.sql",
            "sdk/LICENSE-MIT",
            "sdk/LICENSE-APACHE",
        ] {
            assert!(folder.join(file).is_file(), "{language}: {file}");
            // What is the author's is listed.
            assert_eq!(
                output.out.contains(&format!("  {file}\n")),
                !file.starts_with("sdk/"),
                "{}",
                output.out
            );
        }
        let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(readme.starts_with("# pay-out\n"), "{readme}");
        assert!(readme.lines().count() <= 12, "{readme}");
        // The name is where it belongs, and no placeholder is left.
        let config = std::fs::read_to_string(folder.join("hapax.toml")).unwrap();
        assert!(config.contains("[handlers.pay-out]"), "{config}");
        let left = std::process::Command::new("grep")
            .args(["-rl", "{{name}}", "."])
            .current_dir(&folder)
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&left.stdout), "", "{language}");
    }
}

#[test]
fn nothing_that_is_there_is_overwritten() {
    let place = Place::new();
    std::fs::create_dir(place.path().join("taken")).unwrap();
    std::fs::write(place.path().join("file"), "mine").unwrap();
    std::os::unix::fs::symlink("nowhere", place.path().join("link")).unwrap();
    for name in ["taken", "file", "link"] {
        let output = place.hapax("", &["new", name, "--lang", "rust"]);
        assert_eq!(output.status.code(), Some(1), "{}", output.out);
        assert_eq!(
            output.err,
            format!(
                "error: `{name}` is there already, and nothing is overwritten\nhint: choose another name, or remove it\n"
            )
        );
    }
    assert_eq!(
        std::fs::read_to_string(place.path().join("file")).unwrap(),
        "mine"
    );
    assert_eq!(
        std::fs::read_dir(place.path().join("taken"))
            .unwrap()
            .count(),
        0
    );
    assert!(!place.path().join("nowhere").exists());
}

#[test]
fn a_name_that_will_not_do_is_said_with_what_would() {
    let place = Place::new();
    for name in ["Credit", "2nd", "a b", "über", "a_b", "..", "hapax-guest"] {
        let output = place.hapax("", &["new", name, "--lang", "js"]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", output.out);
        assert!(
            output.err.contains(
                "cannot be a handler's name\nhint: use lower-case letters, digits and hyphens"
            ),
            "{}",
            output.err
        );
    }
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    let output = place.hapax("", &["new", "credit", "--lang", "cobol"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        output
            .err
            .contains("possible values: rust, js, ts, python, c, go"),
        "{}",
        output.err
    );
}

#[test]
fn a_path_leads_to_the_folder_and_its_last_part_is_the_name() {
    let place = Place::new();
    let output = place.hapax("", &["new", "tief er/ö/credit", "--lang", "c"]);
    assert!(output.status.success(), "{}", output.err);
    assert!(
        output.out.contains("  cd 'tief er/ö/credit'\n"),
        "{}",
        output.out
    );
    let built = place.hapax("tief er/ö/credit", &["build"]);
    assert!(built.status.success(), "{}", built.err);
}
