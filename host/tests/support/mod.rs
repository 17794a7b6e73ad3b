//! What the tests stand on: real servers that live as long as the test, and a store on each database.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test binary uses its own part"
)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod certificates;
pub mod database;
pub mod host;
pub mod http;
pub mod nats;
pub mod pgbouncer;
pub mod postgres;
pub mod proxy;
pub mod scene;
pub mod server;
pub mod wit;
