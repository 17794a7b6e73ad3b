//! Where traces go, and which.

use std::path::Path;

use axum::http::{HeaderName, Uri};
use toml::Value;

use super::connections::secret_place;
use super::section::Section;
use crate::source::jetstream::Secret;

/// Where traces go, and which. What is absent is left to OpenTelemetry's own variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TelemetryConfig {
    /// The collector: `http://host:port` or `https://host:port`, for OTLP by HTTP; the path `/v1/traces` is added to it.
    pub otlp: Option<String>,
    /// What this service is called in traces.
    pub service_name: Option<String>,
    /// Which part of the messages is traced that bring no decision with them, from 0 to 1.
    pub sample: Option<f64>,
    /// What goes with each request to the collector, by name.
    pub headers: Vec<(String, Secret)>,
}

pub(super) fn check_telemetry(folder: &Path, section: Section<'_>) -> TelemetryConfig {
    let otlp = section.text("otlp").and_then(|text| {
        let is_address = text.parse::<Uri>().is_ok_and(|address| {
            matches!(address.scheme_str(), Some("http" | "https"))
                && address.host().is_some_and(|host| !host.is_empty())
                && address
                    .authority()
                    .is_some_and(|authority| !authority.as_str().contains('@'))
                && address.query().is_none()
        });
        if !is_address {
            // Without the text: it may hold a password.
            section.problem(
                "otlp",
                "is not the address of a collector",
                "write `otlp = \"http://127.0.0.1:4318\"`".to_owned(),
            );
        }
        is_address.then(|| text.trim_end_matches('/').to_owned())
    });
    let service_name = section.text("service_name").map(str::to_owned);
    if service_name.as_deref() == Some("") {
        section.problem("service_name", "is empty", None);
    }
    let sample = section.part("sample");
    let headers = section
        .section("headers")
        .map(|headers| check_headers(folder, &headers))
        .unwrap_or_default();
    section.finish();
    TelemetryConfig {
        otlp,
        service_name,
        sample,
        headers,
    }
}

/// Reads headers: each a text, or the place of a secret.
fn check_headers(folder: &Path, section: &Section<'_>) -> Vec<(String, Secret)> {
    section
        .entries()
        .filter_map(|(name, value)| {
            if name.parse::<HeaderName>().is_err() {
                section.problem(name, "is not a header's name", None);
                return None;
            }
            let secret = match value {
                Value::String(text) => Some(Secret::Text(text.clone())),
                Value::Table(place) => secret_place(folder, section.inner(name, place)),
                _ => {
                    section.problem(name, "expected a text in quotes", None);
                    None
                }
            };
            Some((name.clone(), secret?))
        })
        .collect()
}
