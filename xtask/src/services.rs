//! The servers that tests and demo talk to: where their programs come from, and how one is run for a while.
//!
//! **Invariant**: a server started here listens on a free port of this machine only, keeps all its files in a folder of its own,
//! and ends with the value that stands for it, folder included.

mod embedded_postgres;
pub(crate) mod faketime;
pub(crate) mod nats;
pub(crate) mod pgbouncer;
pub(crate) mod postgres;
