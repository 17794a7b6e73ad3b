//! A handler's `limits`: what one call may use.

use std::time::Duration;

use super::section::Section;
use crate::handler::Limits;

pub(super) fn check_limits(section: &Section<'_>) -> Limits {
    let defaults = Limits::DEFAULT;
    let Some(section) = section.section("limits") else {
        return defaults;
    };
    let size = |key: &'static str, default: usize, range: std::ops::RangeInclusive<u64>| {
        usize::try_from(section.size(key, default as u64, range)).unwrap_or(usize::MAX)
    };
    let count = |key: &'static str, default: u64, range: std::ops::RangeInclusive<i64>| {
        section
            .integer(key, range)
            .and_then(|count| u64::try_from(count).ok())
            .unwrap_or(default)
    };
    let shortest = Duration::from_millis(20);
    let limits = Limits {
        memory_bytes: size("memory", defaults.memory_bytes, (1 << 20)..=(4 << 30)),
        table_elements: count("table", defaults.table_elements as u64, 1..=1_000_000) as usize,
        cpu: section.duration("cpu", defaults.cpu, shortest),
        time: section.duration("time", defaults.time, shortest),
        call_bytes: size("call", defaults.call_bytes, (64 << 10)..=(64 << 20)),
        statements: count("statements", defaults.statements, 0..=1_000_000_000),
        rows: count("rows", defaults.rows, 1..=10_000_000),
        result_bytes: size("result", defaults.result_bytes, (1 << 10)..=(64 << 20)),
        savepoints: count("savepoints", defaults.savepoints as u64, 0..=64) as usize,
        cursors: count("cursors", defaults.cursors as u64, 0..=64) as usize,
        outbox: u32::try_from(count("outbox", defaults.outbox.into(), 0..=100_000))
            .unwrap_or(defaults.outbox),
        log_bytes: size("log", defaults.log_bytes, 0..=(16 << 20)),
    };
    section.finish();
    limits
}
