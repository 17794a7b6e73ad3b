//! Every way in which a file fails to be a handler is told apart: what it wants, what the host has, what to do.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod support;

use hapax::handler::{Component, LoadError, Runtime, RuntimeOptions, World};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use support::wit::Wit;

fn runtime() -> Runtime {
    Runtime::new(&RuntimeOptions {
        calls_max: 2,
        memory_max_bytes: 64 << 20,
    })
    .unwrap()
}

fn refused(bytes: &[u8]) -> LoadError {
    runtime().load_blocking("h.wasm", bytes).unwrap_err()
}

#[track_caller]
fn assert_refused(bytes: &[u8], problem: &str, hint: &str) {
    let error = refused(bytes);
    assert_eq!(
        (error.problem.as_str(), error.hint.as_str()),
        (problem, hint)
    );
}

fn loaded(bytes: &[u8]) -> Component {
    runtime().load_blocking("h.wasm", bytes).unwrap()
}

#[test]
fn a_component_for_the_world_handler_is_loaded_and_described() {
    let bytes = Wit::new().component("handler");
    let component = loaded(&bytes);
    let info = component.info();
    assert_eq!(info.size_bytes, bytes.len());
    assert_eq!(info.contract_version, "0.1.0");
    assert_eq!(info.world, World::Handler);
    assert_eq!(
        info.imports,
        [
            "hapax:handler/config@0.1.0",
            "hapax:handler/log@0.1.0",
            "hapax:handler/outbox@0.1.0",
            "hapax:handler/sql@0.1.0"
        ]
    );
    assert_eq!(info.digest, component.digest());
    assert_eq!(info.digest.to_string().len(), 64);
}

#[test]
fn an_empty_file_is_refused() {
    assert_refused(
        b"",
        "`h.wasm` is empty; a handler is a Wasm component",
        "build it again: the build was interrupted, or wrote to another place",
    );
}

#[test]
fn bytes_that_are_not_wasm_are_refused() {
    let problem = "`h.wasm` is not Wasm: it does not begin with the bytes `00 61 73 6d`; a handler is a Wasm component";
    let hint = "build a component for a world in `wit/`, `handler` or `batch-handler`, and give the path of that file";
    assert_refused(b"\x7f\x12\x99\x00\xff", problem, hint);
    assert_refused(b"#!/bin/sh\n", problem, hint);
    assert_refused(
        b"  (component)",
        "`h.wasm` is Wasm in its text form; a handler is a Wasm component in binary form",
        "make it binary with `wasm-tools parse`",
    );
}

#[test]
fn a_core_module_is_refused() {
    assert_refused(
        &Wit::new().module("handler"),
        "`h.wasm` is a core Wasm module; a handler is a Wasm component",
        "run the component step of the build, such as `wasm-tools component new h.wasm -o handler.wasm`",
    );
}

#[test]
fn a_damaged_component_is_refused() {
    let bytes = Wit::new().component("handler");
    assert_refused(
        &bytes[..6],
        "`h.wasm` ends after 6 bytes",
        "build it again: the build was interrupted",
    );
    let error = refused(&bytes[..bytes.len() / 2]);
    assert!(
        error
            .problem
            .starts_with("`h.wasm` is not a valid component: "),
        "{}",
        error.problem
    );
    let mut encoding = bytes;
    encoding[4] = 0x77;
    let error = refused(&encoding);
    assert_eq!(
        error.problem,
        "`h.wasm` is Wasm of an encoding that this host does not know; a handler is a Wasm component"
    );
}

#[test]
fn a_component_for_another_version_of_the_contract_is_refused_before_anything_else() {
    for version in ["0.2.0", "1.0.0", "0.1.0-rc.1"] {
        // It wants an import besides that this host does not provide; the version explains it.
        let wit = Wit::new()
            .with_version(version)
            .replace(
                "worlds.wit",
                "import config;",
                "import config; import extra;",
            )
            .add("extra.wit", "interface extra { f: func(); }");
        assert_refused(
            &wit.component("handler"),
            &format!(
                "cannot link `h.wasm`: it was built for `hapax:handler@{version}`; this host provides `hapax:handler@0.1.0`"
            ),
            &format!(
                "rebuild it against the `wit/` of this host's release, or run a host that provides `hapax:handler@{version}`"
            ),
        );
    }
}

#[test]
fn a_later_patch_of_the_contract_is_loaded_unless_it_uses_what_was_added() {
    let wit = Wit::new().with_version("0.1.7");
    assert_eq!(
        loaded(&wit.component("handler")).info().contract_version,
        "0.1.7"
    );
    let wit = wit
        .replace(
            "worlds.wit",
            "import config;",
            "import config; import replies;",
        )
        .add(
            "replies.wit",
            "interface replies { reply: func(text: string); }",
        );
    assert_refused(
        &wit.component("handler"),
        "cannot link `h.wasm`: this host does not provide import `hapax:handler/replies@0.1.7`; it provides `hapax:handler@0.1.0` with `sql`, `outbox`, `log`, `config`",
        "it was built against a newer release: run a newer host, or rebuild it against this host's `wit/`",
    );
}

#[test]
fn an_unknown_import_is_named() {
    assert_refused(
        &Wit::new().with_unknown_import().component("handler"),
        "cannot link `h.wasm`: this host does not provide import `acme:mail/send@1.0.0`; it provides `hapax:handler@0.1.0` with `sql`, `outbox`, `log`, `config`",
        "rebuild against the interfaces in `wit/`, or remove the import",
    );
}

#[test]
fn of_wasi_only_the_closed_one_is_granted() {
    let with = |packages: &str, imports: &str| {
        Wit::new().add("deps/wasi/wasi.wit", packages).replace(
            "worlds.wit",
            "import config;",
            &format!("import config; {imports}"),
        )
    };
    // An older patch of it, which is there.
    let cli =
        "package wasi:cli@0.2.6; interface environment { get-arguments: func() -> list<string>; }";
    let granted = with(cli, "import wasi:cli/environment@0.2.6;");
    assert!(
        loaded(&granted.component("handler"))
            .info()
            .imports
            .contains(&"wasi:cli/environment@0.2.6".to_owned())
    );
    // What it has, as something else than it has.
    let other =
        "package wasi:cli@0.2.6; interface environment { get-arguments: func() -> string; }";
    let error = refused(&with(other, "import wasi:cli/environment@0.2.6;").component("handler"));
    assert!(
        error.problem.starts_with(
            "cannot link `h.wasm`: it does not fit `hapax:handler@0.1.0` or its closed WASI 0.2"
        ),
        "{}",
        error.problem
    );
    let wit = with(
        "package wasi:http@0.2.6; interface types { f: func(); } interface outgoing-handler { f: func(); }",
        "import wasi:http/types@0.2.6; import wasi:http/outgoing-handler@0.2.6;",
    );
    assert_refused(
        &wit.component("handler"),
        "cannot link `h.wasm`: this host does not provide imports `wasi:http/types@0.2.6`, `wasi:http/outgoing-handler@0.2.6`; it provides `hapax:handler@0.1.0` with `sql`, `outbox`, `log`, `config`",
        "a handler gets a closed WASI 0.2 (`wasi:cli`, `clocks`, `filesystem`, `io`, `random`, `sockets`, with nothing behind them); build it without the others",
    );
}

#[test]
fn a_component_without_handle_is_refused() {
    let wit = Wit::new().add(
        "other.wit",
        "world other { import sql; export run: func(); } world silent { import sql; }",
    );
    let hint =
        "build it for a world in `wit/`: `handler`, or `batch-handler` for many messages a call";
    assert_refused(
        &wit.component("other"),
        "cannot link `h.wasm`: it exports neither the function `handle` nor `handle-batch`, of which this host calls one; it exports `run`",
        hint,
    );
    assert_refused(
        &wit.component("silent"),
        "cannot link `h.wasm`: it exports neither the function `handle` nor `handle-batch`, of which this host calls one; it exports nothing",
        hint,
    );
}

#[test]
fn a_component_for_the_world_batch_handler_is_loaded_and_described() {
    let component = loaded(&Wit::new().component("batch-handler"));
    let info = component.info();
    assert_eq!(info.world, World::BatchHandler);
    assert_eq!(
        info.imports,
        [
            "hapax:handler/batch-log@0.1.0",
            "hapax:handler/batch-outbox@0.1.0",
            "hapax:handler/config@0.1.0",
            "hapax:handler/sql@0.1.0"
        ]
    );
}

#[test]
fn a_component_for_both_worlds_is_refused() {
    let wit = Wit::new().add(
        "other.wit",
        "world both { use types.{message, failure}; export handle: func(message: message) -> result<_, failure>; \
         export handle-batch: func(messages: list<message>) -> list<result<_, failure>>; }",
    );
    assert_refused(
        &wit.component("both"),
        "cannot link `h.wasm`: it exports both `handle` and `handle-batch`; this host calls one of them",
        "build it for one world of `wit/`: `handler` takes one message a call, `batch-handler` many",
    );
}

/// Its lines could not be told whose they are.
#[test]
fn the_interfaces_of_the_other_world_are_refused() {
    let wit = Wit::new().add(
        "other.wit",
        "world mixed { import log; use types.{message, failure}; \
         export handle-batch: func(messages: list<message>) -> list<result<_, failure>>; }",
    );
    assert_refused(
        &wit.component("mixed"),
        "cannot link `h.wasm`: this host does not provide import `hapax:handler/log@0.1.0` to a handler of batches; it provides `hapax:handler@0.1.0` with `sql`, `batch-outbox`, `batch-log`, `config`",
        "it exports `handle-batch`: use `batch-outbox` and `batch-log`, which name the member of the batch",
    );
    let wit = Wit::new().add(
        "other.wit",
        "world mixed { import batch-log; use types.{message, failure}; \
         export handle: func(message: message) -> result<_, failure>; }",
    );
    let error = refused(&wit.component("mixed"));
    assert!(error.hint.contains("`outbox` and `log`"), "{error:?}");
}

#[test]
fn a_wrong_type_is_named() {
    let hint = "rebuild it against the `wit/` of this host's release";
    let wit = Wit::new().add(
        "other.wit",
        "world other { export handle: func(text: string) -> string; }",
    );
    let error = refused(&wit.component("other"));
    assert!(
        error.problem.starts_with(
            "cannot link `h.wasm`: it does not fit `hapax:handler@0.1.0`, which this host provides: type-checking export func `handle`"
        ),
        "{}",
        error.problem
    );
    assert_eq!(error.hint, hint);

    for (from, to) in [
        (
            "execute: func(statement: string, params: list<value>) -> result<u64, error>",
            "execute: func(statement: string, params: list<value>) -> result<u32, error>",
        ),
        (
            "open-cursor: func(",
            "explain: func(statement: string) -> string; open-cursor: func(",
        ),
    ] {
        let wit = Wit::new().replace("sql.wit", from, to);
        let error = refused(&wit.component("handler"));
        assert!(
            error.problem.contains("`hapax:handler/sql@0.1.0`")
                && (error.problem.contains("`execute`") || error.problem.contains("`explain`")),
            "{}",
            error.problem
        );
        assert_eq!(error.hint, hint);
    }
}

#[test]
fn an_async_handle_is_refused() {
    let wit = Wit::new().replace(
        "worlds.wit",
        "export handle: func(",
        "export handle: async func(",
    );
    let error = refused(&wit.component("handler"));
    assert!(error.hint.contains("handler"), "{error:?}");
    assert!(error.problem.contains("async"), "{error:?}");
}

#[test]
fn bytes_changed_at_random_are_refused_or_loaded_but_never_panic() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let runtime = runtime();
    let original = Wit::new().component("handler");
    let mut refused = 0;
    for _ in 0..1_000 {
        let mut bytes = original.clone();
        for _ in 0..random.random_range(1..=8) {
            let at = random.random_range(0..bytes.len());
            bytes[at] = random.random();
        }
        if random.random_ratio(1, 8) {
            bytes.truncate(random.random_range(0..bytes.len()));
        }
        if let Err(error) = runtime.load_blocking("h.wasm", &bytes) {
            assert!(!error.problem.contains("the compiler failed"), "{error:?}");
            assert!(error.problem.len() < 8_000);
            refused += 1;
        }
    }
    assert!(refused > 0);
}

#[tokio::test]
async fn files_are_read_off_the_async_threads() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = runtime();
    let path = folder.path().join("missing.wasm");
    let error = runtime.load_file(&path).await.unwrap_err();
    assert!(
        error
            .problem
            .starts_with(&format!("cannot read `{}`: ", path.display())),
        "{error:?}"
    );
    let error = runtime.load_file(folder.path()).await.unwrap_err();
    assert!(error.problem.contains("directory"), "{error:?}");
    let path = folder.path().join("h.wasm");
    std::fs::write(&path, Wit::new().component("handler")).unwrap();
    runtime.load_file(&path).await.unwrap();
    std::fs::write(&path, b"").unwrap();
    let error = runtime.load_file(&path).await.unwrap_err();
    assert!(
        error
            .problem
            .ends_with("is empty; a handler is a Wasm component")
    );
    let bytes = Wit::new().component("handler");
    runtime.load("h.wasm", bytes).await.unwrap();
}
