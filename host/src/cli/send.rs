//! `hapax send`: arguments and files become messages.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};

use clap::Args;
use indicatif::ProgressBar;

use super::{ConfigFile, count, print, print_json, styled};
use crate::app::{self, Envelope, Line, NewMessage, Next, Sent};
use crate::config::SourceKind;
use crate::exit::{CommandError, Exit};
use crate::message::Header;

/// Lines that are read before they can be sent.
const LINES_AHEAD: usize = 1_000;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// The source's name in the configuration
    source: String,
    /// The message; for anything but a short text use `--file` or `--lines`
    #[arg(conflicts_with_all = ["file", "lines"], required_unless_present_any = ["file", "lines"])]
    payload: Option<String>,
    /// The message's id; with `--lines` each gets `<ID>-<line number>`
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// The subject or topic
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// A header as `Name: value`; may be repeated
    #[arg(long = "header", value_name = "HEADER", value_parser = parse_header)]
    headers: Vec<(String, String)>,
    /// Send this file as one message; `-` is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "lines")]
    file: Option<PathBuf>,
    /// Send each line of this file as a message, empty lines left out; `-` is standard input
    #[arg(long, value_name = "FILE")]
    lines: Option<PathBuf>,
    /// Each line is `{"id": .., "subject": .., "headers": {..}, "payload": ..}`
    // Clap lets `requires` be if what is required conflicts with something that is there.
    #[arg(long, requires = "lines", conflicts_with_all = ["id", "payload", "file"])]
    envelope: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigFile,
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write it as `Name: value`".to_owned()),
    }
}

pub(super) async fn send(arguments: Arguments) -> Result<(), CommandError> {
    let config = arguments.config.load()?;
    let headers: Vec<Header> = arguments
        .headers
        .iter()
        .map(|(name, value)| Header {
            name: name.clone(),
            value: value.clone().into(),
        })
        .collect();
    let sent = match &arguments.lines {
        None => {
            let payload = match (&arguments.file, arguments.payload) {
                (Some(file), _) => read_all(file)?,
                (None, payload) => payload.unwrap_or_default().into_bytes(),
            };
            let message = NewMessage {
                line: None,
                id: arguments.id,
                subject: arguments.subject,
                headers,
                payload: payload.into(),
            };
            app::send(
                &config,
                &arguments.source,
                std::iter::once(Next::Message(Ok(message))),
                |_| {},
            )
            .await?
        }
        Some(file) => {
            let bar = progress_bar(file);
            let shape = LineShape {
                file: shown(file).into(),
                envelope: arguments.envelope,
                id: arguments.id,
                subject: arguments.subject,
                headers,
            };
            let lines = Lines::read(open(file)?, shape);
            let sent = app::send(&config, &arguments.source, lines, |sent| {
                bar.set_position(sent)
            })
            .await;
            bar.finish_and_clear();
            sent?
        }
    };
    if arguments.json {
        print_json(&sent)
    } else {
        let has_broker = config
            .sources
            .get(&arguments.source)
            .is_some_and(|source| source.kind != SourceKind::Queue);
        print(&sent_text(&sent, has_broker))
    }
}

/// A queue has no broker that could drop anything.
fn sent_text(sent: &Sent, has_broker: bool) -> String {
    let messages = count(sent.sent, "message");
    match sent.duplicates {
        _ if !has_broker => format!("sent {messages}\n"),
        1 => format!("sent {messages}; the broker dropped 1 of them as a duplicate\n"),
        duplicates => {
            format!("sent {messages}; the broker dropped {duplicates} of them as duplicates\n")
        }
    }
}

/// Messages read by a thread of their own, so that it shows when the next one is not there yet.
struct Lines {
    messages: mpsc::Receiver<Result<NewMessage, CommandError>>,
    reader: Option<std::thread::JoinHandle<()>>,
    paused: bool,
}

impl Lines {
    fn read(file: Box<dyn BufRead + Send>, shape: LineShape) -> Self {
        let (sender, messages) = mpsc::sync_channel(LINES_AHEAD);
        let reader = std::thread::spawn(move || {
            for (index, line) in file.split(b'\n').enumerate() {
                if matches!(&line, Ok(line) if line.trim_ascii().is_empty()) {
                    continue;
                }
                let message = shape.message(index + 1, line);
                // After an error nothing more is asked for.
                let is_last = message.is_err();
                if sender.send(message).is_err() || is_last {
                    return;
                }
            }
        });
        Self {
            messages,
            reader: Some(reader),
            paused: true,
        }
    }
}

impl Iterator for Lines {
    type Item = Next;

    fn next(&mut self) -> Option<Next> {
        let message = match self.messages.try_recv() {
            Ok(message) => Some(message),
            Err(mpsc::TryRecvError::Empty) if !self.paused => {
                self.paused = true;
                return Some(Next::Pause);
            }
            Err(_) => self.messages.recv().ok(),
        };
        self.paused = false;
        if message.is_none()
            && let Some(reader) = self.reader.take()
            && let Err(panic) = reader.join()
        {
            // Its end is not the end of the file.
            std::panic::resume_unwind(panic);
        }
        message.map(Next::Message)
    }
}

/// How a line becomes a message.
struct LineShape {
    /// As it is shown.
    file: Arc<str>,
    envelope: bool,
    id: Option<String>,
    subject: Option<String>,
    headers: Vec<Header>,
}

impl LineShape {
    fn message(
        &self,
        number: usize,
        line: std::io::Result<Vec<u8>>,
    ) -> Result<NewMessage, CommandError> {
        let place = Line {
            file: Arc::clone(&self.file),
            number,
        };
        let line = line.map_err(|error| cannot_read(&place, &error))?;
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        if !self.envelope {
            return Ok(NewMessage {
                line: Some(place),
                id: self.id.as_ref().map(|id| format!("{id}-{number}")),
                subject: self.subject.clone(),
                headers: self.headers.clone(),
                payload: bytes::Bytes::copy_from_slice(line),
            });
        }
        let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| {
            // Of its place in the line, only the column says more.
            let problem = error.to_string();
            let problem = problem
                .rsplit_once(" at line ")
                .map_or(problem.as_str(), |(problem, _)| problem);
            CommandError::new(
                Exit::Failed,
                format!("{place}, column {}: {problem}", error.column()),
                Some(
                    "write each line as `{\"payload\": ..}`, with `\"id\": \"..\"`, `\"subject\": \"..\"` and \
                     `\"headers\": {..}` where they are needed",
                ),
            )
        })?;
        let mut message = NewMessage::from(envelope);
        message.line = Some(place);
        message.subject = message.subject.or_else(|| self.subject.clone());
        message.headers.extend(self.headers.iter().cloned());
        Ok(message)
    }
}

/// Returns how a file is named in messages.
fn shown(file: &Path) -> String {
    if file == Path::new("-") {
        "standard input".to_owned()
    } else {
        format!("`{}`", file.display())
    }
}

fn cannot_read(what: impl std::fmt::Display, error: &std::io::Error) -> CommandError {
    CommandError::new(
        Exit::Failed,
        format!("cannot read {what}: {error}"),
        Some("name a file that can be read, or `-` for standard input"),
    )
}

fn open(file: &Path) -> Result<Box<dyn BufRead + Send>, CommandError> {
    if file == Path::new("-") {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    match File::open(file) {
        Ok(opened) => Ok(Box::new(BufReader::new(opened))),
        Err(error) => Err(cannot_read(shown(file), &error)),
    }
}

fn read_all(file: &Path) -> Result<Vec<u8>, CommandError> {
    let mut bytes = Vec::new();
    open(file)?
        .read_to_end(&mut bytes)
        .map_err(|error| cannot_read(shown(file), &error))?;
    Ok(bytes)
}

/// Makes a bar on standard error: hidden if that is no terminal, without an end if the number of lines is not known.
fn progress_bar(file: &Path) -> ProgressBar {
    let lines = if std::io::stderr().is_terminal() && file.is_file() {
        open(file)
            .ok()
            .map(|reader| reader.split(b'\n').count() as u64)
    } else {
        None
    };
    match lines {
        Some(lines) => styled(
            ProgressBar::new(lines),
            "{bar:40} {pos}/{len} sent, {per_sec}, {eta} left",
        ),
        None => styled(
            ProgressBar::new_spinner(),
            "{spinner} {pos} sent, {per_sec}",
        ),
    }
}
