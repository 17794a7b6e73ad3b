//! Changes while the host runs: components and handlers' tables are taken up, and what is refused changes nothing.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod broken;
mod cache;
mod files;
mod load;
mod stage;
mod start;
mod tables;
