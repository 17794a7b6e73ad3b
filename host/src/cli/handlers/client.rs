//! Speaking to a host's admin address.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use indicatif::ProgressBar;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, SendBody};

use super::super::styled;
use crate::admin::{BY_HEADER, Changed};
use crate::exit::{CommandError, Exit};
use crate::text::one_line;

/// How long a host may take until it answers the connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a whole request may take: a component of 256 MiB is sent, checked and compiled in it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(600);
/// The largest answer, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What every error of the admin address looks like.
#[derive(Deserialize)]
struct RefusalBody {
    error: Refused,
}

#[derive(Deserialize)]
struct Refused {
    message: String,
    hint: Option<String>,
}

/// What `deploy` sends.
pub(super) struct DeployFiles {
    pub(super) component: Vec<u8>,
    /// Names and contents.
    pub(super) migrations: Option<Vec<(String, Vec<u8>)>>,
}

/// A host's admin address. Requests run off the async threads.
#[derive(Clone)]
pub(super) struct Client {
    agent: Agent,
    url: Arc<str>,
    token: Option<Arc<str>>,
}

impl Client {
    /// `url` is `http://host:port` or `https://host`.
    pub(super) fn new(url: &str, token: Option<String>) -> Result<Self, CommandError> {
        let url = url.trim_end_matches('/');
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(CommandError::new(
                Exit::CommandLine,
                format!("`{}` is not an admin address", one_line(url)),
                Some("write it as `http://127.0.0.1:7878`"),
            ));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_global(Some(REQUEST_TIMEOUT))
            // A proxy of the user's for the web would not reach this machine's own address, and must not see the token.
            .proxy(None)
            .build();
        Ok(Self {
            agent: Agent::new_with_config(config),
            url: url.into(),
            token: token.filter(|token| !token.is_empty()).map(Into::into),
        })
    }

    pub(super) async fn get<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
    ) -> Result<T, CommandError> {
        self.ask(path, |client, url| {
            client.with_token(client.agent.get(url)).call()
        })
        .await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Result<Changed, CommandError> {
        self.ask(path, move |client, url| {
            client
                .with_token(client.agent.post(url))
                .header(BY_HEADER, who())
                .header("content-type", "application/json")
                .send(body.to_string())
        })
        .await
    }

    /// Sends a component, with its migrations if there are any; shows how far it is.
    pub(super) async fn deploy(
        &self,
        path: &str,
        files: DeployFiles,
    ) -> Result<Changed, CommandError> {
        self.ask(path, |client, url| {
            let (kind, body) = body_of(files);
            // Hidden if standard error is no terminal, and drawn from the second second on.
            let bar = styled(
                ProgressBar::new(body.len() as u64),
                "{bar:40} {bytes}/{total_bytes} sent, {bytes_per_sec}, {msg}{eta} left",
            );
            bar.enable_steady_tick(Duration::from_secs(1));
            let mut reader = Sending {
                sent: bar.wrap_read(std::io::Cursor::new(&body)),
            };
            let answer = client
                .with_token(client.agent.post(url))
                .header(BY_HEADER, who())
                .header("content-type", kind)
                .header("content-length", body.len())
                // Who is refused is told so before the component is sent.
                .header("expect", "100-continue")
                .send(SendBody::from_reader(&mut reader));
            bar.finish_and_clear();
            answer
        })
        .await
    }

    fn with_token<S>(&self, request: ureq::RequestBuilder<S>) -> ureq::RequestBuilder<S> {
        match &self.token {
            Some(token) => request.header("authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    async fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        path: &str,
        send: impl FnOnce(&Self, &str) -> Result<Response<Body>, ureq::Error> + Send + 'static,
    ) -> Result<T, CommandError> {
        let client = self.clone();
        let url = format!("{}{path}", self.url);
        let asked = tokio::task::spawn_blocking(move || {
            let answer = send(&client, &url).map_err(|error| client.unreachable(&error))?;
            client.read(answer)
        });
        match asked.await {
            Ok(answer) => answer,
            Err(error) => Err(CommandError::new(
                Exit::Bug,
                format!("the request failed inside: {error}"),
                None,
            )),
        }
    }

    fn read<T: DeserializeOwned>(&self, mut answer: Response<Body>) -> Result<T, CommandError> {
        let status = answer.status();
        let text = answer
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_string()
            .map_err(|error| self.unreachable(&error))?;
        if status.is_success() {
            return serde_json::from_str(&text).map_err(|error| self.foreign(status, &error));
        }
        if status == StatusCode::UNAUTHORIZED {
            return Err(CommandError::new(
                Exit::Failed,
                format!(
                    "the host at `{}` {}",
                    self.url,
                    match self.token {
                        Some(_) => "does not accept the token",
                        None => "asks for a token",
                    }
                ),
                Some(
                    "write the host's token into `token` under `[admin]` of the configuration, or into the variable HAPAX_ADMIN__TOKEN",
                ),
            ));
        }
        let RefusalBody { error: refusal } =
            serde_json::from_str(&text).map_err(|error| self.foreign(status, &error))?;
        let exit = match status {
            StatusCode::NOT_FOUND | StatusCode::CONFLICT => Exit::CommandLine,
            StatusCode::UNPROCESSABLE_ENTITY => Exit::Configuration,
            _ => Exit::Failed,
        };
        Err(CommandError::new(
            exit,
            refusal.message,
            refusal.hint.as_deref(),
        ))
    }

    fn unreachable(&self, error: &ureq::Error) -> CommandError {
        let is_nobody = matches!(
            error,
            ureq::Error::ConnectionFailed | ureq::Error::HostNotFound
        ) || matches!(error, ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused);
        CommandError::new(
            Exit::Failed,
            format!(
                "cannot reach a host at `{}`: {}",
                self.url,
                one_line(&error.to_string())
            ),
            Some(if is_nobody {
                "start it with `hapax run`, with `listen` under `[admin]` in its configuration; or name another host's address with \
                 `--admin URL`"
            } else {
                "look into the host's log, and try again: what was asked for may be done"
            }),
        )
    }

    fn foreign(&self, status: StatusCode, error: &serde_json::Error) -> CommandError {
        CommandError::new(
            Exit::Failed,
            format!(
                "what answers at `{}` is not a host of this version: status {}, {error}",
                self.url,
                status.as_u16()
            ),
            Some("check the address, and that the host is of this release"),
        )
    }
}

/// Reads from a bar.
struct Sending<R> {
    sent: R,
}

impl<R: Read> Read for Sending<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.sent.read(buffer)
    }
}

/// Returns who asks, for the history.
fn who() -> String {
    let user = ["USER", "LOGNAME"]
        .iter()
        .find_map(|name| std::env::var(name).ok())
        .filter(|user| !user.is_empty())
        .unwrap_or_else(|| format!("uid{}", rustix::process::getuid().as_raw()));
    let uname = rustix::system::uname();
    let by = format!("{user}@{}", uname.nodename().to_string_lossy());
    // A header's value is visible ASCII.
    by.chars()
        .map(|char| if char.is_ascii_graphic() { char } else { '?' })
        .take(200)
        .collect()
}

/// Returns the body and its type: the component alone, or a form with the migrations beside it (RFC 7578).
fn body_of(files: DeployFiles) -> (String, Vec<u8>) {
    let Some(migrations) = files.migrations else {
        return ("application/wasm".into(), files.component);
    };
    // 128 random bits do not stand in the files.
    let boundary = format!("hapax-{:032x}", rand::random::<u128>());
    let mut body = Vec::with_capacity(files.component.len() + 4096);
    let mut part = |name: &str, file: &str, bytes: &[u8]| {
        let file: String = file
            .chars()
            .filter(|char| !matches!(char, '"' | '\\') && !char.is_control())
            .collect();
        body.extend_from_slice(
            format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{file}\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            )
            .as_bytes(),
        );
        body.extend_from_slice(bytes);
        body.extend_from_slice(b"\r\n");
    };
    part("component", "component.wasm", &files.component);
    for (file, bytes) in &migrations {
        part("migrations", file, bytes);
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}
