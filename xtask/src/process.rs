//! Running other programs: each is announced, can be interrupted, and shows what it said when it fails.
//!
//! **Invariant**: a child never outlives the value that stands for it; only children started here are signalled, by their pid.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};

use crate::interrupt;

const POLL: Duration = Duration::from_millis(20);
/// How long a child may take to end after it was asked to, before it is killed.
const STOP_GRACE: Duration = Duration::from_secs(10);

/// Says what is done next, on standard error.
pub(crate) fn say(step: impl std::fmt::Display) {
    eprintln!("==> {step}");
}

/// Runs `command` with its output shown as it comes, and returns how it ended.
pub(crate) fn status(command: &mut Command) -> anyhow::Result<ExitStatus> {
    let child = spawn(command)?;
    wait(child)
}

/// Runs `command` with its output shown as it comes.
///
/// # Errors
/// The command's name and how it ended, unless it succeeded.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{} failed: {status}", shown(command));
    }
    Ok(())
}

/// Runs `command` with its output held back and a spinner instead (on a terminal).
///
/// # Errors
/// All that the command said, unless it succeeded.
pub(crate) fn run_quietly(command: &mut Command) -> anyhow::Result<()> {
    let mut output = tempfile::tempfile().context("cannot make a temporary file")?;
    let writer = || output.try_clone().context("cannot share a temporary file");
    command
        .stdin(Stdio::null())
        .stdout(writer()?)
        .stderr(writer()?);
    let spinner = ProgressBar::new_spinner()
        .with_style(ProgressStyle::with_template("    {spinner} {elapsed}").expect("a constant"));
    spinner.enable_steady_tick(Duration::from_millis(100));
    let status = spawn(command).and_then(wait);
    spinner.finish_and_clear();
    let status = status?;
    if !status.success() {
        let mut said = String::new();
        output.rewind().and_then(|()| {
            let mut bytes = Vec::new();
            output.read_to_end(&mut bytes)?;
            said = String::from_utf8_lossy(&bytes).into_owned();
            Ok(())
        })?;
        bail!("{} failed: {status}\n{}", shown(command), tail(&said, 40));
    }
    Ok(())
}

/// Runs `command` and returns its standard output, trimmed.
///
/// # Errors
/// What it wrote to standard error, unless it succeeded.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    if !output.status.success() {
        bail!(
            "{} failed: {}\n{}",
            shown(command),
            output.status,
            tail(&String::from_utf8_lossy(&output.stderr), 40)
        );
    }
    String::from_utf8(output.stdout)
        .map(|text| text.trim().to_owned())
        .with_context(|| format!("{} wrote something else than text", shown(command)))
}

/// Returns the full path of the program `name`, looked up in `PATH`.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(name))
        .find(|file| is_executable(file))
}

/// Whether `file` is there and may be run by somebody.
pub(crate) fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// A program that runs until it is told to stop, with its output in a file.
#[derive(Debug)]
pub(crate) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
    stop: Signal,
}

impl Daemon {
    /// Starts `command`, whose output goes to `log`. `stop` is the signal that ends it in order.
    pub(crate) fn start(
        name: impl Into<String>,
        command: &mut Command,
        log: PathBuf,
        stop: Signal,
    ) -> anyhow::Result<Self> {
        let file =
            File::create(&log).with_context(|| format!("cannot write `{}`", log.display()))?;
        let again = file
            .try_clone()
            .with_context(|| format!("cannot write `{}`", log.display()))?;
        command.stdin(Stdio::null()).stdout(file).stderr(again);
        Ok(Self {
            name: name.into(),
            child: spawn(command)?,
            log,
            stop,
        })
    }

    /// The process id, which a server may use in a file's name.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns how it ended, or nothing while it runs.
    pub(crate) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("cannot wait for {}", self.name))
    }

    /// Returns what it said so far.
    pub(crate) fn said(&self) -> String {
        fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// Returns an error that shows the end of what it said.
    pub(crate) fn failed(&self, what: impl std::fmt::Display) -> anyhow::Error {
        anyhow::anyhow!("{} {what}\n{}", self.name, tail(&self.said(), 25))
    }

    /// Waits until `ready` returns something.
    ///
    /// # Errors
    /// The end of its output, if it ended before or took longer than `limit`.
    pub(crate) fn wait_until<T>(
        &mut self,
        limit: Duration,
        mut ready: impl FnMut(&Self) -> Option<T>,
    ) -> anyhow::Result<T> {
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            if let Some(found) = ready(self) {
                return Ok(found);
            }
            if let Some(status) = self.ended()? {
                return Err(self.failed(format_args!("ended at once: {status}")));
            }
            if begun.elapsed() > limit {
                return Err(self.failed(format_args!("is not ready after {limit:?}")));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        stop(&mut self.child, self.stop);
    }
}

/// Returns the last `lines` lines of `text`, indented.
fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .map(|line| format!("    {line}"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn spawn(command: &mut Command) -> anyhow::Result<Child> {
    interrupt::check()?;
    command
        .spawn()
        .with_context(|| format!("cannot run {}", shown(command)))
}

fn wait(mut child: Child) -> anyhow::Result<ExitStatus> {
    let mut asked: Option<Instant> = None;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a child")? {
            interrupt::check()?;
            return Ok(status);
        }
        if interrupt::seen() {
            // After Ctrl-C the child has the signal too, and a second one would make it drop everything.
            let since = asked.get_or_insert_with(Instant::now);
            if interrupt::children_unaware() || since.elapsed() > STOP_GRACE {
                stop(&mut child, Signal::TERM);
            }
        }
        std::thread::sleep(POLL);
    }
}

/// Ends `child` in order, or kills it when that takes too long.
fn stop(child: &mut Child, signal: Signal) {
    if let Ok(Some(_)) = child.try_wait() {
        return;
    }
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended in between; the pid stays its own until it is waited for.
        let _gone = kill_process(pid, signal);
    }
    let begun = Instant::now();
    while begun.elapsed() < STOP_GRACE {
        if let Ok(Some(_)) = child.try_wait() {
            return;
        }
        std::thread::sleep(POLL);
    }
    if child.kill().is_ok() {
        let _ended = child.wait();
    }
}

/// Returns the command's program and first argument, for messages.
fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![name];
    words.extend(command.get_args().take(2).filter(|arg| {
        // A short word says which of a program's jobs it was; a path only fills the line.
        !Path::new(arg).is_absolute()
    }));
    format!("`{}`", words.join(OsStr::new(" ")).to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_shows_what_it_said() {
        let err = run_quietly(Command::new("sh").args(["-c", "echo one; echo two >&2; exit 3"]))
            .expect_err("exit 3");
        let text = format!("{err:#}");
        assert!(text.contains("    one\n    two"), "{text}");
        assert!(text.contains("`sh -c"), "{text}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let err = run(&mut Command::new("no-such-program-of-hapax")).expect_err("not there");
        assert!(format!("{err:#}").contains("cannot run `no-such-program-of-hapax`"));
    }

    #[test]
    fn a_dropped_daemon_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = Daemon::start(
            "sleep",
            Command::new("sleep").arg("600"),
            folder.path().join("log"),
            Signal::TERM,
        )
        .unwrap();
        let pid = Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap();
        drop(daemon);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn a_daemon_that_ends_early_shows_its_output() {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start(
            "shell",
            Command::new("sh").args(["-c", "echo broken; exit 4"]),
            folder.path().join("log"),
            Signal::TERM,
        )
        .unwrap();
        let err = daemon
            .wait_until(Duration::from_secs(30), |_| None::<()>)
            .expect_err("it ended");
        let text = format!("{err:#}");
        assert!(
            text.contains("shell ended at once") && text.contains("broken"),
            "{text}"
        );
    }
}
