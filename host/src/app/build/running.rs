//! The program that a build runs at the moment, for whoever ends the build from outside.
//!
//! **Invariant**: once a build is ended it starts no program any more, and those of the one that it had started are told to end.

use std::cell::RefCell;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

thread_local! {
    /// Of the build that this thread is at.
    static OF_THIS_THREAD: RefCell<Option<Running>> = const { RefCell::new(None) };
}

/// A build's program. Clones are of the same build.
#[derive(Clone, Debug, Default)]
pub(in crate::app) struct Running(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    is_ended: bool,
    /// The program, with those that it has started.
    group: Option<Pid>,
}

impl Running {
    /// Makes a build whose programs [`Self::end`] ends. They are no longer of the terminal's group, so that Ctrl-C does not reach them.
    pub(super) fn during<T>(self, build: impl FnOnce() -> T) -> T {
        OF_THIS_THREAD.set(Some(self));
        let made = build();
        OF_THIS_THREAD.set(None);
        made
    }

    /// Has the program end, and the build with it. What has ended by itself stays as it is.
    pub(in crate::app) fn end(&self) {
        let mut state = self.state();
        state.is_ended = true;
        if let Some(group) = state.group {
            // It may be gone by now.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }

    fn output(&self, command: &mut Command) -> io::Result<Output> {
        let mut state = self.state();
        if state.is_ended {
            return Err(io::Error::other("the build was ended"));
        }
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        state.group = Some(Pid::from_child(&child));
        drop(state);
        let output = child.wait_with_output();
        self.state().group = None;
        output
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change is whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a program to its end, as [`Command::output`] does.
///
/// # Errors
/// It can't be started, or the build was ended.
pub(super) fn output(command: &mut Command) -> io::Result<Output> {
    match OF_THIS_THREAD.with_borrow(Clone::clone) {
        None => command.output(),
        Some(running) => running.output(command),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_ended_ends_with_what_it_has_started_and_starts_nothing_more() {
        let running = Running::default();
        let ended = running.clone();
        let (sender, started) = std::sync::mpsc::channel();
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("started");
        let marked = mark.clone();
        let build = std::thread::spawn(move || {
            running.during(|| {
                // The one within keeps the outputs open as long as it lives.
                let script = format!(
                    "mkfifo '{0}'; sleep 3600 & echo > '{0}'; wait",
                    marked.display()
                );
                sender.send(()).unwrap();
                let first = output(Command::new("sh").args(["-c", &script]));
                let second = output(&mut Command::new("true"));
                (first.unwrap().status.success(), second.is_ok())
            })
        });
        started.recv().unwrap();
        // Reading waits for the writer.
        while !mark.exists() {
            std::thread::yield_now();
        }
        std::fs::read(&mark).unwrap();
        ended.end();
        assert_eq!(build.join().unwrap(), (false, false));
    }
}
