//! The address for operators and their tools.

use std::net::SocketAddr;
use std::path::Path;

use super::connections::secret;
use super::section::Section;
use crate::source::jetstream::Secret;

/// Shorter tokens could be guessed.
const TOKEN_MIN: usize = 16;

/// The address for operators and their tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where it is. Beyond this machine only with a token.
    pub listen: SocketAddr,
    /// What those who ask have to know.
    pub token: Option<Secret>,
}

pub(super) fn check_admin(folder: &Path, section: Section<'_>) -> Option<AdminConfig> {
    const HINT: &str = "write `listen = \"127.0.0.1:7878\"`";
    const TOKEN_HINT: &str = "write `token = { env = \"VARIABLE\" }` or `token = { file = \"FILE\" }`, or listen at `127.0.0.1`";
    let text = section.required_text("listen", HINT);
    let token = secret(folder, &section, "token");
    if let Some(Secret::Text(text)) = &token
        && let Err(problem) = check_token(text)
    {
        let hint = "write one that `openssl rand -hex 32` makes".to_owned();
        section.problem("token", problem, hint);
    }
    let address = text.and_then(|text| match text.parse::<SocketAddr>() {
        // One that can't be read has its own problem.
        Ok(address) if address.ip().is_loopback() || section.has("token") => Some(address),
        Ok(_) => {
            section.problem(
                "listen",
                format!("`{text}` can be reached from other machines, and there is no `token` to ask them for"),
                TOKEN_HINT.to_owned(),
            );
            None
        }
        Err(_) => {
            section.problem(
                "listen",
                format!("`{text}` is not an address with a port"),
                HINT.to_owned(),
            );
            None
        }
    });
    section.finish();
    Some(AdminConfig {
        listen: address?,
        token,
    })
}

/// Looks whether `text` can be a bearer token.
///
/// # Errors
/// What is wrong with it, without showing it: it is shorter than 16 bytes, or has characters that no header can carry.
pub fn check_token(text: &str) -> Result<(), String> {
    if text.len() < TOKEN_MIN {
        return Err(format!("has fewer than {TOKEN_MIN} bytes"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("has other characters than letters, digits and signs of ASCII".to_owned());
    }
    Ok(())
}
