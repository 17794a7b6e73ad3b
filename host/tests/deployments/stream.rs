//! A stream's messages keep coming while components are changed, paused and taken back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hapax::store::StoreKind;

use crate::support::scene::{SourceSort, credit_account};
use crate::{Asked, balance, credit, digest, other_version, scene_of, states};

/// How often everything is done.
const ROUNDS: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_while_components_change() {
    let scene = Arc::new(scene_of(StoreKind::Postgres, SourceSort::JetStream).await);
    let (first, second) = (credit_account(), other_version(&scene));
    let hosts = [0; 2].map(|_| Asked::start(&scene, &[]));
    hosts[0].deploy(&scene, &first);

    let ends = Arc::new(AtomicBool::new(false));
    let sending = tokio::spawn({
        let (scene, ends) = (Arc::clone(&scene), Arc::clone(&ends));
        async move {
            let mut sent = 0;
            while !ends.load(Ordering::SeqCst) {
                let batch: Vec<_> = (0..10)
                    .map(|n| credit(&format!("m-{}", sent + n)))
                    .collect();
                // A second copy of each: what was done by one component is no news to the other.
                scene.publish(&batch).await;
                scene.publish(&batch).await;
                sent += 10;
            }
            sent
        }
    });
    for round in 0..ROUNDS {
        let [a, b] = [&hosts[round % 2], &hosts[(round + 1) % 2]];
        let of = |answer| states(&answer, 2);
        let all = |state: &str, path| vec![(state.to_owned(), Some(digest(path))); 2];
        assert_eq!(of(a.deploy(&scene, &second)), all("running", &second));
        assert_eq!(
            of(b.ask(&scene, &["pause", "subject"])),
            all("paused", &second)
        );
        assert_eq!(
            of(a.ask(&scene, &["resume", "subject"])),
            all("running", &second)
        );
        assert_eq!(of(b.deploy(&scene, &first)), all("running", &first));
        let removed = a.ask(&scene, &["remove", "subject", "--yes"]);
        assert_eq!(of(removed), vec![("waiting".to_owned(), None); 2]);
        let back = b.ask(&scene, &["rollback", "subject"]);
        assert_eq!(of(back), all("running", &first));
    }
    ends.store(true, Ordering::SeqCst);
    let sent: i64 = sending.await.unwrap();
    scene.wait_until_nothing_pends().await;
    assert_eq!(balance(&scene).await, sent);
    assert_eq!(scene.count("processed_messages", "1 = 1").await, sent);
    for table in ["dead_letters", "attempts"] {
        assert_eq!(scene.count(table, "1 = 1").await, 0, "{table}");
    }
    // Both had a part in it, and every message was done by one of them.
    let by_each = "SELECT count(*) FROM (SELECT component FROM hapax.processed_messages GROUP BY component HAVING count(*) > 10) c";
    assert_eq!(scene.store.number(by_each).await, 2, "{sent} messages");
    for host in hosts {
        host.host.terminate();
        host.host.wait_well();
    }
}
