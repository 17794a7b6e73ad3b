//! The tests' PostgreSQL server, for tests inside this room: those that reach below its public doors.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the files belong to the integration tests, which use more of them"
)]

#[path = "../../tests/support/postgres.rs"]
pub(crate) mod postgres;
#[path = "../../tests/support/server.rs"]
pub(crate) mod server;
