//! What is refused, and that nobody else notices.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use hapax::store::StoreKind;
use serde_json::{Value, json};

use crate::support::http::{Answer, Http};
use crate::support::scene::SourceSort;
use crate::{LOOPBACK, good, scene, start};

const JSON: (&str, &str) = ("Content-Type", "application/json");

#[tokio::test(flavor = "multi_thread")]
async fn paths_lead_nowhere_else() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let (_host, http) = start(&scene, &[LOOPBACK]);
    for path in [
        "/../../../../etc/passwd",
        "/..%2f..%2f..%2fetc%2fpasswd",
        "/api/../../etc/passwd",
        "/api/dead-letters/..%2f..%2f..%2fetc%2fpasswd",
        "/api/dead-letters/%2e%2e/%2e%2e/etc/passwd",
        "/api/dead-letters/%00",
        "/api/dead-letters/%ff%fe",
        "/api/dead-letters/1;2",
        "/api/dead-letters/99999999999999999999",
        "/api/outbox/..%5c..%5cwindows%5cwin.ini",
        "//etc/passwd",
        "/healthz/",
        "/HEALTHZ",
        "/healthz/../api/status",
        "/%2e%2e/healthz",
        "/api/",
    ] {
        let answer = http.get(path);
        assert!(
            [400, 404].contains(&answer.status),
            "{path}: {}",
            answer.text()
        );
        answer.code();
        assert!(!answer.text().contains("root:"), "{path}");
    }
    // Nor does a name in a body.
    let body = json!({ "source": "../../etc/passwd", "messages": [{ "payload": 1 }] });
    let answer = http.post("/api/send", &body);
    assert_eq!(
        (answer.status, answer.code()),
        (404, "not-found".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said_in_one_shape() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let (_host, http) = start(&scene, &[LOOPBACK]);
    let post = |path: &str, body: &str| http.ask("POST", path, &[JSON], body.as_bytes());
    let bad_json = [
        ("/api/prune", "", "EOF"),
        ("/api/prune", "{", "line 1 column 1"),
        ("/api/prune", "[]", "line 1"),
        (
            "/api/prune",
            "{}{}",
            "trailing characters at line 1 column 3",
        ),
        ("/api/prune", "{\"dry_run\": \"yes\"}", "at `dry_run`"),
        ("/api/prune", "{\"dryrun\": true}", "unknown field `dryrun`"),
        ("/api/prune", "\u{0}", "line 1 column 1"),
        (
            "/api/dead-letters/drop",
            "{\"numbers\": [1, \"2\"]}",
            "at `numbers[1]`",
        ),
        (
            "/api/dead-letters/drop",
            "{\"class\": \"tired\"}",
            "the classes are",
        ),
        (
            "/api/outbox/drop",
            "{\"state\": \"lost\"}",
            "the states are",
        ),
        (
            "/api/rewind",
            "{\"handler\": \"subject\", \"to\": \"soon\"}",
            "write a message's number",
        ),
        (
            "/api/send",
            "{\"source\": \"messages\", \"messages\": [{\"payload\": 1}, {\"id\": 2}]}",
            "at `messages[1].id`",
        ),
        (
            "/api/send",
            "{\"source\": \"messages\", \"messages\": [{\"payload_base64\": \"!\"}]}",
            "at `messages[0].payload_base64`",
        ),
    ];
    for (path, body, said) in bad_json {
        let answer = post(path, body);
        assert_eq!(
            (answer.status, answer.code()),
            (400, "bad-json".to_owned()),
            "{body}"
        );
        assert!(answer.text().contains(said), "{body}: {}", answer.text());
    }
    let deep = format!(
        "{{\"handler\":{}{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    assert_eq!(post("/api/prune", &deep).code(), "bad-json");
    for (path, body) in [
        ("/api/dead-letters/drop", "{}"),
        (
            "/api/dead-letters/drop",
            "{\"numbers\": [1], \"all\": true}",
        ),
        ("/api/outbox/republish", "{\"confirm\": true}"),
        (
            "/api/send",
            "{\"source\": \"messages\", \"messages\": [{}]}",
        ),
    ] {
        let answer = post(path, body);
        assert_eq!(
            (answer.status, answer.code()),
            (400, "bad-request".to_owned()),
            "{body}"
        );
    }
    for (path, said) in [
        ("/api/dead-letters?limit=x", "invalid digit"),
        ("/api/dead-letters?limt=1", "unknown field `limt`"),
        ("/api/dead-letters?since=yesterday", "write a time"),
        ("/api/outbox?state=lost", "the states are"),
        ("/api/check?database=perhaps", "true"),
    ] {
        let answer = http.get(path);
        assert_eq!(
            (answer.status, answer.code()),
            (400, "bad-request".to_owned()),
            "{path}"
        );
        assert!(answer.text().contains(said), "{path}: {}", answer.text());
    }
    let typed = |kind: &str| {
        http.ask(
            "POST",
            "/api/prune",
            &[("Content-Type", kind)],
            b"{\"dry_run\": true}",
        )
    };
    assert_eq!(typed("text/json").code(), "unsupported-media-type");
    assert_eq!(http.ask("POST", "/api/prune", &[], b"{}").status, 415);
    assert_eq!(typed("application/json; charset=utf-8").status, 200);
    for (method, path) in [
        ("POST", "/api/status"),
        ("GET", "/api/prune"),
        ("PUT", "/metrics"),
    ] {
        let answer = http.ask(method, path, &[JSON], b"{}");
        assert_eq!(
            (answer.status, answer.code()),
            (405, "method-not-allowed".to_owned())
        );
        assert!(answer.head.contains("\nallow: "), "{}", answer.head);
    }
    for path in [
        "/api/dead-letters/7",
        "/api/outbox/7",
        "/api/dead-letters/7/payload",
    ] {
        let answer = http.get(path);
        assert_eq!(
            (answer.status, answer.code()),
            (404, "not-found".to_owned())
        );
        assert!(answer.json()["error"]["hint"].is_string());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_bounded() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let (_host, http) = start(&scene, &[LOOPBACK]);
    let padded = |bytes: usize| {
        let mut body = b"{\"dry_run\": true".to_vec();
        body.resize(bytes - 1, b' ');
        body.push(b'}');
        body
    };
    let post = |path: &str, body: &[u8]| http.ask("POST", path, &[JSON], body);
    assert_eq!(post("/api/prune", &padded(1 << 20)).status, 200);
    let answer = post("/api/prune", &padded((1 << 20) + 1));
    assert_eq!(
        (answer.status, answer.code()),
        (413, "too-large".to_owned())
    );
    let answer = post("/api/send", &padded((16 << 20) + 1));
    assert_eq!(
        (answer.status, answer.code()),
        (413, "too-large".to_owned())
    );

    // What is only announced is refused before it is sent.
    let mut stream = http.connect();
    write!(
        stream,
        "POST /api/prune HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000000000000\r\n\
         Connection: close\r\n\r\n"
    )
    .unwrap();
    assert_eq!(Answer::read(&mut stream).unwrap().status, 413);

    // And what is not announced, when it is too much.
    let mut stream = http.connect();
    write!(
        stream,
        "POST /api/prune HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\
         Connection: close\r\n\r\n"
    )
    .unwrap();
    let chunk = vec![b' '; 64 << 10];
    for _ in 0..20 {
        write!(stream, "{:x}\r\n", chunk.len()).unwrap();
        stream.write_all(&chunk).unwrap();
        write!(stream, "\r\n").unwrap();
    }
    write!(stream, "0\r\n\r\n").unwrap();
    assert_eq!(Answer::read(&mut stream).unwrap().status, 413);

    // Nor may a head be endless, or half of a body be taken for the whole.
    let mut stream = http.connect();
    let long = "x".repeat(128 << 10);
    // It is cut off while it talks.
    let _ = write!(
        stream,
        "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: {long}\r\n\r\n"
    );
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(
        !answer.starts_with(b"HTTP/1.1 200"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    let mut stream = http.connect();
    write!(
        stream,
        "POST /api/prune HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{}}"
    )
    .unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(!answer.contains(" 200 "), "{answer}");
    assert_eq!(http.get("/healthz").status, 200);
}

/// Opens a connection and begins to say something.
fn begin(http: &Http, text: &str) -> TcpStream {
    let mut stream = http.connect();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_cut_off_and_keep_nobody_waiting() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let (host, http) = start(&scene, &[LOOPBACK]);
    let heads: Vec<TcpStream> = (0..150)
        .map(|number| match number % 3 {
            0 => begin(&http, ""),
            1 => begin(&http, "GET /heal"),
            _ => begin(
                &http,
                "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ",
            ),
        })
        .collect();
    let bodies: Vec<TcpStream> = (0..20)
        .map(|_| {
            begin(
                &http,
                "POST /api/prune HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\
                 Connection: close\r\n\r\n{",
            )
        })
        .collect();
    // Others are served meanwhile, and messages run.
    for _ in 0..20 {
        assert_eq!(http.get("/healthz").status, 200);
    }
    assert_eq!(http.get("/api/status").status, 200);
    scene.publish(&[good("a"), good("b")]).await;
    scene.wait_until_nothing_pends().await;
    for mut stream in heads {
        let mut answer = Vec::new();
        // An end, or a reset: in any case it does not wait for more.
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
        assert!(
            !answer.starts_with(b"HTTP/1.1 200"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    for mut stream in bodies {
        let answer = Answer::read(&mut stream).unwrap();
        assert_eq!((answer.status, answer.code()), (408, "timeout".to_owned()));
    }
    host.terminate();
    host.wait_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_over_a_request_is_an_answer_and_no_end() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let panics = [
        LOOPBACK,
        ("HAPAX_FAULT_POINT", "admin-request:2"),
        ("HAPAX_FAULT_ACTION", "panic"),
    ];
    let (host, http) = start(&scene, &panics);
    assert_eq!(http.get("/api/status").status, 200);
    let answer = http.get("/api/status");
    assert_eq!((answer.status, answer.code()), (500, "bug".to_owned()));
    scene.publish(&[good("a")]).await;
    scene.wait_until_nothing_pends().await;
    let status: Value = http.get_json("/api/status");
    assert_eq!(status["handlers"][0]["name"], "subject");
    host.terminate();
    host.wait_well();
}
