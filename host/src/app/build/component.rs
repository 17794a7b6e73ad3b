//! A component of a core module.

use wit_component::ComponentEncoder;

use crate::exit::{CommandError, Exit};

/// Makes a component of a core module that carries the types of the contract, as wit-bindgen puts them there.
pub(super) fn of_module(module: &[u8]) -> Result<Vec<u8>, CommandError> {
    let encode = || {
        let mut encoder = ComponentEncoder::default();
        encoder.validate(true);
        encoder.module(module)?;
        encoder.encode()
    };
    encode().map_err(|error| {
        let text = format!("{error:#}");
        let hint = if text.contains("wasi_snapshot_preview1") {
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
