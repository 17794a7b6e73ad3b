//! A component of a core module.

use wit_component::{ComponentEncoder, StringEncoding};

use super::bindings;
use crate::exit::{CommandError, Exit};

/// The module that a toolchain for WASI imports from.
const WASI: &str = "wasi_snapshot_preview1";
/// What answers it inside the component.
const WASI_STUB: &str = include_str!("wasi_stub.wat");

/// Makes a component of a core module that carries the types of the contract, as wit-bindgen puts them there.
pub(super) fn of_module(module: &[u8]) -> Result<Vec<u8>, CommandError> {
    encoded(|| {
        let mut encoder = ComponentEncoder::default();
        encoder.validate(true);
        encoder.module(module)?;
        encoder.encode()
    })
}

/// Makes a component of a core module for WASI that carries no types: they are put into it, and what it imports of WASI is answered inside.
pub(super) fn of_wasi_module(mut module: Vec<u8>) -> Result<Vec<u8>, CommandError> {
    encoded(|| {
        let (resolve, world) = bindings::world()?;
        wit_component::embed_component_metadata(
            &mut module,
            &resolve,
            world,
            StringEncoding::UTF8,
        )?;
        let mut encoder = ComponentEncoder::default();
        encoder.validate(true);
        // The module's own allocator works only once its runtime is up.
        encoder.realloc_via_memory_grow(true);
        encoder.module(&module)?;
        encoder.adapter(WASI, &wat::parse_str(WASI_STUB)?)?;
        encoder.encode()
    })
}

fn encoded(encode: impl FnOnce() -> anyhow::Result<Vec<u8>>) -> Result<Vec<u8>, CommandError> {
    encode().map_err(|error| {
        let text = format!("{error:#}");
        let hint = if text.contains(WASI) {
            "something needs WASI (files, clocks, stdio), which no host of handlers has: turn that off, or do without it"
        } else {
            "every function that it imports must be one of `hapax:handler`; a function that is not defined is imported by its name"
        };
        CommandError::new(
            Exit::Configuration,
            format!("no component can be made of what was compiled: {text}"),
            Some(hint),
        )
    })
}
