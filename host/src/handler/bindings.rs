//! What wasmtime's `bindgen!` makes of `wit/`: the host's side of the contract.
//!
//! **Invariant**: nothing is written by hand here; the implementations are in `sql`, `outbox`, `log` and `config`.

wasmtime::component::bindgen!({
    path: "../wit",
    world: "handler",
    imports: { default: async | trappable },
    exports: { default: async },
});

/// The package's version in `wit/`: what this host provides.
pub(super) const PACKAGE_VERSION: &str = "0.1.0";

/// The package's name in `wit/`.
pub(super) const PACKAGE: &str = "hapax:handler";

/// The interfaces of the package that this host provides, `types` among them.
pub(super) const INTERFACES: [&str; 5] = ["types", "sql", "outbox", "log", "config"];
