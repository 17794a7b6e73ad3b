//! The tests' PostgreSQL server, for tests inside this room: those that reach below its public doors.

#![allow(dead_code, reason = "the integration tests use more of it")]

#[path = "../../tests/support/postgres.rs"]
pub(crate) mod postgres;
#[path = "../../tests/support/server.rs"]
pub(crate) mod server;
