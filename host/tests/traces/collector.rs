//! A receiver of OTLP by HTTP, with or without TLS.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, header};
use axum::routing::post;
use axum::serve::Listener;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::support::certificates::Signed;

/// What came.
#[derive(Default)]
struct Got {
    spans: Vec<Received>,
    headers: Vec<HeaderMap>,
}

/// A span with the resource that it came from.
#[derive(Clone, Debug)]
pub(crate) struct Received {
    pub(crate) resource: BTreeMap<String, String>,
    pub(crate) span: Span,
}

impl Received {
    pub(crate) fn name(&self) -> &str {
        &self.span.name
    }

    pub(crate) fn trace_id(&self) -> String {
        hex(&self.span.trace_id)
    }

    pub(crate) fn id(&self) -> String {
        hex(&self.span.span_id)
    }

    /// The parent's id; empty if it has none.
    pub(crate) fn parent(&self) -> String {
        hex(&self.span.parent_span_id)
    }

    /// An attribute as text.
    pub(crate) fn attribute(&self, key: &str) -> Option<String> {
        let found: Vec<String> = texts(&self.span.attributes)
            .filter(|(name, _)| name == key)
            .map(|(_, value)| value)
            .collect();
        assert!(found.len() < 2, "{key} stands there twice");
        found.into_iter().next()
    }

    /// The message of an error status.
    pub(crate) fn error(&self) -> Option<&str> {
        let status = self.span.status.as_ref()?;
        (status.code == 2).then_some(&status.message)
    }
}

/// Listens until it is dropped.
pub(crate) struct Collector {
    pub(crate) address: SocketAddr,
    got: Arc<Mutex<Got>>,
    serving: JoinHandle<()>,
}

impl Collector {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::serve(address, listener)
    }

    pub(crate) async fn start_with_tls(signed: &Signed) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let certificate = CertificateDer::from_pem_slice(signed.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(signed.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        Self::serve(address, Encrypted { listener, acceptor })
    }

    fn serve<L: Listener<Addr = SocketAddr>>(address: SocketAddr, listener: L) -> Self {
        let got = Arc::<Mutex<Got>>::default();
        let routes = Router::new()
            .route("/v1/traces", post(receive))
            .layer(DefaultBodyLimit::disable())
            .with_state(Arc::clone(&got));
        let serving = tokio::spawn(async move {
            let _ = axum::serve(listener, routes).await;
        });
        Self {
            address,
            got,
            serving,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All spans so far.
    pub(crate) fn spans(&self) -> Vec<Received> {
        self.got.lock().unwrap().spans.clone()
    }

    /// The headers of each request so far.
    pub(crate) fn headers(&self) -> Vec<HeaderMap> {
        self.got.lock().unwrap().headers.clone()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn receive(
    State(got): State<Arc<Mutex<Got>>>,
    headers: HeaderMap,
    body: Bytes,
) -> ([(header::HeaderName, &'static str); 1], Vec<u8>) {
    assert_eq!(headers[header::CONTENT_TYPE], "application/x-protobuf");
    let request = ExportTraceServiceRequest::decode(body).unwrap();
    let mut got = got.lock().unwrap();
    got.headers.push(headers);
    for of_resource in request.resource_spans {
        let resource: BTreeMap<String, String> =
            texts(&of_resource.resource.unwrap().attributes).collect();
        for of_scope in of_resource.scope_spans {
            assert_eq!(of_scope.scope.unwrap().name, "hapax");
            got.spans
                .extend(of_scope.spans.into_iter().map(|span| Received {
                    resource: resource.clone(),
                    span,
                }));
        }
    }
    (
        [(header::CONTENT_TYPE, "application/x-protobuf")],
        ExportTraceServiceResponse::default().encode_to_vec(),
    )
}

struct Encrypted {
    listener: TcpListener,
    acceptor: TlsAcceptor,
}

impl Listener for Encrypted {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await.unwrap();
            if let Ok(stream) = self.acceptor.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

fn texts(attributes: &[KeyValue]) -> impl Iterator<Item = (String, String)> {
    attributes.iter().map(|attribute| {
        let text = match attribute.value.as_ref().unwrap().value.as_ref().unwrap() {
            Value::StringValue(text) => text.clone(),
            Value::BoolValue(value) => value.to_string(),
            Value::IntValue(value) => value.to_string(),
            Value::DoubleValue(value) => value.to_string(),
            other => panic!("{other:?}"),
        };
        (attribute.key.clone(), text)
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
