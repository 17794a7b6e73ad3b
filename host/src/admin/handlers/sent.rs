//! The body of a deployment.

use axum::RequestExt as _;
use axum::body::Body;
use axum::extract::multipart::MultipartError;
use axum::extract::{DefaultBodyLimit, Multipart, Request};
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;

use super::Change;
use crate::admin::answer::ApiError;
use crate::admin::body::read_body;
use crate::handler::COMPONENT_BYTES_MAX;
use crate::text::one_line;

/// All migrations of one deployment together, in bytes.
pub const MIGRATIONS_BYTES_MAX: usize = 16 << 20;
/// A deployment's whole body: the component, its migrations, and what stands between the parts.
const BODY_BYTES_MAX: usize = COMPONENT_BYTES_MAX + MIGRATIONS_BYTES_MAX + (1 << 20);

/// Reads the component alone, or the form.
///
/// # Errors
/// As `read_body`; the form has other parts, or none `component`; a migration is not UTF-8; the component or all migrations are too large.
pub(super) async fn read(headers: HeaderMap, body: Body) -> Result<Change, ApiError> {
    let is_form = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|kind| kind.trim_start().starts_with("multipart/form-data"));
    if !is_form {
        let component = read_body(&headers, body, COMPONENT_BYTES_MAX).await?;
        return Ok(Change::Deploy {
            component,
            migrations: None,
        });
    }
    let whole = read_body(&headers, body, BODY_BYTES_MAX).await?;
    read_form(headers, whole).await
}

async fn read_form(headers: HeaderMap, whole: Bytes) -> Result<Change, ApiError> {
    let failed = |error: MultipartError| unreadable(&error.body_text());
    let mut request = Request::new(Body::from(whole));
    *request.headers_mut() = headers;
    // What is too long was refused already.
    DefaultBodyLimit::disable().apply(&mut request);
    let mut form: Multipart = request.extract().await.map_err(
        |rejection: axum::extract::multipart::MultipartRejection| {
            unreadable(&rejection.body_text())
        },
    )?;
    let mut component = None;
    let mut migrations = Vec::new();
    let mut migrations_bytes = 0;
    while let Some(field) = form.next_field().await.map_err(failed)? {
        let name = field.name().unwrap_or_default().to_owned();
        let file = field.file_name().unwrap_or_default().to_owned();
        match name.as_str() {
            "component" if component.is_none() => {
                let bytes = field.bytes().await.map_err(failed)?;
                if bytes.len() > COMPONENT_BYTES_MAX {
                    return Err(too_large("the component has", COMPONENT_BYTES_MAX));
                }
                component = Some(bytes);
            }
            "migrations" => {
                let bytes = field.bytes().await.map_err(failed)?;
                migrations_bytes += bytes.len();
                if migrations_bytes > MIGRATIONS_BYTES_MAX {
                    return Err(too_large(
                        "the migrations together have",
                        MIGRATIONS_BYTES_MAX,
                    ));
                }
                let text = String::from_utf8(bytes.into()).map_err(|_| {
                    unreadable(&format!("the migration `{}` is not UTF-8", one_line(&file)))
                })?;
                migrations.push((file, text));
            }
            other => {
                return Err(unreadable(&format!(
                    "the form has a part `{}` too many",
                    one_line(other)
                )));
            }
        }
    }
    match component {
        Some(component) => Ok(Change::Deploy {
            component,
            migrations: Some(migrations),
        }),
        None => Err(unreadable("the form has no part `component`")),
    }
}

fn too_large(what: &str, max: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too-large",
        format!("{what} more than {max} bytes"),
        None,
    )
}

fn unreadable(problem: &str) -> ApiError {
    ApiError::bad_request(
        problem,
        Some(
            "send the component as the body, or a form with one file `component` and files `migrations`",
        ),
    )
}
