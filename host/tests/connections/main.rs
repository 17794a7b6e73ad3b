//! Connections that people have: certificates, keys, tokens, password files and poolers, each with a real server.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod durables;
mod nats;
mod pooler;
mod postgres;
