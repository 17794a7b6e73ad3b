//! How servers are told who asks: the keys of a stream's access, and the files that a database URL names.

use std::path::{Path, PathBuf};

use super::section::Section;
use crate::source::jetstream::{Access, Login, Secret, Tls};
use crate::text::url_decoded;

/// The parameters of a database URL that name files.
const FILE_PARAMETERS: [&str; 7] = [
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
];

/// Reads who asks and how certificates are checked. Relative paths start at `folder`.
pub(super) fn check_access(folder: &Path, section: &Section<'_>, url: Option<&str>) -> Access {
    let credentials = section.text("credentials");
    let nkey = section.text("nkey");
    let token = secret(folder, section, "token");
    let user = section.text("user");
    let password = secret(folder, section, "password");
    let named = [
        ("credentials", credentials.is_some()),
        ("nkey", nkey.is_some()),
        ("token", token.is_some()),
        ("user", user.is_some()),
    ];
    let mut named = named.iter().filter(|(_, is_named)| *is_named);
    if let (Some((first, _)), Some((second, _))) = (named.next(), named.next()) {
        section.problem(
            second,
            format!("does not go with `{first}`"),
            "name one way of saying who asks".to_owned(),
        );
    }
    let login = match (credentials, nkey, token, user, password) {
        (Some(file), ..) => Login::Credentials(folder.join(file)),
        (_, Some(file), ..) => Login::Nkey(folder.join(file)),
        (_, _, Some(token), ..) => Login::Token(token),
        (_, _, _, Some(user), Some(password)) => Login::Password {
            user: user.to_owned(),
            password,
        },
        (_, _, _, Some(_), None) => {
            section.problem(
                "password",
                "is missing, and `user` needs it",
                "write `password = { env = \"VARIABLE\" }` or `password = { file = \"FILE\" }`"
                    .to_owned(),
            );
            Login::InUrl
        }
        (_, _, _, None, Some(_)) => {
            section.problem(
                "user",
                "is missing, and `password` needs it",
                "a password without a user is a `token`".to_owned(),
            );
            Login::InUrl
        }
        (None, None, None, None, None) => Login::InUrl,
    };
    let in_url = url.is_some_and(|url| url.contains('@'));
    if in_url && login != Login::InUrl {
        section.problem(
            "url",
            "holds credentials, and so do other keys",
            "take them out of the `url`".to_owned(),
        );
    }
    Access {
        login,
        tls: check_tls(folder, section),
    }
}

fn check_tls(folder: &Path, section: &Section<'_>) -> Tls {
    let Some(tls) = section.section("tls") else {
        return Tls::default();
    };
    let file = |key| tls.text(key).map(|file| folder.join(file));
    let ca = file("ca");
    let client = match (file("cert"), file("key")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            tls.problem(
                "key",
                "is missing, and `cert` needs it",
                "name the file with the certificate's key; it may be the same file".to_owned(),
            );
            None
        }
        (None, Some(_)) => {
            tls.problem(
                "cert",
                "is missing, and `key` needs it",
                "name the file with the key's certificate; it may be the same file".to_owned(),
            );
            None
        }
    };
    let first = tls.boolean("first", false);
    tls.finish();
    Tls {
        ca,
        client,
        // Whoever names certificates does not mean a connection without.
        required: true,
        first,
    }
}

/// Reads a secret: a text, `{ env = "VARIABLE" }` or `{ file = "FILE" }`.
pub(super) fn secret(folder: &Path, section: &Section<'_>, key: &'static str) -> Option<Secret> {
    if !section.is_table(key) {
        return section
            .secret_text(key)
            .map(|text| Secret::Text(text.to_owned()));
    }
    secret_place(folder, section.section(key)?)
}

/// Reads the place of a secret: `{ env = "VARIABLE" }` or `{ file = "FILE" }`.
pub(super) fn secret_place(folder: &Path, place: Section<'_>) -> Option<Secret> {
    let secret = match (place.text("env"), place.text("file")) {
        (Some(variable), None) => Some(Secret::Variable(variable.to_owned())),
        (None, Some(file)) => Some(Secret::File(folder.join(file))),
        _ => {
            place.problem(
                "",
                "names no place",
                "write `{ env = \"VARIABLE\" }` or `{ file = \"FILE\" }`".to_owned(),
            );
            None
        }
    };
    place.finish();
    secret
}

/// Returns a PostgreSQL URL in which the files that it names are absolute.
pub(super) fn with_absolute_files(url: &str, folder: &Path) -> String {
    let Some((front, query)) = url.split_once('?') else {
        return url.to_owned();
    };
    let parts: Vec<String> = query
        .split('&')
        .map(|part| match part.split_once('=') {
            Some((key, value)) if FILE_PARAMETERS.contains(&key) && value != "system" => {
                let path = PathBuf::from(url_decoded(value));
                if path.is_absolute() || path.as_os_str().is_empty() {
                    return part.to_owned();
                }
                format!(
                    "{key}={}",
                    encoded(&folder.join(path).display().to_string())
                )
            }
            _ => part.to_owned(),
        })
        .collect();
    format!("{front}?{}", parts.join("&"))
}

fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'~') {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_in_a_url_start_at_the_configurations_folder() {
        let folder = Path::new("/etc/a b");
        let table = [
            ("postgres://h/d", "postgres://h/d"),
            (
                "postgres://h/d?sslmode=verify-full&sslrootcert=ca.pem",
                "postgres://h/d?sslmode=verify-full&sslrootcert=/etc/a%20b/ca.pem",
            ),
            (
                "postgres://h/d?sslcert=c%2Fd.pem&sslkey=%2Fk.pem&user=x",
                "postgres://h/d?sslcert=/etc/a%20b/c/d.pem&sslkey=%2Fk.pem&user=x",
            ),
            (
                "postgres://h/d?sslrootcert=system",
                "postgres://h/d?sslrootcert=system",
            ),
        ];
        for (url, wanted) in table {
            assert_eq!(with_absolute_files(url, folder), wanted);
        }
    }
}
