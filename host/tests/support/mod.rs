//! What the tests stand on: real servers that live as long as the test, and a store on each database.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod database;
pub mod nats;
pub mod postgres;
pub mod server;
pub mod host;
pub mod scene;
