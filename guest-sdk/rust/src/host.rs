//! Where a handler's log lines go, and on whose behalf: the worlds of one message and of a batch have functions of their own.
//!
//! **Invariant**: a component imports the functions of one world only, since only what its macro calls names them. Publishing is not
//! in here: what is named in here is imported by every handler, and `outbox` only by those that publish.

use std::cell::Cell;
use std::sync::OnceLock;

use crate::log::Level;

/// Writes a line; `member` is the message of a batch that it is about.
pub(crate) type Write =
    fn(member: Option<u32>, level: Level, message: &str, fields: &[(String, String)]);

static WRITE: OnceLock<Write> = OnceLock::new();

thread_local! {
    /// The message of a batch that the handler is dealing with just now.
    static MEMBER: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Has lines go to `write`, and the text of a panic too: there is no stderr in a component without WASI, so it would be lost with the trap
/// that follows it.
pub(crate) fn begin(write: Write) {
    let _ = WRITE.set(write);
    std::panic::set_hook(Box::new(|panic| {
        let text = panic.payload_as_str().unwrap_or("the handler panicked");
        let location = panic
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        log(
            Level::Error,
            &format!("panic: {text}"),
            &[("location".to_owned(), location)],
        );
    }));
}

/// Runs `work` on behalf of the message at `member`.
pub(crate) fn on_behalf_of<T>(member: usize, work: impl FnOnce() -> T) -> T {
    let before = MEMBER.replace(Some(u32::try_from(member).unwrap_or(u32::MAX)));
    let done = work();
    MEMBER.set(before);
    done
}

/// Returns the message of a batch that the handler is dealing with.
pub(crate) fn member() -> Option<u32> {
    MEMBER.get()
}

/// Outside a component, such as in a handler's unit tests, lines go nowhere.
pub(crate) fn log(level: Level, message: &str, fields: &[(String, String)]) {
    if let Some(write) = WRITE.get() {
        write(MEMBER.get(), level, message, fields);
    }
}
