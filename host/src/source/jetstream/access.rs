//! How a NATS server is told who asks, and how its certificate is checked.
//!
//! **Invariant**: no text that is made here holds a secret; files are named, never shown.

use std::fmt;
use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;

use crate::source::SourceError;

/// Who asks, and over which kind of connection. By default what the URL says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Who asks.
    pub login: Login,
    /// Certificates.
    pub tls: Tls,
}

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Login {
    /// What the URL holds: `user:password@`, `token@` or nothing.
    #[default]
    InUrl,
    /// A file with a user's JWT and the seed of its nkey, as `nsc` writes it.
    Credentials(PathBuf),
    /// A file with the seed of a user's nkey.
    Nkey(PathBuf),
    /// A token.
    Token(Secret),
    /// A user and a password.
    Password {
        /// The user's name.
        user: String,
        /// The password.
        password: Secret,
    },
}

/// A secret, or where it stands. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    /// Itself.
    Text(String),
    /// The variable that holds it.
    Variable(String),
    /// The file that holds it; a line end at its end is no part of it.
    File(PathBuf),
}

impl fmt::Debug for Secret {
    /// Shows where it stands, never what it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::Variable(name) => write!(f, "Variable({name})"),
            Self::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

impl Secret {
    /// Reads it where it stands.
    ///
    /// # Errors
    /// `Unusable`, naming the variable or the file.
    pub fn read(&self) -> Result<String, SourceError> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::Variable(name) => std::env::var(name).map_err(|_| {
                SourceError::Unusable(format!(
                    "the variable `{name}`, which holds a secret, is not set\nhint: set it for the process of hapax"
                ))
            }),
            Self::File(path) => Ok(read(path, "a secret")?
                .trim_end_matches(['\n', '\r'])
                .to_owned()),
        }
    }
}

/// Certificates, each a file in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Who may have signed the server's certificate; else the system's authorities.
    pub ca: Option<PathBuf>,
    /// This client's certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
    /// Never connect without TLS.
    pub required: bool,
    /// Begin with TLS, before the server's first line (the server's `handshake_first`).
    pub first: bool,
}

impl Access {
    /// Adds all of it to what a connection is made from. Files are read here, so that each that can't be used is named.
    ///
    /// # Errors
    /// `Unusable`, naming the file or the variable and what to do.
    pub(super) fn apply(&self, mut options: ConnectOptions) -> Result<ConnectOptions, SourceError> {
        options = match &self.login {
            Login::InUrl => options,
            Login::Credentials(path) => {
                let text = read(path, "credentials")?;
                options.credentials(&text).map_err(|_| {
                    SourceError::Unusable(format!(
                        "`{}` is no credentials file: it lacks a user's JWT or the seed of its nkey\nhint: name the file that \
                         `nsc generate creds` writes; a seed alone goes into `nkey`",
                        path.display()
                    ))
                })?
            }
            Login::Nkey(path) => options.nkey(seed(&read(path, "the seed of an nkey")?, path)?),
            Login::Token(token) => options.token(token.read()?),
            Login::Password { user, password } => {
                options.user_and_password(user.clone(), password.read()?)
            }
        };
        let Tls {
            ca,
            client,
            required,
            first,
        } = &self.tls;
        if let Some(ca) = ca {
            pem(ca, "CERTIFICATE", "tls.ca")?;
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((certificate, key)) = client {
            pem(certificate, "CERTIFICATE", "tls.cert")?;
            pem(key, "PRIVATE KEY", "tls.key")?;
            options = options.add_client_certificate(certificate.clone(), key.clone());
        }
        if *required {
            options = options.require_tls(true);
        }
        if *first {
            options = options.tls_first();
        }
        Ok(options)
    }

    /// Returns what to do when the server refuses who asks.
    pub(super) fn refused_hint(&self) -> String {
        match &self.login {
            Login::InUrl => {
                "put them into the `url`: `nats://user:password@host:4222` or `nats://token@host:4222`, or name a file with \
                 `credentials` or `nkey`"
                    .to_owned()
            }
            Login::Credentials(path) => format!(
                "`credentials` names `{}`: is its user of an account that this server knows, and not expired or revoked?",
                path.display()
            ),
            Login::Nkey(path) => format!(
                "`nkey` names `{}`: is its public key among the server's users?",
                path.display()
            ),
            Login::Token(_) => "check `token`".to_owned(),
            Login::Password { .. } => "check `user` and `password`".to_owned(),
        }
    }
}

/// Finds the seed among a file's lines: some tools write comments and marks around it.
fn seed(text: &str, path: &Path) -> Result<String, SourceError> {
    text.lines()
        .map(str::trim)
        .find(|line| {
            line.len() > 50 && line.starts_with("SU") && line.bytes().all(|b| b.is_ascii_alphanumeric())
        })
        .map(str::to_owned)
        .ok_or_else(|| {
            SourceError::Unusable(format!(
                "`{}` holds no seed of a user's nkey\nhint: name a file with a line that begins with `SU`, as `nk -gen user` \
                 writes it",
                path.display()
            ))
        })
}

fn pem(path: &Path, kind: &str, key: &str) -> Result<(), SourceError> {
    let text = read(path, &format!("`{key}`"))?;
    let is_there = text.lines().any(|line| {
        line.starts_with("-----BEGIN ") && line.trim_end().ends_with(&format!("{kind}-----"))
    });
    if is_there {
        return Ok(());
    }
    Err(SourceError::Unusable(format!(
        "`{}`, which `{key}` names, holds no {} in PEM\nhint: name a file with a line `-----BEGIN {kind}-----`",
        path.display(),
        kind.to_ascii_lowercase()
    )))
}

fn read(path: &Path, what: &str) -> Result<String, SourceError> {
    std::fs::read_to_string(path).map_err(|error| {
        SourceError::Unusable(format!(
            "`{}` with {what} cannot be read: {error}\nhint: correct the path in the configuration, or let the user that hapax \
             runs as read it",
            path.display()
        ))
    })
}
