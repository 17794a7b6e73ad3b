//! Handlers of the world `batch-handler`: one call for many messages promises each of them what a call of its own would.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod effects;
mod example;
mod failures;
mod kill;
mod prove;
mod publishing;
mod stage;
mod swap;
