//! `hapax dev`: a project that is built, run and changed, by real tools.
//!
//! Most of it is in C, whose builds take a second; what is said of one language holds for each, since `hapax build` builds them.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod author;
mod changes;
mod refused;
mod rust;
mod start_over;
