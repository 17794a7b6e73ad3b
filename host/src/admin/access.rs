//! Who may ask: the bearer token, and what a browser may be made to ask for.
//!
//! **Invariant**: a token is kept as its hash only, and compared in constant time; it is in no log, no answer and no `Debug`.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::answer::ApiError;
use crate::config::check_token;

/// What local supervisors may ask without a token, if no other machine can.
const OPEN_ON_LOOPBACK: [&str; 2] = ["/healthz", "/readyz"];

/// The bearer token of the admin address.
#[derive(Clone)]
pub struct Token([u8; 32]);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

impl Token {
    /// Takes a token.
    ///
    /// # Errors
    /// As `check_token`.
    pub fn new(text: &str) -> Result<Self, String> {
        check_token(text)?;
        Ok(Self(Sha256::digest(text).into()))
    }

    /// The time it takes says nothing of the token: hashes are compared, and those in constant time.
    fn is(&self, given: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(given).into();
        self.0.ct_eq(&given).into()
    }
}

/// What is asked of every request before any route sees it.
#[derive(Clone, Debug)]
pub(super) struct Access {
    token: Option<Token>,
    is_loopback: bool,
}

impl Access {
    pub(super) fn new(address: SocketAddr, token: Option<Token>) -> Self {
        Self {
            token,
            is_loopback: address.ip().is_loopback(),
        }
    }

    /// Lets a request pass, or says why not.
    pub(super) fn check<B>(&self, request: &Request<B>) -> Result<(), ApiError> {
        let is_known = match (&self.token, bearer(request.headers())) {
            (Some(token), Some(given)) => token.is(given),
            _ => false,
        };
        if is_known {
            return Ok(());
        }
        let path = request.uri().path();
        let is_open =
            self.is_loopback && (self.token.is_none() || OPEN_ON_LOOPBACK.contains(&path));
        if !is_open {
            return Err(ApiError::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "this address answers those only who know its token",
                Some(
                    "send the header `Authorization: Bearer TOKEN`, with the `token` of `[admin]`",
                ),
            ));
        }
        // A page in a browser on this machine reaches this address: under a name of its own (whose address it has changed
        // meanwhile), or by sending without being able to read the answer.
        if !names_this_machine(request) {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "foreign-host",
                "the request names another host than this machine, as a web page would that was led here",
                Some("ask at `127.0.0.1`, `[::1]` or `localhost`; or set a `token` in `[admin]`"),
            ));
        }
        let is_reading = matches!(*request.method(), Method::GET | Method::HEAD);
        if !is_reading && request.headers().contains_key(header::ORIGIN) {
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "cross-site",
                "the request comes from a web page (it has the header `Origin`), and changes something",
                Some("send it from a program; or set a `token` in `[admin]`"),
            ));
        }
        Ok(())
    }
}

/// The token that a request shows.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let (value, None) = (all.next()?.as_bytes(), all.next()) else {
        return None;
    };
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"Bearer ")
        .then(|| token.trim_ascii())
}

/// True if every name that the request gives its host is an address or `localhost`. Browsers always give one.
fn names_this_machine<B>(request: &Request<B>) -> bool {
    let in_headers = request.headers().get_all(header::HOST).iter();
    let in_headers = in_headers.map(|host| host.to_str().unwrap_or("?"));
    let in_line = request
        .uri()
        .authority()
        .map(|authority| authority.as_str());
    in_headers.chain(in_line).all(|host| {
        let name = match host.strip_prefix('[') {
            // An address of six colons, with its brackets.
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.split(':').next().unwrap_or_default(),
        };
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn access(address: &str, token: Option<&str>) -> Access {
        let token = token.map(|text| Token::new(text).unwrap());
        Access::new(address.parse().unwrap(), token)
    }

    fn code(access: &Access, method: &str, path: &str, headers: &[(&str, &str)]) -> u16 {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let error = access.check(&request.body(()).unwrap());
        use axum::response::IntoResponse as _;
        error.map_or_else(|error| error.into_response().status().as_u16(), |()| 200)
    }

    #[test]
    fn only_the_whole_token_opens() {
        let access = access("0.0.0.0:1", Some(TOKEN));
        for (given, expected) in [
            ("Bearer 0123456789abcdef", 200),
            ("bearer 0123456789abcdef", 200),
            ("Bearer 0123456789abcde", 401),
            ("Bearer 0123456789abcdef0", 401),
            ("Bearer ", 401),
            ("Basic 0123456789abcdef", 401),
            ("0123456789abcdef", 401),
        ] {
            let headers = [("authorization", given)];
            assert_eq!(
                code(&access, "GET", "/metrics", &headers),
                expected,
                "{given}"
            );
            assert_eq!(
                code(&access, "GET", "/healthz", &headers),
                expected,
                "{given}"
            );
        }
        let twice = [
            ("authorization", "Bearer 0123456789abcdef"),
            ("authorization", "Bearer x"),
        ];
        assert_eq!(code(&access, "GET", "/metrics", &twice), 401);
        assert_eq!(code(&access, "GET", "/metrics", &[]), 401);
    }

    #[test]
    fn without_a_token_nothing_is_open_but_on_this_machine() {
        assert_eq!(
            code(&access("0.0.0.0:1", None), "GET", "/healthz", &[]),
            401
        );
        assert_eq!(
            code(&access("[::1]:1", None), "GET", "/api/status", &[]),
            200
        );
        let local = access("127.0.0.1:1", Some(TOKEN));
        assert_eq!(code(&local, "GET", "/healthz", &[]), 200);
        assert_eq!(code(&local, "GET", "/readyz", &[]), 200);
        assert_eq!(code(&local, "GET", "/metrics", &[]), 401);
        assert_eq!(code(&local, "GET", "/healthz/", &[]), 401);
    }

    #[test]
    fn web_pages_are_refused() {
        let access = access("127.0.0.1:1", None);
        for (host, expected) in [
            ("127.0.0.1:7878", 200),
            ("[::1]:7878", 200),
            ("LOCALHOST", 200),
            ("localhost.example.com", 403),
            ("example.com:7878", 403),
            ("127.0.0.1.example.com", 403),
            ("", 403),
        ] {
            assert_eq!(
                code(&access, "GET", "/readyz", &[("host", host)]),
                expected,
                "{host}"
            );
        }
        let origin = [("host", "127.0.0.1"), ("origin", "https://example.com")];
        assert_eq!(code(&access, "GET", "/api/status", &origin), 200);
        assert_eq!(code(&access, "POST", "/api/prune", &origin), 403);
        assert_eq!(code(&access, "DELETE", "/api/x", &origin), 403);
        assert_eq!(code(&access, "GET", "http://example.com/readyz", &[]), 403);
    }

    #[test]
    fn a_token_is_long_and_shown_nowhere() {
        assert!(Token::new("short").is_err());
        assert!(Token::new("0123456789abcde\n").is_err());
        assert_eq!(format!("{:?}", Token::new(TOKEN).unwrap()), "Token(..)");
    }
}
