//! hapax: takes at-least-once messages and makes each one take effect exactly once, in a Wasm handler whose SQL runs
//! in the transaction that also records the message's id.
//!
//! The rooms and the way of a message are drawn in `ARCHITECTURE.md`.

pub mod admin;
pub mod allocator;
pub mod app;
pub mod cli;
pub mod config;
pub mod exit;
pub mod fault;
pub mod handler;
pub mod health;
pub mod idle;
pub mod message;
pub mod metrics;
mod news;
pub mod pipeline;
pub mod relay;
pub mod source;
pub mod store;
pub mod systemd;
pub mod telemetry;
mod text;
