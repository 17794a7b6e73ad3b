//! Components that are not what they seem, under load: each is reported once, and the old version serves.

use hapax::handler::{Runtime, RuntimeOptions};
use hapax::store::StoreKind;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};

use crate::stage::{Stage, lines};

/// In the ordinary tests; five times as many in the full ones.
const BROKEN: usize = 200;
const SEED: u64 = 7;
/// With each component, so that something runs all the time.
const MESSAGES: i64 = 20;
const REFUSED: &str = "is not in force";

/// Returns a component that is not what it was. Three of four begin as components do.
fn mutated(whole: &[u8], index: usize, random: &mut StdRng) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    match index % 4 {
        // Bits of the code, under a valid preamble.
        0 | 1 => {
            for _ in 0..=random.random_range(0..40_usize) {
                let at = random.random_range(8..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..8);
            }
        }
        // A section that ends too early.
        2 => bytes.truncate(random.random_range(9..whole.len())),
        // Junk, half of it under a valid preamble.
        _ => {
            let keep = if index % 8 == 3 { 8 } else { 0 };
            bytes.truncate(random.random_range(64..4096));
            random.fill_bytes(&mut bytes[keep..]);
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn broken_components_under_load_change_nothing() {
    let full = std::env::var_os("HAPAX_TEST_FULL").is_some();
    let count = if full { BROKEN * 5 } else { BROKEN };
    let stage = Stage::new(StoreKind::Postgres, "").await;
    let mut host = stage.host();
    host.wait_for_line("runs already");
    let runtime = Runtime::new(&RuntimeOptions {
        calls_max: 1,
        memory_max_bytes: 64 << 20,
    })
    .unwrap();
    let mut random = StdRng::seed_from_u64(SEED);
    let mut with_preamble = 0;
    for index in 0..count {
        stage.send(index as i64 * MESSAGES, MESSAGES).await;
        // A bit that is flipped in a name leaves a component valid, and it would rightly be taken up: those are left out.
        let broken = loop {
            let mutated = mutated(&stage.first, index, &mut random);
            if runtime.load("mutated", mutated.clone()).await.is_err() {
                break mutated;
            }
        };
        with_preamble += usize::from(broken.starts_with(&stage.first[..8]));
        stage.write_new(&stage.component(), &broken);
        host.wait_for_line(REFUSED);
    }
    assert!(with_preamble * 2 >= count, "{with_preamble} of {count}");
    stage.scene.wait_until_nothing_pends().await;
    let sent = count as i64 * MESSAGES;
    let exact = "SELECT count(*) FROM accounts WHERE balance = 5 AND t = 0 AND m = 0";
    assert_eq!(stage.scene.store.number(exact).await, sent);
    assert_eq!(stage.scene.count("dead_letters", "true").await, 0);
    assert_eq!(stage.scene.count("attempts", "true").await, 0);
    // It follows still.
    stage.write_new(&stage.component(), &stage.second);
    host.wait_for_line("\"message\":\"swapped\"");
    stage.assert_runs("after", 2).await;
    host.terminate();
    let said = host.wait_well();
    assert_eq!(lines(&said, REFUSED), count);
}
