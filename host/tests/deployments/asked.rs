//! How it is asked for: what can't be meant, what is too large, and who may.

use std::io::Write as _;

use hapax::store::StoreKind;

use crate::support::host::run_with;
use crate::support::http::{Answer, Http};
use crate::support::scene::credit_account;
use crate::{Asked, credit, digest, done_by, scene};

const BY: (&str, &str) = ("X-Hapax-By", "tester@here");
const JSON: (&str, &str) = ("Content-Type", "application/json");
const FORM: (&str, &str) = ("Content-Type", "multipart/form-data; boundary=b");
const TOKEN: &str = "correct-horse-battery-staple";

/// A form of these parts: name, file name, content.
fn form(parts: &[(&str, &str, &[u8])]) -> Vec<u8> {
    let mut body = Vec::new();
    for (name, file, content) in parts {
        let head = format!(
            "--b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{file}\"\r\n\r\n"
        );
        body.extend([head.as_bytes(), content, b"\r\n"].concat());
    }
    body.extend(b"--b--\r\n");
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn what_can_not_be_meant_changes_nothing() {
    let scene = scene(StoreKind::Sqlite).await;
    let host = Asked::start(&scene, &[]);
    let http = host.http();
    let component = std::fs::read(credit_account()).unwrap();
    let post = |what: &str, headers: &[(&str, &str)], body: &[u8]| {
        let answer = http.ask(
            "POST",
            &format!("/api/handlers/subject/{what}"),
            headers,
            body,
        );
        (answer.status, answer.code(), answer.text())
    };
    let long_by = ("X-Hapax-By", &"x".repeat(201)[..]);
    for (what, body) in [("pause", &b"{}"[..]), ("deploy", &component)] {
        for by in [None, Some(("X-Hapax-By", " ")), Some(long_by)] {
            let headers: Vec<_> = [JSON].into_iter().chain(by).collect();
            let (status, code, text) = post(what, &headers, body);
            assert_eq!((status, &code[..]), (400, "bad-request"), "{text}");
            assert!(text.contains("X-Hapax-By"), "{text}");
        }
    }
    for (what, headers, body, expected, said) in [
        (
            "pause",
            &[BY, JSON][..],
            &b"{\"now\": true}"[..],
            (400, "bad-json"),
            "`now`",
        ),
        (
            "pause",
            &[BY],
            b"{}",
            (415, "unsupported-media-type"),
            "application/json",
        ),
        (
            "remove",
            &[BY, JSON],
            b"{}",
            (428, "not-confirmed"),
            "would wait",
        ),
        (
            "rollback",
            &[BY, JSON],
            b"{\"digest\": \"abc\"}",
            (400, "bad-request"),
            "first digits",
        ),
        ("rollback", &[BY, JSON], b"{}", (409, "refused"), "hint"),
        ("deploy", &[BY], b"", (422, "unusable"), "hint"),
        (
            "deploy",
            &[BY],
            &component[..100],
            (422, "unusable"),
            "not a valid component",
        ),
        (
            "deploy",
            &[BY, FORM],
            b"no form",
            (400, "bad-request"),
            "one file `component`",
        ),
        (
            "deploy",
            &[BY, FORM],
            &form(&[]),
            (400, "bad-request"),
            "no part `component`",
        ),
        (
            "deploy",
            &[BY, FORM],
            &form(&[("component", "a", &component), ("componant", "b", b"x")]),
            (400, "bad-request"),
            "a part `componant` too many",
        ),
        (
            "deploy",
            &[BY, FORM],
            &form(&[
                ("component", "a", &component),
                ("component", "b", &component),
            ]),
            (400, "bad-request"),
            "a part `component` too many",
        ),
        (
            "deploy",
            &[BY, FORM],
            &form(&[
                ("component", "a", &component),
                ("migrations", "0001_a.sql", b"\xff"),
            ]),
            (400, "bad-request"),
            "`0001_a.sql` is not UTF-8",
        ),
        (
            "deploy",
            &[BY, FORM],
            &form(&[
                ("component", "a", &component),
                ("migrations", "0001_a.sql", b"CREATE TABEL x (y int)"),
            ]),
            (422, "unusable"),
            "`0001_a.sql`",
        ),
        (
            "deploy",
            &[BY, FORM],
            &form(&[
                ("component", "a", &component),
                ("migrations", "0001_a.sql", &vec![b' '; (16 << 20) + 1]),
            ]),
            (413, "too-large"),
            "the migrations together",
        ),
    ] {
        let (status, code, text) = post(what, headers, body);
        assert_eq!((status, &code[..]), expected, "{what}: {text}");
        assert!(text.contains(said), "{what}: {text}");
    }

    // What is only announced is refused before it is sent.
    for kind in ["application/wasm", FORM.1] {
        let mut stream = http.connect();
        write!(
            stream,
            "POST /api/handlers/subject/deploy HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Hapax-By: t@h\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n",
            600 << 20
        )
        .unwrap();
        let answer = Answer::read(&mut stream).unwrap();
        assert_eq!((answer.status, answer.code()), (413, "too-large".into()));
    }
    let history = host.ask(&scene, &["history", "subject"]);
    assert_eq!(history["deployments"].as_array().unwrap().len(), 0);
    let list = host.ask(&scene, &["list"]);
    assert_eq!(list["handlers"][0]["generation"], 0, "{list}");
    assert_eq!(
        scene
            .store
            .number("SELECT count(*) FROM hapax_handler_migrations")
            .await,
        0
    );
}

/// Components of JavaScript and Python have this size.
#[tokio::test(flavor = "multi_thread")]
async fn a_component_of_35_megabytes_is_deployed_and_found_by_a_new_host() {
    let scene = scene(StoreKind::Postgres).await;
    let host = Asked::start(&scene, &[]);
    let mut bytes = std::fs::read(credit_account()).unwrap();
    // A custom section: its size as LEB128, its name, and what does not compress.
    let padding: usize = 35 << 20;
    bytes.push(0);
    let size = padding + 2;
    bytes.extend(
        [0, 7, 14, 21]
            .map(|shift| (size >> shift) as u8 & 0x7f | if shift == 21 { 0 } else { 0x80 }),
    );
    bytes.extend(b"\x01x");
    bytes.extend((0..padding).map(|index| (index * 31 + index / 4093) as u8));
    let large = scene.folder().join("large.wasm");
    std::fs::write(&large, bytes).unwrap();
    host.deploy(&scene, &large);
    scene.publish(&[credit("m-1")]).await;
    assert_eq!(done_by(&scene, "m-1").await, digest(&large));
    let other = Asked::start(&scene, &[]);
    host.host.terminate();
    host.host.wait_well();
    scene.publish(&[credit("m-2")]).await;
    assert_eq!(done_by(&scene, "m-2").await, digest(&large));
    drop(other);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_comes_from_the_configuration_or_the_variable() {
    let scene = scene(StoreKind::Sqlite).await;
    let secret = ("THE_TOKEN", TOKEN);
    let config = std::fs::read_to_string(scene.config()).unwrap();
    let place = "listen = \"127.0.0.1:0\"\ntoken = { env = \"THE_TOKEN\" }";
    let with_token = config.replace("listen = \"127.0.0.1:0\"", place);
    std::fs::write(scene.config(), &with_token).unwrap();
    let host = Asked::start(&scene, &[secret]);
    let list = |arguments: &[&str], variables: &[(&str, &str)]| {
        let all = [&["handlers", "list"], arguments].concat();
        let output = run_with(scene.folder(), &all, variables, b"");
        (output.status.code(), [output.out, output.err].concat())
    };
    let at = ["--admin", &host.url];
    let (code, said) = list(&at, &[]);
    assert!(
        code == Some(1) && said.contains("asks for a token"),
        "{said}"
    );
    let (code, said) = list(&at, &[("HAPAX_ADMIN__TOKEN", "something-else-than-that")]);
    assert!(
        code == Some(1) && said.contains("does not accept the token"),
        "{said}"
    );
    let (code, said) = list(&at, &[("HAPAX_ADMIN__TOKEN", TOKEN)]);
    assert!(code == Some(0) && said.contains("waiting"), "{said}");

    // Where the host is stands in the configuration, too, if its port does.
    let address = host.url.strip_prefix("http://").unwrap();
    std::fs::write(scene.config(), with_token.replace("127.0.0.1:0", address)).unwrap();
    let (code, said) = list(&[], &[secret]);
    assert!(code == Some(0) && said.contains("waiting"), "{said}");
    let (code, said) = list(&[], &[]);
    assert!(code == Some(3) && said.contains("`THE_TOKEN`"), "{said}");
    assert!(!said.contains(TOKEN), "{said}");
}

impl Asked {
    fn http(&self) -> Http {
        Http::at(self.url.strip_prefix("http://").unwrap().parse().unwrap())
    }
}
