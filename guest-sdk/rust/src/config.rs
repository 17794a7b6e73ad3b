//! The handler's own `config` table in the host's configuration.

use std::fmt;
use std::str::FromStr;

use crate::bindings::hapax::handler::config as host;
use crate::failure::Failure;

/// A setting that is absent or can't be read. With `?` it becomes [`Failure::Retry`]: the message is not at fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

/// Returns the setting: a string as written, any other value as JSON text; `None` if there is none.
pub fn get(name: &str) -> Option<String> {
    host::get(name)
}

/// Returns the names of all settings.
pub fn names() -> Vec<String> {
    host::names()
}

/// Returns the setting, which must be there.
///
/// # Errors
/// It is absent.
pub fn require(name: &str) -> Result<String, Error> {
    get(name).ok_or_else(|| Error(format!("`config.{name}` is not set for this handler")))
}

/// Reads the setting as a `T`; `None` if there is none.
///
/// # Errors
/// It is there, but not a `T`.
pub fn parse<T>(name: &str) -> Result<Option<T>, Error>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    get(name).map(|text| parse_text(name, &text)).transpose()
}

fn parse_text<T>(name: &str, text: &str) -> Result<T, Error>
where
    T: FromStr,
    T::Err: fmt::Display,
{
    // The value is not part of the message: it may be a secret.
    text.parse().map_err(|error| {
        Error(format!(
            "`config.{name}` cannot be read as {}: {error}",
            std::any::type_name::<T>()
        ))
    })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::retry(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_parsed() {
        assert_eq!(parse_text::<i64>("limit", "50"), Ok(50));
        assert_eq!(
            parse_text::<i64>("limit", "many").unwrap_err().to_string(),
            "`config.limit` cannot be read as i64: invalid digit found in string"
        );
    }
}
