//! What is refused leaves everything as it was.

use hapax::store::StoreKind;

use crate::support::scene::credit_account;
use crate::{Asked, credit, digest, done_by, other_version, scene};

#[tokio::test]
async fn what_is_refused_is_not_recorded_on_postgres() {
    what_is_refused_is_not_recorded(StoreKind::Postgres).await;
}

#[tokio::test]
async fn what_is_refused_is_not_recorded_on_sqlite() {
    what_is_refused_is_not_recorded(StoreKind::Sqlite).await;
}

async fn what_is_refused_is_not_recorded(kind: StoreKind) {
    let scene = scene(kind).await;
    let first = credit_account();
    let host = Asked::start(&scene, &[]);
    host.deploy(&scene, &first);

    let bytes = std::fs::read(&first).unwrap();
    std::fs::write(scene.folder().join("cut.wasm"), &bytes[..bytes.len() / 2]).unwrap();
    let cut = host.try_ask(&scene, &["deploy", "subject", "cut.wasm"]);
    assert_eq!(cut.status.code(), Some(3), "{}", cut.err);
    assert!(cut.err.contains("not a valid component"), "{}", cut.err);

    let broken = scene.folder().join("broken");
    std::fs::create_dir(&broken).unwrap();
    std::fs::copy(
        scene.folder().join("migrations/0001_tables.sql"),
        broken.join("0001_tables.sql"),
    )
    .unwrap();
    std::fs::write(broken.join("0002_no.sql"), "CREATE TABEL x (y int)").unwrap();
    let other = other_version(&scene);
    let refused = host.try_ask(
        &scene,
        &[
            "deploy",
            "subject",
            other.to_str().unwrap(),
            "--migrations",
            "broken",
        ],
    );
    assert_eq!(refused.status.code(), Some(3), "{}", refused.err);
    assert!(refused.err.contains("`0002_no.sql`"), "{}", refused.err);

    let unknown = host.try_ask(&scene, &["pause", "nobody"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", unknown.err);
    assert!(
        unknown.err.contains("its handlers are `subject`"),
        "{}",
        unknown.err
    );
    let nowhere = host.try_ask(&scene, &["rollback", "subject"]);
    assert_eq!(nowhere.status.code(), Some(2), "{}", nowhere.err);

    let history = host.ask(&scene, &["history", "subject"]);
    assert_eq!(history["deployments"].as_array().unwrap().len(), 1);
    scene.publish(&[credit("m-1")]).await;
    assert_eq!(done_by(&scene, "m-1").await, digest(&first));
    host.host.terminate();
    host.host.wait_well();

    // A pin holds at deployments and at the start.
    let config = std::fs::read_to_string(scene.config()).unwrap();
    let pin = |digest: &str| {
        let pinned = format!("component = \"store\"\nsha256 = \"{digest}\"");
        std::fs::write(
            scene.config(),
            config.replace("component = \"store\"", &pinned),
        )
        .unwrap();
    };
    pin(&digest(&first));
    let host = Asked::start(&scene, &[]);
    let refused = host.try_ask(&scene, &["deploy", "subject", other.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.err);
    for named in [digest(&first), digest(&other)] {
        assert!(refused.err.contains(&named), "{}", refused.err);
    }
    host.host.terminate();
    host.host.wait_well();
    pin(&digest(&other));
    let (status, said) = scene.host(&[], &[]).wait();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains(&digest(&first)), "{said}");

    // The other way: a file beside an active deployment.
    let file = format!("component = \"{}\"", first.display());
    std::fs::write(
        scene.config(),
        config.replace("component = \"store\"", &file),
    )
    .unwrap();
    let (status, said) = scene.host(&[], &[]).wait();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains("hapax handlers remove subject"), "{said}");
    std::fs::write(scene.config(), &config).unwrap();
    let host = Asked::start(&scene, &[]);
    host.ask(&scene, &["remove", "subject", "--yes"]);
    host.host.terminate();
    host.host.wait_well();
    std::fs::write(
        scene.config(),
        config.replace("component = \"store\"", &file),
    )
    .unwrap();
    let host = Asked::start(&scene, &[]);
    let refused = host.try_ask(&scene, &["deploy", "subject", other.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.err);
    assert!(
        refused.err.contains("component = \"store\""),
        "{}",
        refused.err
    );
}

#[tokio::test]
async fn nobody_there_says_how_to_start() {
    let scene = scene(StoreKind::Sqlite).await;
    let output = crate::support::host::run(
        scene.folder(),
        &["handlers", "list", "--admin", "http://127.0.0.1:1"],
    );
    assert_eq!(output.status.code(), Some(1), "{}", output.err);
    assert!(output.err.contains("hapax run"), "{}", output.err);
}
