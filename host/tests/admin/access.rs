//! Who may ask.

use hapax::store::StoreKind;
use serde_json::json;

use crate::support::host::{Host, Output, run_with};
use crate::support::http::Http;
use crate::support::scene::SourceSort;
use crate::{ANYWHERE, LOOPBACK, TOKEN, TOKEN_SET, scene, start};

/// Every path with something in the place of what stands in braces.
fn paths() -> Vec<(&'static str, String)> {
    let routes: Vec<_> = hapax::admin::routes()
        .map(|route| {
            let path = route
                .path
                .replace("{number}", "1")
                .replace("{name}", "subject");
            (route.method, path)
        })
        .collect();
    assert!(routes.len() > 15, "{routes:?}");
    routes
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_this_machine_every_route_asks_for_the_token() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let debug = ("HAPAX_LOG", "debug");
    let (host, http) = start(&scene, &[ANYWHERE, TOKEN_SET, debug]);
    let mut asked = paths();
    asked.extend(
        [
            ("get", "/"),
            ("get", "/nothing/here"),
            ("get", "/api/../healthz"),
            ("head", "/healthz"),
            ("options", "/api/status"),
            ("options", "*"),
            ("delete", "/metrics"),
        ]
        .map(|(method, path)| (method, path.to_owned())),
    );
    let almost = format!("{TOKEN}x");
    for (method, path) in &asked {
        let method = method.to_uppercase();
        for token in [
            None,
            Some(""),
            Some("x"),
            Some(&almost[..]),
            Some(&TOKEN[1..]),
        ] {
            let given = format!("Bearer {}", token.unwrap_or_default());
            let mut headers = vec![("Content-Type", "application/json")];
            if token.is_some() {
                headers.push(("Authorization", &given));
            }
            let answer = http.ask(&method, path, &headers, b"{}");
            assert_eq!(answer.status, 401, "{method} {path}: {}", answer.text());
            assert!(
                answer.head.contains("www-authenticate: bearer"),
                "{}",
                answer.head
            );
            if method != "HEAD" {
                assert_eq!(answer.code(), "unauthorized");
            }
        }
    }
    // Not one of them is closed to those who know it.
    let http = http.knowing(TOKEN);
    for (method, path) in paths() {
        let status = http.ask(&method.to_uppercase(), &path, &[], b"").status;
        assert!(
            ![401, 403, 405].contains(&status),
            "{method} {path}: {status}"
        );
    }
    assert_eq!(http.get("/nothing/here").code(), "not-found");
    assert_eq!(http.get_json("/healthz"), json!({ "alive": true }));
    host.terminate();
    let said = host.wait_well();
    assert!(!said.contains(TOKEN), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_this_machine_a_token_is_asked_for_what_is_more_than_health() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let file = scene.folder().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let place = format!("{{ file = \"{}\" }}", file.display());
    let (_host, http) = start(&scene, &[LOOPBACK, ("HAPAX_ADMIN__TOKEN", &place)]);
    for (method, path) in paths() {
        let status = http.ask(&method.to_uppercase(), &path, &[], b"").status;
        let expected = if ["/healthz", "/readyz"].contains(&&path[..]) {
            200
        } else {
            401
        };
        assert_eq!(status, expected, "{method} {path}");
    }
    assert_eq!(http.knowing(TOKEN).get("/metrics").status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn web_pages_get_nothing_done() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let (_host, http) = start(&scene, &[LOOPBACK]);
    for host in [
        "rebound.example.com",
        "localhost.example.com:80",
        "127.0.0.1.nip.io",
    ] {
        let answer = http.ask("GET", "/api/status", &[("Host", host)], b"");
        assert_eq!(
            (answer.status, answer.code()),
            (403, "foreign-host".to_owned()),
            "{host}"
        );
    }
    for host in ["localhost:1", "127.0.0.1", "[::1]:7878", "192.0.2.1"] {
        assert_eq!(
            http.ask("GET", "/readyz", &[("Host", host)], b"").status,
            200,
            "{host}"
        );
    }
    let page = [
        ("Host", "127.0.0.1"),
        ("Origin", "https://example.com"),
        ("Content-Type", "application/json"),
    ];
    let answer = http.ask("POST", "/api/prune", &page, b"{}");
    assert_eq!(
        (answer.status, answer.code()),
        (403, "cross-site".to_owned())
    );
    // What a form can send without a question beforehand.
    let form = [("Host", "127.0.0.1"), ("Content-Type", "text/plain")];
    let answer = http.ask("POST", "/api/prune", &form, b"{}");
    assert_eq!(
        (answer.status, answer.code()),
        (415, "unsupported-media-type".to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_starts_beyond_this_machine_without_a_good_token() {
    let scene = scene(StoreKind::Sqlite, SourceSort::Queue).await;
    let hapax = |command: &str, variables: &[(&str, &str)]| -> Output {
        run_with(scene.folder(), &[command], variables, b"")
    };
    for command in ["run", "check"] {
        let said = hapax(command, &[ANYWHERE]);
        assert_eq!(said.status.code(), Some(3), "{command}: {}", said.err);
        assert!(
            said.err.contains("`admin.listen`: `0.0.0.0:0` can be reached from other machines, and there is no `token`"),
            "{}",
            said.err
        );
        let said = hapax(command, &[ANYWHERE, ("HAPAX_ADMIN__TOKEN", "hunter2")]);
        assert_eq!(said.status.code(), Some(3), "{command}: {}", said.err);
        assert!(
            said.err.contains("`admin.token`: has fewer than 16 bytes"),
            "{}",
            said.err
        );
        assert!(!said.err.contains("hunter2"), "{}", said.err);
    }
    // A secret's place is looked at when it is needed.
    let place = ("HAPAX_ADMIN__TOKEN", "{ env = \"THE_TOKEN\" }");
    for (value, problem) in [
        (None, "`THE_TOKEN`, which holds a secret, is not set"),
        (
            Some("hunter2"),
            "`admin.token`: the token has fewer than 16 bytes",
        ),
        (
            Some("correct horse battery staple"),
            "`admin.token`: the token has other characters",
        ),
    ] {
        let mut variables = vec![ANYWHERE, place];
        variables.extend(value.map(|value| ("THE_TOKEN", value)));
        let said = hapax("run", &variables);
        assert_eq!(said.status.code(), Some(3), "{}", said.err);
        assert!(said.err.contains(problem), "{}", said.err);
        assert!(
            !value.is_some_and(|value| said.err.contains(value)),
            "{}",
            said.err
        );
    }
    let variables = [ANYWHERE, place, ("THE_TOKEN", TOKEN)];
    let mut host: Host = scene.host(&[], &variables);
    let http = Http::of(&mut host);
    assert_eq!(http.get("/healthz").status, 401);
    assert_eq!(http.knowing(TOKEN).get("/healthz").status, 200);
}
