//! Components that are not what they seem, under load: each is reported once, and the old version serves.

use hapax::handler::{COMPONENT_BYTES_MAX, Runtime, RuntimeOptions};
use hapax::store::StoreKind;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use wasmparser::{Parser, Payload};

use crate::load::resident_bytes;
use crate::stage::{Stage, lines};

/// In the ordinary tests; five times as many in the full ones.
const BROKEN: usize = 200;
const SEED: u64 = 7;
/// With each component, so that something runs all the time.
const MESSAGES: i64 = 20;
const REFUSED: &str = "is not in force";

/// Returns a component that is not what it was. Five of six begin as components do.
fn mutated(whole: &[u8], types: &[usize], index: usize, random: &mut StdRng) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    match index % 6 {
        // Bits of the code, under a valid preamble.
        0 | 1 => {
            for _ in 0..=random.random_range(0..40_usize) {
                let at = random.random_range(8..bytes.len());
                bytes[at] ^= 1 << random.random_range(0..8);
            }
        }
        // A section that ends too early.
        2 => bytes.truncate(random.random_range(9..whole.len())),
        // Types that stand in each other's place: all is well formed, and nothing fits.
        3 | 4 => {
            for _ in 0..=random.random_range(0..4_usize) {
                let of = |random: &mut StdRng| types[random.random_range(0..types.len())];
                let (a, b) = (of(random), of(random));
                bytes.swap(a, b);
            }
        }
        // Junk, half of it under a valid preamble.
        _ => {
            let keep = if index % 12 == 5 { 8 } else { 0 };
            bytes.truncate(random.random_range(64..4096));
            random.fill_bytes(&mut bytes[keep..]);
        }
    }
    bytes
}

/// Where the types of values stand in the types of functions, in a component and in the modules in it.
fn places_of_types(whole: &[u8]) -> Vec<usize> {
    let mut places = Vec::new();
    for payload in Parser::new(0).parse_all(whole) {
        let range = match payload.unwrap() {
            Payload::TypeSection(types) => types.range(),
            Payload::ComponentTypeSection(types) => types.range(),
            _ => continue,
        };
        // i32, i64, f32, f64; string, bool, and the numbers between.
        let is_type = |at: &usize| (0x73..=0x7f).contains(&whole[*at]);
        places.extend(range.filter(is_type));
    }
    assert!(places.len() > 20, "{places:?}");
    places
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
    let types = places_of_types(&stage.first);
    let mut random = StdRng::seed_from_u64(SEED);
    let mut with_preamble = 0;
    for index in 0..count {
        stage.send(index as i64 * MESSAGES, MESSAGES).await;
        // A bit that is flipped in a name leaves a component valid, and it would rightly be taken up: those are left out.
        let broken = loop {
            let mutated = mutated(&stage.first, &types, index, &mut random);
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

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_not_even_read() {
    let stage = Stage::new(StoreKind::Sqlite, "").await;
    let mut host = stage.host();
    host.wait_for_line("runs already");
    let before = resident_bytes(&host);
    let large = stage.scene.folder().join("large.new");
    // All of it is a hole: it takes no room.
    let file = std::fs::File::create(&large).unwrap();
    file.set_len(COMPONENT_BYTES_MAX as u64 + 1).unwrap();
    std::fs::rename(&large, stage.component()).unwrap();
    let line = host.wait_for_line(REFUSED);
    assert!(line.contains("268435457 bytes"), "{line}");
    assert!(resident_bytes(&host) < before + (64 << 20));
    stage.assert_runs("still", 1).await;
    stage.write_new(&stage.component(), &stage.second);
    host.wait_for_line("\"message\":\"swapped\"");
    stage.assert_runs("after", 2).await;
}
