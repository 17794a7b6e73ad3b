//! Requests to the collector.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::http::{HeaderName, HeaderValue};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{OTEL_EXPORTER_OTLP_TIMEOUT, OTEL_EXPORTER_OTLP_TRACES_TIMEOUT};
use tokio::runtime::Handle;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::queue::Board;
use super::{TelemetryError, variable};

/// How long a request may take, unless the environment says it (OTLP specification).
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Sends requests from the runtime in which it was made, on behalf of a thread that has none.
pub(super) struct Collector {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    headers: Vec<(HeaderName, HeaderValue)>,
    timeout: Duration,
    runtime: Handle,
    board: Arc<Board>,
}

impl Collector {
    /// Sends `headers` with each request, and tells `board` why one failed. Only what is `encrypted` needs the system's certificate
    /// authorities. Call it inside a runtime.
    ///
    /// # Errors
    /// There are no certificate authorities.
    pub(super) fn new(
        encrypted: bool,
        headers: Vec<(HeaderName, HeaderValue)>,
        board: Arc<Board>,
    ) -> Result<Self, TelemetryError> {
        let provider = default_provider();
        let connector = match encrypted {
            true => HttpsConnectorBuilder::new()
                .with_provider_and_native_roots(provider)
                .map_err(no_authorities)?
                .https_only()
                .enable_http1()
                .build(),
            false => HttpsConnectorBuilder::new()
                .with_tls_config(
                    ClientConfig::builder_with_provider(Arc::new(provider))
                        .with_safe_default_protocol_versions()
                        .map_err(no_authorities)?
                        .with_root_certificates(RootCertStore::empty())
                        .with_no_client_auth(),
                )
                .https_or_http()
                .enable_http1()
                .build(),
        };
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            headers,
            timeout: [
                OTEL_EXPORTER_OTLP_TRACES_TIMEOUT,
                OTEL_EXPORTER_OTLP_TIMEOUT,
            ]
            .into_iter()
            .find_map(|name| variable(name)?.parse().ok())
            .map_or(TIMEOUT_DEFAULT, Duration::from_millis),
            runtime: Handle::current(),
            board,
        })
    }
}

fn no_authorities(error: impl fmt::Display) -> TelemetryError {
    TelemetryError {
        problem: format!("traces cannot be sent encrypted: {error}"),
        hint: "install the system's `ca-certificates`, or name a file of authorities in the variable `SSL_CERT_FILE`".into(),
    }
}

impl fmt::Debug for Collector {
    /// Leaves the headers out: they may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collector").finish_non_exhaustive()
    }
}

#[async_trait]
impl HttpClient for Collector {
    async fn send_bytes(&self, mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        for (name, value) in &self.headers {
            request.headers_mut().insert(name, value.clone());
        }
        let (client, timeout) = (self.client.clone(), self.timeout);
        // Everything that needs a runtime is within the task. Its own error means that the runtime has ended.
        let sent = self.runtime.spawn(async move {
            let answered = async {
                let (parts, body) = client.request(request.map(Full::new)).await?.into_parts();
                let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?;
                Ok::<_, HttpError>(Response::from_parts(parts, body.to_bytes()))
            };
            tokio::time::timeout(timeout, answered).await
        });
        let sent = sent.await?;
        let answer = sent.unwrap_or_else(|elapsed| Err(elapsed.into()));
        match &answer {
            Ok(answer) if answer.status().is_success() => {}
            Ok(answer) => self.board.failed(format!("it answers {}", answer.status())),
            Err(error) => self.board.failed(causes(error.as_ref())),
        }
        answer
    }
}

/// Returns an error with what is behind it.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
