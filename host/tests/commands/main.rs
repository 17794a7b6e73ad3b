//! The commands as a newcomer meets them: what each prints when it works, and the sentence and the hint of each mistake.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod check;
mod check_database;
mod dead_letters;
mod help;
mod inspect;
mod place;
mod run;
mod send;
mod send_stream;
mod start;
mod status;
