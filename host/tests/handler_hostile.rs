//! Components written against the host by hand: whatever a guest does, the call ends with a verdict and the `Tx` comes back.

#![expect(clippy::unwrap_used, reason = "a test may fail where it stands")]

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use hapax::handler::{Called, Handler, HandlerOptions, Limits, Runtime, RuntimeOptions, Verdict};
use hapax::message::{Incoming, Message, MessageId, Position};
use hapax::store::{SessionOptions, Store, Tx};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

const ALLOCATOR: &str = r#"
    (global $next (mut i32) (i32.const 4096))
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
        global.get $next
        (global.set $next (i32.and (i32.add (i32.add (global.get $next) (local.get 3)) (i32.const 15)) (i32.const -16))))
"#;

/// Makes a component of the body of a core module; `handle` takes the address of the message and returns that of its result.
fn component(imports: &str, body: &str) -> Vec<u8> {
    component_in(StringEncoding::UTF8, imports, body)
}

fn component_in(encoding: StringEncoding, imports: &str, body: &str) -> Vec<u8> {
    let text = format!(r#"(module {imports} (memory (export "memory") 4) {body})"#);
    let mut module = wat::parse_str(text).unwrap();
    let mut resolve = Resolve::default();
    let wit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../wit");
    let (package, _) = resolve.push_path(wit).unwrap();
    let world = resolve.select_world(&[package], Some("handler")).unwrap();
    embed_component_metadata(&mut module, &resolve, world, encoding).unwrap();
    ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .unwrap()
        .encode()
        .unwrap()
}

/// As `component`, with an allocator that works and a `handle` of these instructions.
fn handling(imports: &str, instructions: &str) -> Vec<u8> {
    component(
        imports,
        &format!(
            r#"{ALLOCATOR} (func $handle (export "handle") (param i32) (result i32) {instructions})"#
        ),
    )
}

fn handler(component: &[u8]) -> Handler {
    let runtime = Runtime::new(&RuntimeOptions {
        calls_max: 1,
        memory_max_bytes: 16 << 20,
    })
    .unwrap();
    let options = HandlerOptions {
        name: "hostile".into(),
        consumer: "hostile".into(),
        limits: Limits {
            memory_bytes: 16 << 20,
            cpu: Duration::from_millis(200),
            time: Duration::from_secs(60),
            rows: 10,
            ..Limits::DEFAULT
        },
        config: [("a".to_owned(), "b".to_owned())].into(),
        targets: Default::default(),
    };
    Handler::new(
        runtime.load_blocking("hostile.wasm", component).unwrap(),
        options,
    )
    .unwrap()
}

async fn begin(folder: &Path) -> Tx {
    let url = format!("sqlite:{}", folder.join("test.db").display());
    let options = SessionOptions {
        purpose: "test".into(),
        statement_timeout: None,
        lock_timeout: Duration::from_secs(10),
        idle_in_transaction: Duration::from_secs(60),
    };
    let connection = Store::open(&url).unwrap().connect(&options).await.unwrap();
    Tx::begin(connection).await.unwrap()
}

async fn call(handler: &Handler) -> Verdict {
    let folder = tempfile::tempdir().unwrap();
    let message = Message {
        id: MessageId::new("m").unwrap(),
        source: "s".into(),
        incoming: Incoming {
            subject: "subject".into(),
            headers: Vec::new(),
            content_type: None,
            payload: Bytes::from_static(b"payload"),
            published_at: None,
            position: Position("1".into()),
            queue_id: None,
        }
        .into(),
    };
    let Called { tx, verdict, .. } = handler
        .call(begin(folder.path()).await, &message, None, 1)
        .await;
    let mut tx = tx.unwrap();
    assert_eq!(tx.query("SELECT 1", &[], 1).await.unwrap().rows.len(), 1);
    tx.rollback().await.unwrap();
    verdict
}

/// Calls a component once and returns the trap's text.
async fn trap(component: &[u8]) -> String {
    match call(&handler(component)).await {
        Verdict::Trap { text } => text,
        other => panic!("{other:?}"),
    }
}

/// The address of a result that says ok: zeros.
const OK: &str = "i32.const 2048";

#[tokio::test]
async fn nothing_stays_from_one_call_to_the_next() {
    let counts = format!(
        r#"{ALLOCATOR}
        (global $calls (mut i32) (i32.const 0))
        (func (export "handle") (param i32) (result i32)
            (if (i32.or (global.get $calls) (i32.load (i32.const 3000))) (then unreachable))
            (global.set $calls (i32.const 1))
            (i32.store (i32.const 3000) (i32.const 1))
            {OK})"#
    );
    let handler = handler(&component("", &counts));
    for _ in 0..10 {
        assert_eq!(call(&handler).await, Verdict::Ok);
    }
}

#[tokio::test]
async fn a_handler_goes_on_after_a_trap() {
    // The second call of one instance would be refused by wasmtime itself.
    let handler = handler(&handling("", "unreachable"));
    for _ in 0..3 {
        let verdict = call(&handler).await;
        assert!(
            matches!(&verdict, Verdict::Trap { text } if text.contains("`unreachable` instruction")),
            "{verdict:?}"
        );
    }
}

#[tokio::test]
async fn a_loop_in_the_start_function_meets_the_cpu_limit() {
    let body = format!(
        r#"{ALLOCATOR} (func $start (loop br 0)) (start $start)
        (func (export "handle") (param i32) (result i32) {OK})"#
    );
    let verdict = call(&handler(&component("", &body))).await;
    assert!(
        matches!(verdict, Verdict::Limit { limit: "cpu", .. }),
        "{verdict:?}"
    );
}

/// The host is not to blame for it: it would run again for ever, charged to nobody.
#[tokio::test]
async fn a_call_of_the_host_that_fails_in_the_start_function_is_a_trap() {
    let drop =
        r#"(import "hapax:handler/sql@0.1.0" "[resource-drop]savepoint" (func $drop (param i32)))"#;
    let body = format!(
        r#"{ALLOCATOR} (func $start (call $drop (i32.const 7))) (start $start)
        (func (export "handle") (param i32) (result i32) {OK})"#
    );
    trap(&component(drop, &body)).await;
}

#[tokio::test]
async fn a_loop_in_the_allocator_meets_the_cpu_limit() {
    let body = format!(
        r#"(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (loop br 0) unreachable)
        (func (export "handle") (param i32) (result i32) {OK})"#
    );
    let verdict = call(&handler(&component("", &body))).await;
    assert!(
        matches!(verdict, Verdict::Limit { limit: "cpu", .. }),
        "{verdict:?}"
    );
}

#[tokio::test]
async fn the_call_stack_is_bounded() {
    let text = trap(&handling("", "(call $handle (local.get 0))")).await;
    assert!(text.contains("call stack exhausted"), "{text}");
    // Hundreds of frames of one function are one line.
    assert!(text.lines().count() < 5, "{text}");
}

#[tokio::test]
async fn an_allocator_that_lies_is_a_trap() {
    for address in ["-16", "1", "0x7fffffff"] {
        let body = format!(
            r#"(func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) i32.const {address})
            (func (export "handle") (param i32) (result i32) {OK})"#
        );
        trap(&component("", &body)).await;
    }
}

#[tokio::test]
async fn a_result_that_is_none_is_a_trap() {
    for instructions in [
        // Beyond the memory, unaligned, and a case that does not exist.
        "i32.const -8",
        "i32.const 2049",
        "(i32.store8 (i32.const 2048) (i32.const 7)) i32.const 2048",
        // A rejection whose text is longer than the memory, and one that is not UTF-8.
        "(i32.store8 (i32.const 2048) (i32.const 1)) (i32.store8 (i32.const 2056) (i32.const 1))
         (i32.store (i32.const 2068) (i32.const -1)) (i32.store (i32.const 2064) (i32.const 0)) i32.const 2048",
        "(i32.store8 (i32.const 2048) (i32.const 1)) (i32.store8 (i32.const 2056) (i32.const 1))
         (i32.store (i32.const 2064) (i32.const 3000)) (i32.store (i32.const 2068) (i32.const 1))
         (i32.store8 (i32.const 3000) (i32.const 0xff)) i32.const 2048",
    ] {
        trap(&handling("", instructions)).await;
    }
}

/// Half of a pair stands for no character, in whichever encoding a guest keeps its texts.
#[tokio::test]
async fn a_lone_surrogate_in_a_text_is_a_trap() {
    // A rejection whose text is U+D800, as three bytes and as one unit.
    for (encoding, length, units) in [
        (
            StringEncoding::UTF8,
            3,
            "(i32.store (i32.const 3000) (i32.const 0x0080a0ed))",
        ),
        (
            StringEncoding::UTF16,
            1,
            "(i32.store16 (i32.const 3000) (i32.const 0xd800))",
        ),
    ] {
        let instructions = format!(
            "(i32.store8 (i32.const 2048) (i32.const 1)) (i32.store8 (i32.const 2056) (i32.const 1))
             (i32.store (i32.const 2064) (i32.const 3000)) (i32.store (i32.const 2068) (i32.const {length}))
             {units} i32.const 2048"
        );
        let body = format!(
            r#"{ALLOCATOR} (func $handle (export "handle") (param i32) (result i32) {instructions})"#
        );
        trap(&component_in(encoding, "", &body)).await;
    }
}

#[tokio::test]
async fn arguments_that_are_none_are_traps() {
    let log =
        r#"(import "hapax:handler/log@0.1.0" "write" (func $write (param i32 i32 i32 i32 i32)))"#;
    for arguments in [
        // A level that does not exist; a text, and then fields, beyond the memory; a text that is not UTF-8.
        "(i32.const 9) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)",
        "(i32.const 0) (i32.const 0) (i32.const -1) (i32.const 0) (i32.const 0)",
        "(i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0x7fffffff)",
        "(i32.const 0) (i32.const 3000) (i32.const 1) (i32.const 0) (i32.const 0)",
    ] {
        trap(&handling(
            log,
            &format!(
                "(i32.store8 (i32.const 3000) (i32.const 0xff)) (call $write {arguments}) {OK}"
            ),
        ))
        .await;
    }
    let execute = r#"(import "hapax:handler/sql@0.1.0" "execute" (func $execute (param i32 i32 i32 i32 i32)))"#;
    // Four million parameters that are all NULL, in zeroed memory; then one of a case that does not exist.
    trap(&handling(
        execute,
        &format!(
            "(drop (memory.grow (i32.const 200))) (call $execute (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 4000000) (i32.const 2048)) {OK}"
        ),
    ))
    .await;
    trap(&handling(
        execute,
        &format!(
            "(i32.store8 (i32.const 3000) (i32.const 200)) (call $execute (i32.const 0) (i32.const 0) (i32.const 3000) (i32.const 1) (i32.const 2048)) {OK}"
        ),
    ))
    .await;
}

#[tokio::test]
async fn handles_that_were_never_given_are_traps() {
    for (import, arguments) in [
        (
            "[method]savepoint.release\" (func $f (param i32 i32))",
            "(i32.const 1) (i32.const 2048)",
        ),
        (
            "[method]cursor.columns\" (func $f (param i32 i32))",
            "(i32.const 0) (i32.const 2048)",
        ),
        (
            "[resource-drop]savepoint\" (func $f (param i32))",
            "(i32.const 7)",
        ),
    ] {
        let import = format!("(import \"hapax:handler/sql@0.1.0\" \"{import})");
        trap(&handling(&import, &format!("(call $f {arguments}) {OK}"))).await;
    }
}

#[tokio::test]
async fn growth_beyond_the_limit_is_refused_and_told_if_the_guest_then_traps() {
    let grow = "(if (i32.ne (memory.grow (i32.const 1000)) (i32.const -1)) (then (loop br 0)))";
    let verdict = call(&handler(&handling("", &format!("{grow} unreachable")))).await;
    assert!(
        matches!(&verdict, Verdict::Limit { limit: "memory", text } if text.contains("16MiB (`limits.memory`)")),
        "{verdict:?}"
    );
    // A guest that copes with it goes on.
    let verdict = call(&handler(&handling("", &format!("{grow} {OK}")))).await;
    assert_eq!(verdict, Verdict::Ok);
    let table = format!(
        r#"{ALLOCATOR} (table $t 1 funcref)
        (func (export "handle") (param i32) (result i32)
            (if (i32.ne (table.grow $t (ref.null func) (i32.const 200000)) (i32.const -1)) (then (loop br 0)))
            unreachable)"#
    );
    let verdict = call(&handler(&component("", &table))).await;
    assert!(
        matches!(&verdict, Verdict::Limit { limit: "table", text } if text.contains("100000 (`limits.table`)")),
        "{verdict:?}"
    );
}
