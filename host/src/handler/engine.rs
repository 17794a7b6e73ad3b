//! The engine that all handlers share: its configuration, its clock of epochs, and the permits to run on it.
//!
//! **Invariant**: no instance is made without a permit, since an exhausted pool is an error and not a queue.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::bindings::batch::hapax::handler::{batch_log, batch_outbox};
use super::state::{CORE_INSTANCES_MAX, MEMORIES_MAX, State, TABLE_ELEMENTS_MAX, TABLES_MAX};
use super::text;
use super::{Cache, bindings, self_check, wasi};

/// How often running handlers are looked at: the grain of CPU limits, and how long one can keep a thread from others.
pub const TICK: Duration = Duration::from_millis(5);

/// The most memory that a handler can be given: what 32-bit Wasm can address.
pub const MEMORY_MAX_BYTES: usize = 4 << 30;

/// What wasmtime says when a guest hands over more than `set_hostcall_fuel` allows: it has no type for that.
pub(super) const HOST_CALL_BYTES_EXHAUSTED: &str =
    "fuel allocated for hostcalls has been exhausted";

/// How long the self-check may take, before a guest that can't be stopped is what keeps it.
const SELF_CHECK_WITHIN: Duration = Duration::from_secs(30);

/// How long the epoch may stand still at the start before that counts as broken.
const FIRST_TICKS_WITHIN: Duration = Duration::from_secs(5);

/// Memory up to this size is cleaned in place when an instance ends, instead of being given back to the kernel.
const KEEP_RESIDENT_BYTES: usize = 2 << 20;

/// A reload needs room for instances of both versions.
const VERSIONS_MAX: usize = 2;

/// What all handlers of a host need together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Calls at the same time, of all handlers together: the sum of their lanes. More wait their turn.
    pub calls_max: usize,
    /// The greatest memory limit of any handler, in bytes.
    pub memory_max_bytes: usize,
}

/// Why there is no engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RuntimeError(String);

/// The engine that all handlers share. Cheap to clone.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
}

pub(super) struct Shared {
    pub(super) engine: Engine,
    pub(super) linker: Linker<State>,
    /// With the closed WASI; made for the first component that imports any of it.
    wasi_linker: OnceLock<Linker<State>>,
    /// Absent where every component is compiled.
    pub(super) cache: Option<Arc<Cache>>,
    permits: Arc<Semaphore>,
    pooled: bool,
}

impl Runtime {
    /// Makes the engine and starts its clock: a thread of its own, which ends with the engine.
    ///
    /// Takes the address space for all instances at once; if there is not enough, warns once and makes each instance on
    /// demand, which is slower.
    ///
    /// # Errors
    /// The processor or the operating system lacks what the engine needs.
    pub fn new(options: &RuntimeOptions) -> Result<Self, RuntimeError> {
        Self::with_cache(options, None)
    }

    /// As `new`; what is compiled is kept in `cache`, and not compiled if it is there.
    ///
    /// # Errors
    /// As those of `new`.
    pub fn with_cache(
        options: &RuntimeOptions,
        cache: Option<Arc<Cache>>,
    ) -> Result<Self, RuntimeError> {
        let failed = |error: wasmtime::Error| {
            RuntimeError(format!("cannot make the Wasm engine: {}", causes(&error)))
        };
        let (engine, pooled) = match Engine::new(&pooling_config(options)) {
            Ok(engine) => (engine, true),
            Err(error) => {
                tracing::warn!(
                    calls = options.calls_max,
                    reason = causes(&error),
                    "cannot reserve address space for all Wasm instances; each is made on demand, which is slower"
                );
                (Engine::new(&config()).map_err(failed)?, false)
            }
        };
        let mut linker = Linker::new(&engine);
        bindings::Handler::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)
            .map_err(failed)?;
        // What the world `batch-handler` has besides.
        let batch_interfaces = &mut linker;
        batch_outbox::add_to_linker::<State, HasSelf<State>>(batch_interfaces, |state| state)
            .and_then(|()| {
                batch_log::add_to_linker::<State, HasSelf<State>>(batch_interfaces, |state| state)
            })
            .map_err(failed)?;
        start_clock(&engine)?;
        Ok(Self {
            shared: Arc::new(Shared {
                engine,
                linker,
                wasi_linker: OnceLock::new(),
                cache,
                permits: Arc::new(Semaphore::new(
                    options.calls_max.clamp(1, Semaphore::MAX_PERMITS),
                )),
                pooled,
            }),
        })
    }

    /// True if the address space for all instances is reserved; false if each is made on demand.
    pub fn is_pooled(&self) -> bool {
        self.shared.pooled
    }

    /// Has a small guest go over each limit that the engine keeps, and sees that it is stopped. Takes some milliseconds.
    ///
    /// # Errors
    /// The limit that does not hold: no handler may be run then.
    pub async fn self_check(&self) -> Result<(), RuntimeError> {
        let engine = self.shared.engine.clone();
        let handle = tokio::runtime::Handle::current();
        // On a thread of its own: a guest that can't be stopped would keep this one.
        let check = tokio::task::spawn_blocking(move || handle.block_on(self_check::run(&engine)));
        match tokio::time::timeout(SELF_CHECK_WITHIN, check).await {
            Ok(Ok(checked)) => checked.map_err(RuntimeError),
            Ok(Err(panic)) => Err(RuntimeError(format!("the self-check died: {panic}"))),
            Err(_) => Err(RuntimeError(
                "`limits.cpu` does not hold: a guest's loop could not be stopped".into(),
            )),
        }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Shared {
    /// Returns what links components that import WASI.
    pub(super) fn wasi_linker(&self) -> wasmtime::Result<&Linker<State>> {
        if let Some(linker) = self.wasi_linker.get() {
            return Ok(linker);
        }
        let mut linker = self.linker.clone();
        wasi::add_to_linker(&mut linker)?;
        Ok(self.wasi_linker.get_or_init(|| linker))
    }

    /// Waits for the right to have an instance. Give it back after the wasm store is gone.
    pub(super) async fn permit(&self) -> OwnedSemaphorePermit {
        Arc::clone(&self.permits)
            .acquire_owned()
            .await
            .expect("nothing closes the semaphore")
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("pooled", &self.shared.pooled)
            .finish_non_exhaustive()
    }
}

fn config() -> Config {
    let mut config = Config::new();
    // One transaction is one connection: a handler has no concurrency to win, and the support costs 4 times as much a call.
    config.concurrency_support(false);
    config.epoch_interruption(true);
    config.memory_init_cow(true);
    config
}

fn pooling_config(options: &RuntimeOptions) -> Config {
    let count = |each: u32| {
        u32::try_from(options.calls_max.max(1).saturating_mul(VERSIONS_MAX))
            .unwrap_or(u32::MAX)
            .saturating_mul(each)
    };
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(count(1));
    pool.total_stacks(count(1));
    // Core instances are only counted, so there is room for the components that are linked of dozens of modules.
    pool.total_core_instances(count(CORE_INSTANCES_MAX));
    pool.max_core_instances_per_component(CORE_INSTANCES_MAX);
    // Memories and tables have a reserved slot each.
    pool.total_memories(count(MEMORIES_MAX));
    pool.max_memories_per_component(MEMORIES_MAX);
    pool.total_tables(count(TABLES_MAX));
    pool.max_tables_per_component(TABLES_MAX);
    pool.max_tables_per_module(TABLES_MAX);
    // JavaScript, Go and C# exceed the defaults of these three.
    pool.max_component_instance_size(10 << 20);
    pool.max_core_instance_size(10 << 20);
    pool.table_elements(TABLE_ELEMENTS_MAX);
    pool.max_memory_size(options.memory_max_bytes.clamp(64 << 10, MEMORY_MAX_BYTES));
    pool.linear_memory_keep_resident(KEEP_RESIDENT_BYTES);
    pool.table_keep_resident(64 << 10);
    pool.pagemap_scan(Enabled::Auto);
    let mut config = config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    config
}

/// Starts the thread that advances the epoch, and waits until it has done so twice.
///
/// Without it a handler in an endless loop would hold its thread for ever, so a clock that does not run is an error here.
fn start_clock(engine: &Engine) -> Result<(), RuntimeError> {
    let ticks = Arc::new(AtomicU64::new(0));
    let ticked = Arc::clone(&ticks);
    let weak = engine.weak();
    thread::Builder::new()
        .name("hapax-epoch".into())
        .spawn(move || {
            while let Some(engine) = weak.upgrade() {
                engine.increment_epoch();
                drop(engine);
                ticked.fetch_add(1, Ordering::Relaxed);
                thread::sleep(TICK);
            }
        })
        .map_err(|error| RuntimeError(format!("cannot start the thread of epochs: {error}")))?;
    let began = Instant::now();
    while ticks.load(Ordering::Relaxed) < 2 {
        if began.elapsed() > FIRST_TICKS_WITHIN {
            return Err(RuntimeError(
                "the epoch does not advance: handlers could not be interrupted".into(),
            ));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Writes an error of wasmtime with its causes, each once, without the backtrace.
pub(super) fn causes(error: &wasmtime::Error) -> String {
    const CAUSES_BYTES_MAX: usize = 2 << 10;
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain() {
        // wasmtime adds the backtrace of a trap as one more cause.
        let text = cause.to_string();
        if !text.starts_with("error while executing at wasm backtrace") && !causes.contains(&text) {
            causes.push(text);
        }
    }
    text::bounded(&causes.join(": "), CAUSES_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_does_not_fit_is_replaced_by_instances_on_demand() {
        let options = RuntimeOptions {
            calls_max: 4,
            memory_max_bytes: 64 << 20,
        };
        assert!(Runtime::new(&options).unwrap().is_pooled());
        let options = RuntimeOptions {
            calls_max: 1 << 30,
            ..options
        };
        assert!(!Runtime::new(&options).unwrap().is_pooled());
    }

    #[test]
    fn the_clock_ends_with_the_engine() {
        let runtime = Runtime::new(&RuntimeOptions {
            calls_max: 1,
            memory_max_bytes: 1 << 20,
        })
        .unwrap();
        let weak = runtime.shared.engine.weak();
        drop(runtime);
        let began = Instant::now();
        while weak.upgrade().is_some() {
            assert!(began.elapsed() < Duration::from_secs(5));
            thread::sleep(Duration::from_millis(1));
        }
    }
}
