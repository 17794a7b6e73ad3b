//! An author with one project, and `hapax dev` that follows it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::host::{self, hapax};

/// How long anything may take before a test gives up on it. The first build of a project in Rust takes minutes on a loaded machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// A folder with the project `credit`, with a space and letters beyond ASCII in its path.
pub(crate) struct Author {
    folder: TempDir,
}

impl Author {
    pub(crate) fn with_project(language: &str) -> Self {
        let author = Self {
            folder: TempDir::with_prefix("hapax dev ü ").unwrap(),
        };
        let output = host::run(author.folder.path(), &["new", "credit", "--lang", language]);
        assert!(output.status.success(), "{}", output.err);
        author
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("credit").join(name)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    /// Replaces a piece of a file, which is there, as an editor does: by another file.
    pub(crate) fn replace(&self, name: &str, old: &str, new: &str) {
        let text = self.read(name);
        assert!(text.contains(old), "{text}");
        let saved = self.file(".saved");
        std::fs::write(&saved, text.replace(old, new)).unwrap();
        std::fs::rename(saved, self.file(name)).unwrap();
    }

    /// Adds a message to the file.
    pub(crate) fn add_message(&self, id: &str, amount: i64) {
        let line =
            format!("{{\"id\":\"{id}\",\"payload\":{{\"account\":\"a1\",\"amount\":{amount}}}}}\n");
        let mut messages = self.read("messages.jsonl");
        messages.push_str(&line);
        std::fs::write(self.file("messages.jsonl"), messages).unwrap();
    }

    /// Starts `hapax dev credit --json` with more arguments.
    pub(crate) fn follow(&self, arguments: &[&str]) -> Followed {
        Followed::start(self.folder.path(), arguments)
    }
}

/// A running `hapax dev`; killed when dropped.
pub(crate) struct Followed {
    child: Child,
    input: ChildStdin,
    heard: mpsc::Receiver<Heard>,
    said: Vec<String>,
    pub(crate) events: Vec<Value>,
}

enum Heard {
    Event(String),
    Log(String),
}

impl Followed {
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let mut child = rust_variables(&mut hapax())
            .args(["dev", "credit", "--json"])
            .args(arguments)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, heard) = mpsc::channel();
        let (out, err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let events = sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let _ = events.send(Heard::Event(line));
            }
        });
        std::thread::spawn(move || {
            for line in BufReader::new(err).lines().map_while(Result::ok) {
                let _ = sender.send(Heard::Log(line));
            }
        });
        Self {
            input: child.stdin.take().unwrap(),
            child,
            heard,
            said: Vec::new(),
            events: Vec::new(),
        }
    }

    /// Waits for something that `wanted` takes.
    fn wait<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&Heard, Option<&Value>) -> Option<T>,
    ) -> T {
        let began = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(began.elapsed());
            let heard = self.heard.recv_timeout(left).unwrap_or_else(|error| {
                panic!("no {what} ({error}); it said:\n{}", self.said.join("\n"))
            });
            let event = self.note(&heard);
            if let Some(found) = wanted(&heard, event.as_ref()) {
                return found;
            }
        }
    }

    fn note(&mut self, heard: &Heard) -> Option<Value> {
        match heard {
            Heard::Log(line) => {
                self.said.push(line.clone());
                None
            }
            Heard::Event(line) => {
                self.said.push(line.clone());
                let event: Value = serde_json::from_str(line).unwrap();
                self.events.push(event.clone());
                Some(event)
            }
        }
    }

    /// Waits for an event of this name.
    pub(crate) fn event(&mut self, name: &str) -> Value {
        self.wait(name, |_, event| {
            event.filter(|event| event["event"] == name).cloned()
        })
    }

    /// Waits until this became of the message.
    pub(crate) fn message(&mut self, id: &str, became: &str) -> Value {
        self.wait(&format!("{id} {became}"), |_, event| {
            event
                .filter(|event| event["id"] == id && event["became"] == became)
                .cloned()
        })
    }

    /// Waits for a line of the log.
    pub(crate) fn log(&mut self, text: &str) {
        self.wait(text, |heard, _| match heard {
            Heard::Log(line) if line.contains(text) => Some(()),
            _ => None,
        });
    }

    /// Waits until the component that was built last serves, whenever that was logged.
    pub(crate) fn serves(&mut self, built: &Value) {
        let text = format!("component={}", built["digest"].as_str().unwrap());
        if !self.said.iter().any(|line| line.contains(&text)) {
            self.log(&text);
        }
    }

    /// How many events of this name there were.
    pub(crate) fn count(&self, name: &str) -> usize {
        let events = self.events.iter();
        events.filter(|event| event["event"] == name).count()
    }

    /// Types a line.
    pub(crate) fn types(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    pub(crate) fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
    }

    /// Waits for its end, and takes in what it said until then.
    pub(crate) fn end(&mut self) -> ExitStatus {
        let began = Instant::now();
        // Both outputs end with the process.
        while let Ok(heard) = self
            .heard
            .recv_timeout(PATIENCE.saturating_sub(began.elapsed()))
        {
            self.note(&heard);
        }
        assert!(began.elapsed() < PATIENCE, "{}", self.said.join("\n"));
        self.child.wait().unwrap()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The rows that a message has changed, as (table, key, column, before, after).
pub(crate) fn balance(message: &Value) -> (Value, Value) {
    let rows = message["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1, "{message}");
    let row = &rows[0];
    assert_eq!(row["table"], "accounts");
    assert_eq!(row["columns"], serde_json::json!(["balance"]));
    (
        row["before"]["balance"].clone(),
        row["after"]["balance"].clone(),
    )
}

/// Has cargo build where and as `cargo xtask guests` does, so that what both need is compiled once.
fn rust_variables(command: &mut Command) -> &mut Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let home = std::env::var("CARGO_HOME")
        .unwrap_or_else(|_| format!("{}/.cargo", std::env::var("HOME").unwrap()));
    let flags = [
        (root.display().to_string(), "hapax"),
        (
            root.join("target/guest-workspace").display().to_string(),
            "hapax",
        ),
        (home, "cargo"),
    ]
    .map(|(folder, name)| format!("--remap-path-prefix={folder}={name}"));
    command
        .env("CARGO_TARGET_DIR", root.join("target/guests"))
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"))
}
