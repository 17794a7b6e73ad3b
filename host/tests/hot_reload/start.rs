//! How long a start takes and what an idle host needs: figures, and the one bound that is promised.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use hapax::store::StoreKind;

use crate::load::resident_bytes;
use crate::stage::Stage;

const STARTS: usize = 9;
const HANDLERS: usize = 100;
/// An idle host with one handler.
const IDLE_MAX: u64 = 60 << 20;

/// Starts a host with a warm cache; returns how long that takes, and its memory once it has looked at all its files.
fn start(stage: &Stage, handlers: usize) -> (Duration, u64) {
    let began = Instant::now();
    let mut host = stage.host();
    let took = began.elapsed();
    for _ in 0..handlers {
        host.wait_for_line("runs already");
    }
    let resident = resident_bytes(&host);
    host.terminate();
    host.wait_well();
    (took, resident)
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_of_a_start() {
    let stage = Stage::new(StoreKind::Postgres, "").await;
    // Makes the tables, and warms the cache.
    start(&stage, 1);
    let mut starts: Vec<(Duration, u64)> = (0..STARTS).map(|_| start(&stage, 1)).collect();
    starts.sort_unstable();
    let (took, _) = starts[STARTS / 2];
    let idle = starts.iter().map(|(_, bytes)| *bytes).max().unwrap();

    let mut config = std::fs::read_to_string(stage.scene.config()).unwrap();
    for number in 1..HANDLERS {
        write!(
            config,
            "\n[sources.q{number}]\nkind = \"queue\"\n[handlers.h{number}]\ncomponent = \"handler.wasm\"\nsource = \"q{number}\"\n\
             message_id = [\"header:Message-Id\"]\n"
        )
        .unwrap();
    }
    std::fs::write(stage.scene.config(), config).unwrap();
    let (took_all, resident_all) = start(&stage, HANDLERS);
    println!(
        "start to ready: {took:.0?} with one handler, {took_all:.0?} with {HANDLERS}; resident when idle: {} KiB, {} KiB",
        idle >> 10,
        resident_all >> 10
    );
    assert!(idle <= IDLE_MAX, "{idle}");
}
