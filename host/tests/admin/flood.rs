//! A thousand who ask at once: all are answered, and messages run meanwhile. What that costs `cargo xtask bench` measures.

use std::io::Write as _;
use std::net::TcpStream;

use hapax::store::StoreKind;

use crate::support::http::Answer;
use crate::support::scene::SourceSort;
use crate::{LOOPBACK, good, scene, start};

const REQUESTS: usize = 1_000;
const MESSAGES: usize = 500;

async fn a_thousand_at_once(kind: StoreKind) {
    // Each is a file of this process.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = Some(4_096).min(files.maximum.or(Some(4_096)));
    if files.current < wanted {
        let raised = rustix::process::Rlimit {
            current: wanted,
            maximum: files.maximum,
        };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    }
    let scene = scene(kind, SourceSort::Queue).await;
    let (host, http) = start(&scene, &[LOOPBACK]);
    let messages: Vec<_> = (0..MESSAGES)
        .map(|number| good(&number.to_string()))
        .collect();
    scene.publish(&messages).await;
    let asked: Vec<(&str, TcpStream)> = (0..REQUESTS)
        .map(|number| {
            let path = ["/healthz", "/metrics", "/api/status", "/api/dead-letters"][number % 4];
            let mut stream = http.connect();
            write!(stream, "GET {path} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n").unwrap();
            (path, stream)
        })
        .collect();
    let mut served = 0;
    for (path, mut stream) in asked {
        let answer = Answer::read(&mut stream).unwrap();
        match answer.status {
            200 => served += 1,
            503 if path != "/healthz" => {
                assert_eq!(answer.code(), "busy");
                assert!(answer.head.contains("retry-after: "), "{}", answer.head);
            }
            other => panic!("{path}: {other}: {}", answer.text()),
        }
    }
    // All that ask for health, and of the others at least some.
    assert!(served > REQUESTS / 4, "{served}");
    scene.wait_until_nothing_pends().await;
    let effects = scene.store.number("SELECT count(*) FROM effects").await;
    assert_eq!(effects, MESSAGES as i64);
    assert_eq!(http.get("/api/status").status, 200);
    host.terminate();
    host.wait_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_at_once_are_answered_on_sqlite() {
    a_thousand_at_once(StoreKind::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_at_once_are_answered_on_postgres() {
    a_thousand_at_once(StoreKind::Postgres).await;
}
