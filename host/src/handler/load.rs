//! Loads components and says what keeps one from being a handler.
//!
//! **Invariant**: a component's bytes are hostile until they are validated as a whole; whatever they are, the answer is a
//! `LoadError` and never a panic.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use wasmtime::component::types::ComponentItem;

use super::bindings::batch::BatchHandlerPre;
use super::bindings::{HandlerPre, PACKAGE, PACKAGE_VERSION, World};
use super::engine::{Runtime, Shared, causes};
use super::state::State;
use super::{LoadError, text, wasi};
use crate::message::ComponentDigest;

/// The largest component, in bytes. Those of Python have 35 MB.
pub const COMPONENT_BYTES_MAX: usize = 256 << 20;

/// wasmtime counts a component's memory in pages.
const WASM_PAGE_BYTES: u64 = 64 << 10;
const NAME_BYTES_MAX: usize = 200;
const NAMES_MAX: usize = 5;

/// What a component is, for `hapax check` and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentInfo {
    /// Of the whole file.
    pub digest: ComponentDigest,
    /// Of the whole file.
    pub size_bytes: usize,
    /// The world that it is for: whether a call takes one message or many.
    pub world: World,
    /// The version of `hapax:handler` that it was built for.
    pub contract_version: String,
    /// The interfaces that it imports and is granted, sorted; `types` is left out, since it holds no functions.
    pub imports: Vec<String>,
    /// The memory that an instance has at its start, in bytes.
    pub memory_bytes: u64,
}

/// A component that can serve as a handler: validated, compiled, linked. Cheap to clone.
#[derive(Clone)]
pub struct Component {
    inner: Arc<Inner>,
}

struct Inner {
    info: ComponentInfo,
    name: String,
    pre: Pre,
    // The permits are the runtime's, so it lives as long as what runs on it.
    runtime: Arc<Shared>,
}

/// A component whose imports are linked, ready to be instantiated.
pub(super) enum Pre {
    Handler(HandlerPre<State>),
    BatchHandler(BatchHandlerPre<State>),
}

impl Component {
    /// Returns what the component is.
    pub fn info(&self) -> &ComponentInfo {
        &self.inner.info
    }

    /// Returns which code this is.
    pub fn digest(&self) -> ComponentDigest {
        self.inner.info.digest
    }

    /// Returns the name under which it was loaded.
    pub(super) fn name(&self) -> &str {
        &self.inner.name
    }

    pub(super) fn pre(&self) -> &Pre {
        &self.inner.pre
    }

    pub(super) fn runtime(&self) -> &Shared {
        &self.inner.runtime
    }
}

impl fmt::Debug for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Component")
            .field("name", &self.inner.name)
            .field("info", &self.inner.info)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// Reads, validates and compiles the component in the file `path`, on a thread for blocking work.
    ///
    /// # Errors
    /// Says what the component wants, what this host has, and what to do.
    pub async fn load_file(&self, path: &Path) -> Result<Component, LoadError> {
        let path = path.to_owned();
        self.off_the_async_threads(move |runtime| {
            runtime.load_blocking(&path.display().to_string(), &read_blocking(&path)?)
        })
        .await
    }

    /// Validates and compiles a component, on a thread for blocking work. `name` is for messages: the file's path.
    ///
    /// # Errors
    /// Says what the component wants, what this host has, and what to do.
    pub async fn load(
        &self,
        name: &str,
        bytes: impl AsRef<[u8]> + Send + 'static,
    ) -> Result<Component, LoadError> {
        let name = name.to_owned();
        self.off_the_async_threads(move |runtime| runtime.load_blocking(&name, bytes.as_ref()))
            .await
    }

    /// As `load`, on this thread: takes from some milliseconds to some seconds of computing.
    ///
    /// # Errors
    /// Says what the component wants, what this host has, and what to do.
    pub fn load_blocking(&self, name: &str, bytes: &[u8]) -> Result<Component, LoadError> {
        check_format(name, bytes)?;
        let shared = self.shared();
        // A compiler is a large program: if one of its assertions fails on these bytes, that is the component's failure and not
        // the daemon's.
        catch_unwind(AssertUnwindSafe(|| load(shared, name, bytes))).unwrap_or_else(|_| {
            Err(LoadError {
                problem: format!("cannot compile `{name}`: the compiler failed"),
                hint: "this is a bug; please report it together with the component".into(),
            })
        })
    }

    async fn off_the_async_threads(
        &self,
        load: impl FnOnce(Runtime) -> Result<Component, LoadError> + Send + 'static,
    ) -> Result<Component, LoadError> {
        let runtime = self.clone();
        off_the_async_threads(move || load(runtime)).await
    }
}

/// Reads a component's file, whole, on a thread for blocking work.
///
/// # Errors
/// It cannot be read, or is larger than `COMPONENT_BYTES_MAX`.
pub async fn read_component(path: &Path) -> Result<Vec<u8>, LoadError> {
    let path = path.to_owned();
    off_the_async_threads(move || read_blocking(&path)).await
}

fn read_blocking(path: &Path) -> Result<Vec<u8>, LoadError> {
    let name = path.display().to_string();
    // Looked at first, so that a mistaken path to something huge is not read into memory.
    let read = std::fs::metadata(path).and_then(|metadata| {
        if metadata.is_dir() {
            return Err(std::io::ErrorKind::IsADirectory.into());
        }
        match usize::try_from(metadata.len()) {
            Ok(bytes) if bytes <= COMPONENT_BYTES_MAX => std::fs::read(path).map(Ok),
            _ => Ok(Err(too_large(&name, metadata.len()))),
        }
    });
    read.unwrap_or_else(|error| {
        Err(LoadError {
            problem: format!("cannot read `{name}`: {error}"),
            hint: "build the component, or correct `component` in the configuration".into(),
        })
    })
}

async fn off_the_async_threads<T: Send + 'static>(
    load: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    match tokio::task::spawn_blocking(load).await {
        Ok(result) => result,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(LoadError {
                problem: format!("cannot load the component: {error}"),
                hint: "the host is shutting down".into(),
            }),
        },
    }
}

/// Tells what the bytes are by their start, as far as it is not a component.
pub(super) fn check_format(name: &str, bytes: &[u8]) -> Result<(), LoadError> {
    const COMPONENT_HINT: &str = "build a component for a world in `wit/`, `handler` or `batch-handler`, and give the path of that file";
    if bytes.is_empty() {
        return Err(LoadError {
            problem: format!("`{name}` is empty; a handler is a Wasm component"),
            hint: "build it again: the build was interrupted, or wrote to another place".into(),
        });
    }
    if bytes.len() > COMPONENT_BYTES_MAX {
        return Err(too_large(name, bytes.len() as u64));
    }
    if !bytes.starts_with(b"\0asm") {
        let text = bytes.trim_ascii_start();
        if text.starts_with(b"(component") || text.starts_with(b"(module") {
            return Err(LoadError {
                problem: format!(
                    "`{name}` is Wasm in its text form; a handler is a Wasm component in binary form"
                ),
                hint: "make it binary with `wasm-tools parse`".into(),
            });
        }
        if wasmtime::Engine::detect_precompiled(bytes).is_some() {
            return Err(LoadError {
                problem: format!(
                    "`{name}` is code that wasmtime has compiled; a handler is a Wasm component"
                ),
                hint:
                    "give the `.wasm` file that it was compiled from: this host compiles it itself"
                        .into(),
            });
        }
        return Err(LoadError {
            problem: format!(
                "`{name}` is not Wasm: it does not begin with the bytes `00 61 73 6d`; a handler is a Wasm component"
            ),
            hint: COMPONENT_HINT.into(),
        });
    }
    match bytes.get(4..8) {
        Some([0x0d, 0, 1, 0]) => Ok(()),
        Some([1, 0, 0, 0]) => Err(LoadError {
            problem: format!("`{name}` is a core Wasm module; a handler is a Wasm component"),
            hint: format!(
                "run the component step of the build, such as `wasm-tools component new {name} -o handler.wasm`"
            ),
        }),
        Some(_) => Err(LoadError {
            problem: format!(
                "`{name}` is Wasm of an encoding that this host does not know; a handler is a Wasm component"
            ),
            hint: COMPONENT_HINT.into(),
        }),
        None => Err(LoadError {
            problem: format!("`{name}` ends after {} bytes", bytes.len()),
            hint: "build it again: the build was interrupted".into(),
        }),
    }
}

fn too_large(name: &str, bytes: u64) -> LoadError {
    LoadError {
        problem: format!(
            "`{name}` has {bytes} bytes; this host loads at most {}",
            text::bytes(COMPONENT_BYTES_MAX)
        ),
        hint: "build it without debug information, or give the path of the component".into(),
    }
}

fn load(shared: &Arc<Shared>, name: &str, bytes: &[u8]) -> Result<Component, LoadError> {
    let engine = &shared.engine;
    let digest = ComponentDigest::of(bytes);
    let cache = shared.cache.as_deref();
    let known = cache.and_then(|cache| cache.get(engine, digest));
    let is_known = known.is_some();
    let component = match known {
        Some(component) => component,
        None => {
            let began = Instant::now();
            let compiled = wasmtime::component::Component::from_binary(engine, bytes)
                .map_err(|error| compile_error(name, &error))?;
            tracing::debug!(component = %digest, took = ?began.elapsed(), "compiled");
            compiled
        }
    };
    let component_type = component.component_type();
    let imports: Vec<(&str, ComponentItem)> = component_type
        .imports(engine)
        .map(|(import, item)| (import, item.ty))
        .collect();
    let exports: Vec<(&str, ComponentItem)> = component_type
        .exports(engine)
        .map(|(export, item)| (export, item.ty))
        .collect();

    // The version comes first: what follows from another one (a resource that is missing, say) would only mislead.
    let names = || imports.iter().chain(&exports).map(|(name, _)| *name);
    if let Some(version) = names()
        .filter_map(contract_version)
        .find(|version| !is_compatible(version))
    {
        let version = text::one_line(version, NAME_BYTES_MAX);
        return Err(LoadError {
            problem: format!(
                "cannot link `{name}`: it was built for `{PACKAGE}@{version}`; this host provides `{PACKAGE}@{PACKAGE_VERSION}`"
            ),
            hint: format!(
                "rebuild it against the `wit/` of this host's release, or run a host that provides `{PACKAGE}@{version}`"
            ),
        });
    }
    let world = world_of(name, &exports)?;
    let unknown: Vec<&str> = imports
        .iter()
        .filter(|(import, item)| !is_provided(world, import, item))
        .map(|(import, _)| *import)
        .collect();
    if !unknown.is_empty() {
        return Err(unknown_imports(name, world, &unknown));
    }
    let imports_wasi = imports.iter().any(|(import, _)| wasi::is_wasi(import));
    let linker = match imports_wasi {
        false => Ok(&shared.linker),
        true => shared.wasi_linker(),
    };
    let pre = linker
        .and_then(|linker| linker.instantiate_pre(&component))
        .and_then(|pre| match world {
            World::Handler => HandlerPre::new(pre).map(Pre::Handler),
            World::BatchHandler => BatchHandlerPre::new(pre).map(Pre::BatchHandler),
        })
        .map_err(|error| LoadError {
            problem: format!(
                "cannot link `{name}`: it does not fit `{PACKAGE}@{PACKAGE_VERSION}`{}, which this host provides: {}",
                if imports_wasi { " or its closed WASI 0.2" } else { "" },
                causes(&error)
            ),
            hint: "rebuild it against the `wit/` of this host's release".into(),
        })?;

    let mut granted: Vec<String> = imports
        .iter()
        .filter(|(import, item)| {
            matches!(item, ComponentItem::ComponentInstance(_))
                && !import.starts_with("hapax:handler/types@")
        })
        .map(|(import, _)| (*import).to_owned())
        .collect();
    granted.sort_unstable();
    let info = ComponentInfo {
        digest,
        size_bytes: bytes.len(),
        world,
        contract_version: names()
            .find_map(contract_version)
            .unwrap_or(PACKAGE_VERSION)
            .to_owned(),
        imports: granted,
        memory_bytes: component
            .resources_required()
            .and_then(|required| required.max_initial_memory_size)
            .unwrap_or(0)
            .saturating_mul(WASM_PAGE_BYTES),
    };
    // What is refused is not kept.
    if let (Some(cache), false) = (cache, is_known) {
        cache.put(engine, digest, &component);
    }
    Ok(Component {
        inner: Arc::new(Inner {
            info,
            name: name.to_owned(),
            pre,
            runtime: Arc::clone(shared),
        }),
    })
}

fn compile_error(name: &str, error: &wasmtime::Error) -> LoadError {
    let causes = causes(error);
    if causes.contains("pooling allocator") || causes.contains("exceeds the limit of") {
        return LoadError {
            problem: format!("cannot load `{name}`: it needs more than this host gives: {causes}"),
            hint: "raise `limits.memory` of the handler, or build a smaller component".into(),
        };
    }
    let hint = if causes.contains("component model async") {
        "this host calls handlers synchronously: build against a world in `wit/`, without async functions"
    } else {
        "build it again: the file is damaged, or uses Wasm features that this host does not have"
    };
    LoadError {
        problem: format!("`{name}` is not a valid component: {causes}"),
        hint: hint.into(),
    }
}

/// Returns the version in a name such as `hapax:handler/sql@0.1.0`, if it is one of our package; empty if it has none.
pub(super) fn contract_version(name: &str) -> Option<&str> {
    let interface = name.strip_prefix(PACKAGE)?.strip_prefix('/')?;
    Some(interface.split_once('@').map_or("", |(_, version)| version))
}

/// True for 0.1.x: within it nothing changes, and what is added is an interface of its own. wasmtime never matches pre-releases.
pub(super) fn is_compatible(version: &str) -> bool {
    version
        .strip_prefix("0.1.")
        .is_some_and(|patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_provided(world: World, import: &str, item: &ComponentItem) -> bool {
    match item {
        // `use types.{message, failure}` in the world imports the bare types; they need nothing from the host.
        ComponentItem::Type(_) => true,
        ComponentItem::ComponentInstance(_) if wasi::is_wasi(import) => wasi::is_granted(import),
        ComponentItem::ComponentInstance(_) => is_provided_name(world, import),
        _ => false,
    }
}

fn is_provided_name(world: World, import: &str) -> bool {
    import
        .strip_prefix(PACKAGE)
        .and_then(|rest| rest.strip_prefix('/'))
        .and_then(|rest| rest.split_once('@'))
        .is_some_and(|(name, _)| world.interfaces().contains(&name))
}

/// Tells by the exports which world a component is for.
fn world_of(name: &str, exports: &[(&str, ComponentItem)]) -> Result<World, LoadError> {
    let mut worlds = exports.iter().filter_map(|(export, item)| match item {
        ComponentItem::ComponentFunc(function) => Some((World::of_function(export)?, function)),
        _ => None,
    });
    let Some((world, function)) = worlds.next() else {
        return Err(no_function(name, exports));
    };
    if worlds.next().is_some() {
        return Err(LoadError {
            problem: format!(
                "cannot link `{name}`: it exports both `handle` and `handle-batch`; this host calls one of them"
            ),
            hint: "build it for one world of `wit/`: `handler` takes one message a call, `batch-handler` many".into(),
        });
    }
    if function.async_() {
        return Err(LoadError {
            problem: format!(
                "cannot link `{name}`: it exports `{}` as an async function; this host calls a plain one",
                world.function()
            ),
            hint: format!("build it against the world `{}` in `wit/`", world.as_str()),
        });
    }
    Ok(world)
}

fn no_function(name: &str, exports: &[(&str, ComponentItem)]) -> LoadError {
    let exported: Vec<&str> = exports.iter().map(|(export, _)| *export).collect();
    let exported = if exported.is_empty() {
        "it exports nothing".to_owned()
    } else {
        format!("it exports {}", list(&exported))
    };
    LoadError {
        problem: format!(
            "cannot link `{name}`: it exports neither the function `handle` nor `handle-batch`, of which this host calls one; {exported}"
        ),
        hint:
            "build it for a world in `wit/`: `handler`, or `batch-handler` for many messages a call"
                .into(),
    }
}

fn unknown_imports(name: &str, world: World, unknown: &[&str]) -> LoadError {
    let imports = if unknown.len() == 1 {
        "import"
    } else {
        "imports"
    };
    // Of the other world: its lines and messages could not be told whose they are.
    let is_of_another_world = |import: &&str| {
        World::ALL.into_iter().any(|other| {
            other != world && is_provided_name(other, import) && !is_provided_name(world, import)
        })
    };
    let hint = if unknown.iter().all(is_of_another_world) {
        match world {
            World::Handler => {
                "it exports `handle`: use `outbox` and `log`, which need no member of a batch"
            }
            World::BatchHandler => {
                "it exports `handle-batch`: use `batch-outbox` and `batch-log`, which name the member of the batch"
            }
        }
    } else if unknown.iter().any(|import| import.starts_with("wasi:")) {
        "a handler gets a closed WASI 0.2 (`wasi:cli`, `clocks`, `filesystem`, `io`, `random`, `sockets`, with nothing behind them); build it without the others"
    } else if unknown.iter().all(|import| import.starts_with(PACKAGE)) {
        "it was built against a newer release: run a newer host, or rebuild it against this host's `wit/`"
    } else {
        "rebuild against the interfaces in `wit/`, or remove the import"
    };
    LoadError {
        problem: format!(
            "cannot link `{name}`: this host does not provide {imports} {}{}; it provides `{PACKAGE}@{PACKAGE_VERSION}` with {}",
            list(unknown),
            match world {
                World::Handler => "",
                World::BatchHandler => " to a handler of batches",
            },
            list(&world.interfaces()[1..]),
        ),
        hint: hint.into(),
    }
}

/// Lists names in backticks, the first few of many.
fn list(names: &[&str]) -> String {
    let mut shown: Vec<String> = names
        .iter()
        .take(NAMES_MAX)
        .map(|name| format!("`{}`", text::one_line(name, NAME_BYTES_MAX)))
        .collect();
    if names.len() > NAMES_MAX {
        shown.push(format!("{} more", names.len() - NAMES_MAX));
    }
    shown.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_within_0_1_are_compatible() {
        assert_eq!(contract_version("hapax:handler/sql@0.2.0"), Some("0.2.0"));
        assert_eq!(contract_version("hapax:handler/sql"), Some(""));
        assert_eq!(contract_version("hapax:handlers/sql@0.2.0"), None);
        assert_eq!(contract_version("handle"), None);
        for version in ["0.1.0", "0.1.17"] {
            assert!(is_compatible(version), "{version}");
        }
        for version in [
            "",
            "0.1",
            "0.1.",
            "0.1.0-rc.1",
            "0.1.0+x",
            "0.2.0",
            "0.11.0",
            "1.0.0",
        ] {
            assert!(!is_compatible(version), "{version}");
        }
    }

    #[test]
    fn long_lists_and_names_are_cut() {
        let long = "x".repeat(1 << 20);
        let names = vec![long.as_str(); 100];
        let text = list(&names);
        assert!(text.len() < 2_000, "{}", text.len());
        assert!(text.ends_with(", 95 more"));
    }
}
