//! What handlers publish leaves after the commit: under the same ids in every run, nothing missing, in the order of each key, through
//! deaths of hosts at every point and on any number of them.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod arrival;
mod backlog;
mod deaths;
mod failures;
mod order;
mod receiver;
mod targets;

/// The tables of the handler.
const TABLES: &str = "CREATE TABLE effects (id text NOT NULL);";
