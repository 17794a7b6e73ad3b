//! What is wrong with a configuration, in words.

use std::fmt;
use std::path::PathBuf;

/// One thing that is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key's path, such as `handlers.orders.limits.time`; empty for the file as a whole.
    pub key: String,
    /// What is wrong.
    pub text: String,
    /// What to do.
    pub hint: Option<String>,
}

/// Everything that is wrong with one configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file, as it was named.
    pub file: PathBuf,
    /// At least one.
    pub problems: Vec<Problem>,
}

impl fmt::Display for ConfigError {
    /// Writes one `error:` line a problem, each followed by its `hint:` line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "error: `{}`: ", self.file.display())?;
            if !problem.key.is_empty() {
                write!(f, "`{}`: ", problem.key)?;
            }
            write!(f, "{}", problem.text)?;
            if let Some(hint) = &problem.hint {
                write!(f, "\nhint: {hint}")?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
