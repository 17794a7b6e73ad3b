//! What wasmtime's `bindgen!` makes of `wit/`: the host's side of the contract.
//!
//! **Invariant**: nothing is written by hand here; the implementations are in `sql`, `outbox`, `log` and `config`.

use serde::Serialize;

wasmtime::component::bindgen!({
    path: "../wit",
    world: "handler",
    imports: { default: async | trappable },
    exports: { default: async },
});

/// The world `batch-handler`, with the types and interfaces of the world `handler` where both have them.
pub(super) mod batch {
    wasmtime::component::bindgen!({
        path: "../wit",
        world: "batch-handler",
        imports: { default: async | trappable },
        exports: { default: async },
        with: {
            "hapax:handler/types": super::hapax::handler::types,
            "hapax:handler/sql": super::hapax::handler::sql,
            "hapax:handler/config": super::hapax::handler::config,
        },
    });
}

/// The package's version in `wit/`: what this host provides.
pub(super) const PACKAGE_VERSION: &str = "0.1.0";

/// The package's name in `wit/`.
pub(super) const PACKAGE: &str = "hapax:handler";

/// Which of the contract's worlds a component is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum World {
    /// One message a call.
    Handler,
    /// Many messages a call.
    BatchHandler,
}

impl World {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Handler, Self::BatchHandler];

    /// Returns its name in the contract.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Handler => "handler",
            Self::BatchHandler => "batch-handler",
        }
    }

    /// Returns the function that a component for it exports.
    pub fn function(self) -> &'static str {
        match self {
            Self::Handler => "handle",
            Self::BatchHandler => "handle-batch",
        }
    }

    /// Returns the interfaces of the package that this host provides to a component for it, `types` first.
    pub(super) fn interfaces(self) -> [&'static str; 5] {
        match self {
            Self::Handler => ["types", "sql", "outbox", "log", "config"],
            Self::BatchHandler => ["types", "sql", "batch-outbox", "batch-log", "config"],
        }
    }

    /// Returns the world of a component that exports a function of this name.
    pub(super) fn of_function(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|world| world.function() == name)
    }
}
