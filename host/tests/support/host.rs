//! The binary `hapax` as a process, heard through its log.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns a command that runs `hapax` with nothing of this process's `HAPAX_*` variables, and a cache of the tests' own.
pub fn hapax() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hapax"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAPAX_") {
            command.env_remove(name);
        }
    }
    // One cache for all tests, and none of it in the user's own.
    command.env(
        "XDG_CACHE_HOME",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"),
    );
    command
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// On standard output.
    pub out: String,
    /// On standard error.
    pub err: String,
}

/// Runs `hapax` with `arguments` in `folder` to its end, without input.
pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    run_with(folder, arguments, &[], b"")
}

/// As `run`, with variables and with bytes on standard input.
pub fn run_with(
    folder: &Path,
    arguments: &[&str],
    variables: &[(&str, &str)],
    input: &[u8],
) -> Output {
    let mut child = hapax()
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that ends early does not read it.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output().unwrap()
    });
    Output {
        status: output.status,
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A running `hapax run`; killed when dropped.
#[derive(Debug)]
pub struct Host {
    child: Child,
    lines: mpsc::Receiver<String>,
    said: Vec<String>,
}

impl Host {
    /// Starts `hapax run` with `config`, more arguments and variables. Its log is JSON.
    pub fn start(config: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_as(hapax(), config, arguments, variables)
    }

    /// As `start`, with a signal ignored that would end it when a file grows beyond the limit of `limit_files`.
    pub fn start_with_file_limits(config: &Path) -> Self {
        let mut command = Command::new("env");
        command
            .arg("--ignore-signal=XFSZ")
            .arg(env!("CARGO_BIN_EXE_hapax"));
        Self::start_as(command, config, &[], &[])
    }

    fn start_as(
        mut command: Command,
        config: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> Self {
        let mut child = command
            .args(["run", "--log-format", "json", "--config"])
            .arg(config)
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self {
            child,
            lines,
            said: Vec::new(),
        }
    }

    /// Waits for a log line that contains `text`, and returns it.
    ///
    /// # Panics
    /// If the process ends first, or takes too long; with all that it said.
    pub fn wait_for_line(&mut self, text: &str) -> String {
        let started = Instant::now();
        loop {
            match self
                .lines
                .recv_timeout(PATIENCE.saturating_sub(started.elapsed()))
            {
                Ok(line) => {
                    self.said.push(line.clone());
                    if line.contains(text) {
                        return line;
                    }
                }
                Err(error) => panic!(
                    "no line with `{text}` ({error}); the host said:\n{}",
                    self.said.join("\n")
                ),
            }
        }
    }

    /// The process's number.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until every handler consumes.
    pub fn wait_until_ready(&mut self) {
        self.wait_for_line("\"message\":\"ready\"");
    }

    /// True if it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Asks it to drain.
    pub fn terminate(&self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Lets no file of its own grow beyond so many bytes, or again as they like.
    pub fn limit_files(&self, bytes: Option<u64>) {
        let limit = rustix::process::Rlimit {
            current: bytes,
            maximum: None,
        };
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, limit).unwrap();
    }

    /// Kills it with SIGKILL.
    pub fn kill(&self) {
        self.signal(rustix::process::Signal::KILL);
    }

    /// True if it has a file open.
    pub fn has_open(&self, path: &str) -> bool {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{}/fd", self.child.id())) else {
            return false;
        };
        entries
            .filter_map(Result::ok)
            .filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|open| open == Path::new(path))
    }

    /// The most memory that it has had resident so far.
    pub fn peak_memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kibibytes = line.unwrap().trim().trim_end_matches(" kB");
        kibibytes.parse::<u64>().unwrap() << 10
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end. Returns how it ended and all that it said.
    pub fn wait(mut self) -> (ExitStatus, String) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(5)) {
                    self.said.push(line);
                }
                return (status, self.said.join("\n"));
            }
            if let Ok(line) = self.lines.recv_timeout(Duration::from_millis(20)) {
                self.said.push(line);
            }
            assert!(
                started.elapsed() < PATIENCE,
                "the host did not end; it said:\n{}",
                self.said.join("\n")
            );
        }
    }

    /// Waits for its end and asserts that it ended well. Returns all that it said.
    pub fn wait_well(self) -> String {
        let (status, said) = self.wait();
        assert!(status.success(), "{status}; the host said:\n{said}");
        said
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
