//! `hapax new` and `hapax build`, from an empty folder with nothing but the binary and the language's own tools.
//!
//! The tools are those that `cargo xtask guests` has got. Where a build takes long, the ordinary tests do without it: TypeScript and
//! Python are built with `HAPAX_TEST_FULL`.

#![allow(clippy::unwrap_used, reason = "a test may stop at once")]

#[path = "../support/mod.rs"]
mod support;

mod built;
mod missing;
mod mistakes;
mod new;
mod place;
