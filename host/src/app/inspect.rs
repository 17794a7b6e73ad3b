//! `hapax inspect`: what is in a component, and whether this host runs it. Needs no configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::exit::{CommandError, Exit};
use crate::handler::{self, COMPONENT_BYTES_MAX, Cache, MEMORY_MAX_BYTES, Runtime, RuntimeOptions};

/// What was found in a component's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InspectedFile {
    /// The path as it was given.
    pub file: String,
    /// What stands in it.
    #[serde(flatten)]
    pub component: handler::Inspected,
    /// Why this host does not run it; absent if it does.
    pub refused: Option<InspectedRefusal>,
    /// How long it took to compile.
    #[serde(rename = "compile_ms", serialize_with = "milliseconds")]
    pub compiled_in: Duration,
}

/// Why a component is refused, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InspectedRefusal {
    /// What does not fit.
    pub problem: String,
    /// What to do about it.
    pub hint: String,
}

fn milliseconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Reads the file, says what stands in it, and tries to load it as a handler.
///
/// # Errors
/// It can't be read, is larger than 256 MiB, or is no component. A component that this host does not run is no error.
pub async fn inspect(file: &Path) -> Result<InspectedFile, CommandError> {
    let name = file.display().to_string();
    let bytes = read(file, &name)?;
    inspect_bytes(&name, bytes, None).await
}

/// As [`inspect`], of bytes that may not lie in a file yet. `name` is for messages; what is compiled is kept in `cache`.
pub(super) async fn inspect_bytes(
    name: &str,
    bytes: Vec<u8>,
    cache: Option<Arc<Cache>>,
) -> Result<InspectedFile, CommandError> {
    let component = handler::inspect(name, &bytes).map_err(|error| {
        CommandError::new(Exit::Configuration, error.problem, Some(&error.hint))
    })?;
    let options = RuntimeOptions {
        calls_max: 1,
        memory_max_bytes: MEMORY_MAX_BYTES,
    };
    let runtime = Runtime::with_cache(&options, cache).map_err(|error| {
        CommandError::new(
            Exit::Failed,
            error,
            Some("run it on a machine with 64 bits and enough address space (`ulimit -v`)"),
        )
    })?;
    let began = Instant::now();
    let loaded = runtime.load(name, bytes).await;
    Ok(InspectedFile {
        file: name.to_owned(),
        component,
        compiled_in: began.elapsed(),
        refused: loaded.err().map(|error| InspectedRefusal {
            problem: error.problem,
            hint: error.hint,
        }),
    })
}

fn read(file: &Path, name: &str) -> Result<Vec<u8>, CommandError> {
    let hint = "give the path of a component's file, such as `target/handler.wasm`";
    // Looked at first, so that a mistaken path to something huge is not read into memory.
    let read = std::fs::metadata(file).and_then(|metadata| {
        if metadata.len() > COMPONENT_BYTES_MAX as u64 {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        std::fs::read(file)
    });
    read.map_err(|error| {
        CommandError::new(
            Exit::Configuration,
            format!("cannot read `{name}`: {error}"),
            Some(hint),
        )
    })
}
