//! The check at start that the engine's limits are live: a small guest goes over each of them.
//!
//! The limits that the host itself counts (statements, rows, messages ...) are plain comparisons, and need no such check.

use wasmtime::component::{Component, Instance, Linker};
use wasmtime::{Engine, Store, Trap, UpdateDeadline};

use super::engine::{HOST_CALL_BYTES_EXHAUSTED, causes};
use super::state::{Limiter, Refused};

/// `self_check.wat`, encoded; a test compares them.
const GUEST: &[u8] = include_bytes!("self_check.wasm");

const MEMORY_BYTES_MAX: usize = 128 << 10;
const TABLE_ELEMENTS_MAX: usize = 10;
const CALL_BYTES_MAX: usize = 1 << 10;

/// Has a guest go over each limit of the engine. The epoch has to advance already.
///
/// # Errors
/// Which limit did not hold.
pub(super) async fn run(engine: &Engine) -> Result<(), String> {
    let failed = |what: &str, error: wasmtime::Error| format!("{what}: {}", causes(&error));
    let component = Component::from_binary(engine, GUEST)
        .map_err(|error| failed("compiling the guest of the self-check", error))?;
    let mut linker = Linker::<Limiter>::new(engine);
    linker
        .root()
        .func_wrap("take", |_, (_text,): (String,)| Ok(()))
        .map_err(|error| failed("linking the guest of the self-check", error))?;
    let fresh = async || {
        let mut store = Store::new(engine, Limiter::new(MEMORY_BYTES_MAX, TABLE_ELEMENTS_MAX));
        store.limiter(|limiter| limiter);
        store.set_hostcall_fuel(CALL_BYTES_MAX);
        store.epoch_deadline_callback(|_| Ok(UpdateDeadline::Interrupt));
        // Far, but for the loop.
        store.set_epoch_deadline(1_000_000);
        let instance = linker
            .instantiate_async(&mut store, &component)
            .await
            .map_err(|error| failed("starting the guest of the self-check", error))?;
        Ok::<_, String>((store, instance))
    };

    // One store at a time: the smallest pool has room for two instances.
    {
        let (mut store, guest) = fresh().await?;
        let grown = grow(&mut store, &guest, "grow-memory", 2).await?;
        if grown != -1 || store.data().refused() != Some(Refused::Memory(3 * (64 << 10))) {
            return Err("`limits.memory` does not hold: a guest grew beyond it".into());
        }
        let grown = grow(&mut store, &guest, "grow-table", 10).await?;
        if grown != -1 || store.data().refused() != Some(Refused::Table(11)) {
            return Err("`limits.table` does not hold: a guest grew beyond it".into());
        }
    }

    {
        let (mut store, guest) = fresh().await?;
        let handed = guest
            .get_typed_func::<(i32,), ()>(&mut store, "hand-over")
            .map_err(|error| failed("`hand-over` of the self-check", error))?
            .call_async(&mut store, (CALL_BYTES_MAX as i32 + 1,))
            .await;
        match handed {
            Err(error) if causes(&error).contains(HOST_CALL_BYTES_EXHAUSTED) => {}
            _ => return Err("`limits.call` does not hold: a guest handed over more".into()),
        }
    }

    let (mut store, guest) = fresh().await?;
    store.set_epoch_deadline(1);
    let looped = guest
        .get_typed_func::<(), ()>(&mut store, "loop")
        .map_err(|error| failed("`loop` of the self-check", error))?
        .call_async(&mut store, ())
        .await;
    match looped {
        Err(error) if error.downcast_ref::<Trap>() == Some(&Trap::Interrupt) => Ok(()),
        _ => Err("`limits.cpu` does not hold: a guest's loop ended by itself".into()),
    }
}

async fn grow(
    store: &mut Store<Limiter>,
    guest: &Instance,
    function: &str,
    by: i32,
) -> Result<i32, String> {
    let failed =
        |error: wasmtime::Error| format!("`{function}` of the self-check: {}", causes(&error));
    let (grown,) = guest
        .get_typed_func::<(i32,), (i32,)>(&mut *store, function)
        .map_err(failed)?
        .call_async(&mut *store, (by,))
        .await
        .map_err(failed)?;
    Ok(grown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_is_what_its_text_says() {
        assert!(
            wat::parse_str(include_str!("self_check.wat")).unwrap() == GUEST,
            "encode `self_check.wat` anew: `wasm-tools parse`, or `wat::parse_str`"
        );
    }
}
