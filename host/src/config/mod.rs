//! The configuration: the file as written, made into typed values of which every one is valid.
//!
//! **Invariant**: nothing outside this room knows TOML, and nothing inside does I/O but reading the file itself.
//! **Invariant**: one reading reports every problem, each with the file and the key.

mod admin;
mod checked;
mod connections;
mod handler;
mod limits;
mod outbox;
mod problem;
mod section;
mod telemetry;
mod units;

pub use admin::{AdminConfig, check_token};
pub use checked::{CacheConfig, Config, JetStreamConfig, SourceConfig, SourceKind, StoreConfig};
pub use handler::{
    Batch, ComponentPlace, ConflictPolicy, Dedup, HandlerConfig, Late, OnDead, Order, Retry,
    SqlMode,
};
pub use outbox::{OutboxConfig, TargetConfig, TargetKind};
pub use problem::{ConfigError, Problem};
pub use telemetry::TelemetryConfig;
pub(crate) use units::duration;
