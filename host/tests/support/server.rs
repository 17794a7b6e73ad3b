//! A server's process: started, heard, and gone with its owner.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a server may take to say that it is ready.
const START_MAX: Duration = Duration::from_secs(60);

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts `command` and reads its standard error until `ready` returns something for a line.
    ///
    /// # Panics
    /// If it ends first or takes too long; with all that it said.
    pub fn start<T: Send + 'static>(
        mut command: Command,
        mut ready: impl FnMut(&str) -> Option<T> + Send + 'static,
    ) -> (Self, T) {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stderr = child.stderr.take().expect("it is piped");
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            // Read to the end, or the server would stop at a full pipe.
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let found = ready(&line);
                let _ = sender.send((line, found));
            }
        });
        let mut server = Self { child };
        let started = Instant::now();
        let mut said = String::new();
        loop {
            let left = START_MAX.saturating_sub(started.elapsed());
            match receiver.recv_timeout(left) {
                Ok((_, Some(found))) => return (server, found),
                Ok((line, None)) => {
                    said.push_str(&line);
                    said.push('\n');
                }
                Err(_) => {
                    let status = server.child.try_wait();
                    panic!("{command:?} did not become ready ({status:?}); it said:\n{said}");
                }
            }
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        if let Some(pid) = i32::try_from(self.child.id())
            .ok()
            .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end; false if it takes longer than `time`.
    pub fn wait_at_most(&mut self, time: Duration) -> bool {
        let started = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(None) if started.elapsed() < time => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(None) => return false,
                _ => return true,
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the file that `variable` names, or the first of `candidates` that exists.
///
/// # Panics
/// If there is none, naming the variable to set.
pub fn find_program(variable: &str, what: &str, candidates: Vec<PathBuf>) -> PathBuf {
    if let Some(path) = std::env::var_os(variable) {
        let path = PathBuf::from(path);
        assert!(
            path.exists(),
            "{variable} names `{}`, which is not there",
            path.display()
        );
        return path;
    }
    let tried = candidates
        .iter()
        .map(|path| path.display().to_string())
        .collect::<Vec<_>>()
        .join(", ");
    candidates
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("set {variable} to {what}; looked at {tried}"))
}

/// Returns where `name` would be in each folder of `PATH`.
pub fn on_path(name: &str) -> Vec<PathBuf> {
    std::env::var_os("PATH")
        .map(|path| {
            std::env::split_paths(&path)
                .map(|folder| folder.join(name))
                .collect()
        })
        .unwrap_or_default()
}
