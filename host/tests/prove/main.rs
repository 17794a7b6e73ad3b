//! `hapax test`: handlers with a bug each, which it must find for its reason, and handlers without, on which it must stay silent.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod clean;
mod place;
mod planted;
mod postgres;
mod project;
