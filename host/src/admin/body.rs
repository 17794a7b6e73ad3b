//! What a request says: its body, its query, the names in its path. Each is read here, with a bound, or refused in the shape of
//! every other error.

use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use serde::de::DeserializeOwned;

use super::answer::ApiError;

/// The largest ordinary body.
pub(super) const BODY_MAX: usize = 1 << 20;
/// The largest body of many messages or dead letters.
pub(super) const MANY_MAX: usize = 16 << 20;

/// How long an ordinary body may take to come.
const BODY_TIME: Duration = Duration::from_secs(10);
/// How long a large one may take.
const LARGE_BODY_TIME: Duration = Duration::from_secs(60);
/// How long a component may take, which can be still larger.
const COMPONENT_BODY_TIME: Duration = Duration::from_secs(300);
/// Beyond its bound a body is read this much further, and thrown away, so that its sender comes to read the answer.
const LINGER: usize = 4 << 20;

/// Reads a whole body of at most `max` bytes.
///
/// # Errors
/// 413 if it is longer, 408 if it does not come in time (10 s; 60 s where more than 1 MiB may come, 300 s where more than 16 MiB may), 400 if it breaks off.
pub(crate) async fn read_body(
    headers: &HeaderMap,
    body: Body,
    max: usize,
) -> Result<Bytes, ApiError> {
    let time = if max > MANY_MAX {
        COMPONENT_BODY_TIME
    } else if max > BODY_MAX {
        LARGE_BODY_TIME
    } else {
        BODY_TIME
    };
    match tokio::time::timeout(time, read(headers, body, max)).await {
        Ok(read) => read,
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            format!("the body did not come within {time:?}"),
            None,
        )),
    }
}

async fn read(headers: &HeaderMap, mut body: Body, max: usize) -> Result<Bytes, ApiError> {
    let declared = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok())
        .unwrap_or_default();
    let asks_first = headers.contains_key(header::EXPECT);
    let mut read = BytesMut::new();
    let mut length = 0;
    if declared > max && (asks_first || declared > max + LINGER) {
        return Err(too_large(max));
    }
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            ApiError::bad_request(format!("the body breaks off: {error}"), None)
        })?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        length += data.len();
        if length > max + LINGER {
            break;
        }
        if length <= max && declared <= max {
            read.extend_from_slice(&data);
        }
    }
    if length > max {
        return Err(too_large(max));
    }
    Ok(read.freeze())
}

fn too_large(max: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too-large",
        format!("the body is longer than {max} bytes"),
        None,
    )
}

/// Refuses a body of another type.
pub(super) fn expect_type(headers: &HeaderMap, wanted: &str) -> Result<(), ApiError> {
    let given = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .map_or("", |value| {
            value.split(';').next().unwrap_or_default().trim()
        });
    if given.eq_ignore_ascii_case(wanted) {
        return Ok(());
    }
    Err(ApiError::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported-media-type",
        format!("the body is not said to be `{wanted}`"),
        Some(&format!("send it with the header `Content-Type: {wanted}`")),
    ))
}

/// A JSON body of at most `MAX` bytes.
pub(super) struct JsonBody<T, const MAX: usize = BODY_MAX>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync, const MAX: usize> FromRequest<S> for JsonBody<T, MAX> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        expect_type(&parts.headers, "application/json")?;
        let bytes = read_body(&parts.headers, body, MAX).await?;
        let mut json = serde_json::Deserializer::from_slice(&bytes);
        let read = serde_path_to_error::deserialize(&mut json)
            .map_err(|error| {
                let place = error.path().to_string();
                (place, error.into_inner())
            })
            .and_then(|value| match json.end() {
                Ok(()) => Ok(value),
                Err(error) => Err((".".to_owned(), error)),
            });
        match read {
            Ok(value) => Ok(Self(value)),
            Err((place, error)) => Err(ApiError::new(
                StatusCode::BAD_REQUEST,
                "bad-json",
                match place.as_str() {
                    "." => format!("the body: {error}"),
                    place => format!("the body, at `{place}`: {error}"),
                },
                Some("`docs/admin.md` says what each route takes"),
            )),
        }
    }
}

/// What stands behind the `?`. Unknown names are errors if the type says so.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(rejection) => {
                let text = rejection.body_text();
                let text = text.rsplit(": ").next().unwrap_or(&text);
                Err(ApiError::bad_request(
                    format!("the query: {text}"),
                    Some("`docs/admin.md` says what each route takes"),
                ))
            }
        }
    }
}

/// The one name in a path.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path: Result<Path<String>, PathRejection> =
            Path::from_request_parts(parts, state).await;
        match path {
            Ok(Path(name)) => Ok(Self(name)),
            Err(rejection) => Err(ApiError::bad_request(rejection.body_text(), None)),
        }
    }
}

/// The number in a path.
pub(super) struct Numbered(pub(super) i64);

impl<S: Send + Sync> FromRequestParts<S> for Numbered {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let Named(text) = Named::from_request_parts(parts, state).await?;
        text.parse().map(Self).map_err(|_| {
            ApiError::not_found(
                format!("`{}` is not a number", crate::text::one_line(&text)),
                None,
            )
        })
    }
}
