//! The host that was asked dies at each step: the others, and itself after a start, all run the old component or all the new one.

use std::time::{Duration, Instant};

use hapax::fault::DEPLOY_POINTS;
use hapax::store::StoreKind;

use crate::support::scene::{Scene, credit_account};
use crate::{Asked, balance, credit, digest, done_by, other_version, scene};

#[tokio::test]
async fn either_old_or_new_everywhere_on_postgres() {
    for point in DEPLOY_POINTS {
        either_old_or_new_everywhere(StoreKind::Postgres, point).await;
    }
}

#[tokio::test]
async fn either_old_or_new_everywhere_on_sqlite() {
    for point in DEPLOY_POINTS {
        either_old_or_new_everywhere(StoreKind::Sqlite, point).await;
    }
}

async fn either_old_or_new_everywhere(kind: StoreKind, point: &str) {
    let scene = scene(kind).await;
    let (first, second) = (credit_account(), other_version(&scene));
    let [one, two] = [digest(&first), digest(&second)];
    let b = Asked::start(&scene, &[]);
    b.deploy(&scene, &first);
    let c = Asked::start(&scene, &[]);
    let passed = scene.folder().join("passed");
    let mut a = Asked::start(
        &scene,
        &[
            ("HAPAX_FAULT_POINT", point),
            ("HAPAX_FAULT_FILE", passed.to_str().unwrap()),
        ],
    );

    // What the one who asks is told depends on the moment; what holds does not.
    a.try_ask(
        &scene,
        &["deploy", "subject", second.to_str().unwrap(), "--no-wait"],
    );
    let started = Instant::now();
    while !a.host.has_ended() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it does not die at {point}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(std::fs::read_to_string(&passed).unwrap(), point);
    let expected = if point == "deploy-before-record" {
        &one
    } else {
        &two
    };

    let again = Asked::start(&scene, &[]);
    all_run(&scene, &b, &[&b, &c, &again], expected).await;
    scene.publish(&[credit("m-1")]).await;
    assert_eq!(&done_by(&scene, "m-1").await, expected, "{point}");
    scene.wait_until_nothing_pends().await;
    assert_eq!(balance(&scene).await, 1, "{point}");
}

/// Waits until each of these hosts says that it runs `digest`.
async fn all_run(scene: &Scene, asked: &Asked, hosts: &[&Asked], digest: &str) {
    let started = Instant::now();
    loop {
        let list = asked.ask(scene, &["list"]);
        let handler = &list["handlers"][0];
        assert_eq!(handler["digest"], digest);
        let running = hosts.iter().all(|host| {
            let pid = format!(":{}:", host.host.pid());
            handler["hosts"].as_array().unwrap().iter().any(|line| {
                line["host"].as_str().unwrap().contains(&pid)
                    && line["state"] == "running"
                    && line["digest"] == digest
            })
        });
        if running {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{list}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
