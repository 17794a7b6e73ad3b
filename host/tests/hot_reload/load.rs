//! Two hundred reloads under load: no message notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hapax::store::StoreKind;

use crate::stage::{Stage, lines, sending};
use crate::support::database::Probe;
use crate::support::host::Host;

const RELOADS: usize = 200;
/// How much of what the host can do it is given.
const LOAD: f64 = 0.6;
/// What is sent to find out what it can do.
const MEASURED: i64 = 4_000;
/// How often messages are sent.
const EVERY: Duration = Duration::from_millis(20);
/// How much longer the longest gap between commits may be.
const GAP_MORE_MS: f64 = 50.0;
/// How much more memory may be resident at the end.
const GROWTH_MAX: u64 = 12 << 20;

/// Sends messages at a constant rate; returns the number after the last one.
async fn feed(mut probe: Probe, from: i64, rate: f64, ends: Arc<AtomicBool>) -> i64 {
    let began = Instant::now();
    let mut sent = 0;
    while !ends.load(Ordering::SeqCst) {
        let due = (began.elapsed().as_secs_f64() * rate) as i64;
        if due > sent {
            probe.run(&sending(from + sent, due - sent)).await;
            sent = due;
        }
        tokio::time::sleep(EVERY).await;
    }
    from + sent
}

/// The longest time between two transactions of messages in a range of numbers, in milliseconds.
async fn longest_gap_ms(stage: &Stage, from: i64, to: i64) -> f64 {
    let sql = format!(
        "SELECT CAST(coalesce(max(gap), 0) * 1000000 AS BIGINT) FROM (SELECT EXTRACT(EPOCH FROM processed_at - lag(processed_at) \
         OVER (ORDER BY processed_at)) AS gap FROM hapax.processed_messages \
         WHERE CAST(substr(message_id, 2) AS BIGINT) >= {from} AND CAST(substr(message_id, 2) AS BIGINT) < {to}) gaps"
    );
    stage.scene.store.number(&sql).await as f64 / 1000.0
}

/// How many messages in a range of numbers this component did.
fn done_by(digest: &str, from: i64, to: i64) -> String {
    format!(
        "SELECT count(*) FROM hapax.processed_messages JOIN hapax.components ON components.id = component \
         WHERE encode(digest, 'hex') = '{digest}' AND CAST(substr(message_id, 2) AS BIGINT) >= {from} \
         AND CAST(substr(message_id, 2) AS BIGINT) < {to}"
    )
}

pub(crate) fn resident_bytes(host: &Host) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
    kibibytes.parse::<u64>().unwrap() << 10
}

/// How many pieces of code it has that are in no file: each loaded component is one.
fn code_mappings(host: &Host) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", host.pid())).unwrap();
    maps.lines()
        .filter(|line| {
            let mut fields = line.split_whitespace();
            fields.nth(1) == Some("r-xp") && fields.nth(2) == Some("0")
        })
        .count()
}

fn median(mut numbers: Vec<u64>) -> u64 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_reloads_under_load() {
    let stage = Stage::new(StoreKind::Postgres, "").await;
    let mut host = stage.host();
    host.wait_for_line("runs already");
    let began = Instant::now();
    stage.send(0, MEASURED).await;
    stage.scene.wait_until_nothing_pends().await;
    let can_do = MEASURED as f64 / began.elapsed().as_secs_f64();
    let rate = can_do * LOAD;

    // With reloads, in quarters, and an equal run without any after each.
    let mut from = MEASURED;
    let mut with_reloads = Vec::new();
    let mut without = Vec::new();
    let mut resident = Vec::new();
    let mut served = [0, 0];
    let code_at_first = code_mappings(&host);
    for quarter in 0..4 {
        let ends = Arc::new(AtomicBool::new(false));
        let began = Instant::now();
        let probe = stage.scene.store.probe().await;
        let feeding = tokio::spawn(feed(probe, from, rate, Arc::clone(&ends)));
        for index in 0..RELOADS / 4 {
            let bytes = if index % 2 == 0 {
                &stage.second
            } else {
                &stage.first
            };
            stage.write_new(&stage.component(), bytes);
            host.wait_for_line("\"message\":\"swapped\"");
            resident.push((quarter, resident_bytes(&host)));
        }
        ends.store(true, Ordering::SeqCst);
        let took = began.elapsed();
        let to = feeding.await.unwrap();
        stage.scene.wait_until_nothing_pends().await;
        with_reloads.push(longest_gap_ms(&stage, from, to).await);
        let (first, second) = stage.digests();
        for (served, digest) in served.iter_mut().zip([first, second]) {
            *served += stage.scene.store.number(&done_by(&digest, from, to)).await;
        }

        let ends = Arc::new(AtomicBool::new(false));
        let probe = stage.scene.store.probe().await;
        let feeding = tokio::spawn(feed(probe, to, rate, Arc::clone(&ends)));
        tokio::time::sleep(took).await;
        ends.store(true, Ordering::SeqCst);
        from = feeding.await.unwrap();
        stage.scene.wait_until_nothing_pends().await;
        without.push(longest_gap_ms(&stage, to, from).await);
    }

    // Without it the join that follows is planned for tables that are empty.
    let tables = "ANALYZE accounts, hapax.processed_messages, hapax.components";
    stage.scene.store.run(tables).await;
    // Nothing failed, nothing was lost or doubled, and each effect is that of the code recorded with it.
    let effects = |digest: &str, effect: &str| {
        format!(
            "SELECT count(*) FROM accounts JOIN hapax.processed_messages ON message_id = accounts.id \
             JOIN hapax.components ON components.id = component WHERE encode(digest, 'hex') = '{digest}' AND {effect}"
        )
    };
    let (first, second) = stage.digests();
    let by_first = stage
        .scene
        .store
        .number(&effects(&first, "balance = 5 AND t = 0 AND m = 0"))
        .await;
    let by_second = stage
        .scene
        .store
        .number(&effects(&second, "balance = 0 AND t = 15 AND m = 1"))
        .await;
    assert_eq!(by_first + by_second, from);
    assert_eq!(stage.scene.count("dead_letters", "true").await, 0);
    assert_eq!(stage.scene.count("attempts", "true").await, 0);
    let of_quarter = |wanted: usize| {
        let samples = resident.iter().filter(|(quarter, _)| *quarter == wanted);
        median(samples.map(|(_, bytes)| *bytes).collect())
    };
    let (resident_first, resident_last) = (of_quarter(0), of_quarter(3));
    let code_at_last = code_mappings(&host);
    println!(
        "{can_do:.0} messages a second at most, {rate:.0} sent; longest gaps {with_reloads:.1?} ms with reloads, {without:.1?} ms without; \
         served {served:?}; resident {} KiB, then {} KiB; pieces of code {code_at_first}, then {code_at_last}",
        resident_first >> 10,
        resident_last >> 10
    );
    for messages in served {
        assert!(messages * 5 >= served.iter().sum(), "{served:?}");
    }
    assert!(
        resident_last <= resident_first + GROWTH_MAX,
        "{resident_first}, then {resident_last}"
    );
    assert!(
        code_at_last <= code_at_first + 1,
        "{code_at_first}, then {code_at_last}"
    );
    // A pause that reloads make is there in every quarter; one that the machine makes falls on either side.
    let mut more: Vec<f64> = with_reloads
        .iter()
        .zip(&without)
        .map(|(with, without)| with - without)
        .collect();
    more.sort_by(f64::total_cmp);
    let median = (more[1] + more[2]) / 2.0;
    assert!(
        median <= GAP_MORE_MS,
        "{with_reloads:?} with, {without:?} without"
    );
    host.terminate();
    let said = host.wait_well();
    assert_eq!(lines(&said, "\"message\":\"swapped\""), RELOADS);
}
