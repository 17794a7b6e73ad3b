//! NATS: who asks, and whose certificates count.

use std::path::Path;

use nkeys::KeyPair;
use tempfile::TempDir;

use crate::support::certificates::Authority;
use crate::support::host::{Output, run, run_with};
use crate::support::nats::Nats;

/// A folder with a configuration whose source `s` has `keys`.
fn place(url: &str, keys: &str) -> TempDir {
    let folder = TempDir::with_prefix("hapax-access-").unwrap();
    write_config(folder.path(), url, keys);
    folder
}

fn write_config(folder: &Path, url: &str, keys: &str) {
    let config = format!(
        "[store]\nurl = \"sqlite:hapax.db\"\n[sources.s]\nkind = \"jetstream\"\nurl = \"{url}\"\nstream = \"S\"\n\
         subjects = [\"s.one\"]\ncreate = true\n{keys}\n"
    );
    std::fs::write(folder.join("hapax.toml"), config).unwrap();
}

fn send(folder: &Path) -> Output {
    run(folder, &["send", "s", "hello", "--id", "1"])
}

/// Asserts that a message gets through.
fn assert_open(folder: &Path) {
    let output = send(folder);
    assert!(output.status.success(), "{}", output.err);
}

/// Asserts that it is refused for good, with words that name what they should and no secret.
fn assert_refused(folder: &Path, words: &[&str], secrets: &[&str]) {
    let output = send(folder);
    assert_eq!(output.status.code(), Some(3), "{}", output.err);
    for word in words {
        assert!(output.err.contains(word), "no `{word}` in: {}", output.err);
    }
    for secret in secrets {
        assert!(!output.err.contains(secret), "a secret in: {}", output.err);
    }
}

#[test]
fn a_user_with_a_password_from_the_file_a_variable_or_another_file() {
    let nats = Nats::start_with("authorization { user: me, password: \"p ss/w@rd\" }");
    let place = place(&nats.url(), "user = \"me\"\npassword = \"p ss/w@rd\"");
    let folder = place.path();
    assert_open(folder);

    write_config(
        folder,
        &nats.url(),
        "user = \"me\"\npassword = { file = \"secret\" }",
    );
    assert_refused(folder, &["/secret`", "cannot be read"], &[]);
    std::fs::write(folder.join("secret"), "p ss/w@rd\n").unwrap();
    assert_open(folder);

    write_config(
        folder,
        &nats.url(),
        "user = \"me\"\npassword = { env = \"THE_PASSWORD\" }",
    );
    assert_refused(folder, &["`THE_PASSWORD`"], &[]);
    let arguments = ["send", "s", "hello", "--id", "1"];
    let output = run_with(folder, &arguments, &[("THE_PASSWORD", "p ss/w@rd")], b"");
    assert!(output.status.success(), "{}", output.err);

    write_config(
        folder,
        &nats.url(),
        "user = \"me\"\npassword = \"wrong-one\"",
    );
    assert_refused(
        folder,
        &["refuses the credentials", "`password`"],
        &["wrong-one"],
    );
}

#[test]
fn a_token() {
    let nats = Nats::start_with("authorization { token: s3cret }");
    let place = place(&nats.url(), "token = \"s3cret\"");
    assert_open(place.path());
    write_config(place.path(), &nats.url(), "token = \"not-it\"");
    assert_refused(place.path(), &["check `token`"], &["not-it"]);
    write_config(place.path(), &nats.url(), "");
    assert_refused(place.path(), &["`url`"], &[]);
}

#[test]
fn an_nkey() {
    let user = KeyPair::new_user();
    let nats = Nats::start_with(&format!(
        "authorization {{ users: [ {{ nkey: {} }} ] }}",
        user.public_key()
    ));
    let place = place(&nats.url(), "nkey = \"keys/user.nk\"");
    let folder = place.path();
    assert_refused(folder, &["keys/user.nk`", "cannot be read"], &[]);
    std::fs::create_dir(folder.join("keys")).unwrap();
    let file = folder.join("keys/user.nk");
    std::fs::write(&file, format!("{}\n", user.seed().unwrap())).unwrap();
    assert_open(folder);

    let other = KeyPair::new_user().seed().unwrap();
    std::fs::write(&file, &other).unwrap();
    assert_refused(
        folder,
        &["refuses the credentials", "keys/user.nk`"],
        &[&other],
    );
    std::fs::write(&file, user.public_key()).unwrap();
    assert_refused(folder, &["no seed", "keys/user.nk`"], &[]);
}

#[test]
fn a_credentials_file_of_an_operators_account() {
    let operator = KeyPair::new_operator();
    let account = KeyPair::new_account();
    let user = KeyPair::new_user();
    let unlimited = serde_json::json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1
    });
    let operator_jwt = jwt(
        &operator,
        &operator,
        "the-operator",
        serde_json::json!({ "type": "operator", "version": 2 }),
    );
    let account_jwt = jwt(
        &operator,
        &account,
        "the-account",
        serde_json::json!({ "type": "account", "version": 2, "limits": unlimited }),
    );
    // Without one, the server has no JetStream.
    let system = KeyPair::new_account();
    let system_jwt = jwt(
        &operator,
        &system,
        "the-system",
        serde_json::json!({ "type": "account", "version": 2 }),
    );
    let user_jwt = jwt(
        &account,
        &user,
        "the-user",
        serde_json::json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {} }),
    );
    let nats = Nats::start_with(&format!(
        "operator: {operator_jwt}\nsystem_account: {system}\nresolver: MEMORY\n\
         resolver_preload: {{ {account}: {account_jwt}, {system}: {system_jwt} }}\n",
        system = system.public_key(),
        account = account.public_key(),
    ));
    let place = place(&nats.url(), "credentials = \"user.creds\"");
    let folder = place.path();
    assert_refused(folder, &["/user.creds`", "cannot be read"], &[]);
    let write = |user_jwt: &str, seed: &str| {
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
        );
        std::fs::write(folder.join("user.creds"), text).unwrap();
    };
    let seed = user.seed().unwrap();
    write(&user_jwt, &seed);
    assert_open(folder);

    let other = KeyPair::new_user().seed().unwrap();
    write(&user_jwt, &other);
    assert_refused(
        folder,
        &["refuses the credentials", "/user.creds`"],
        &[&other],
    );
    std::fs::write(folder.join("user.creds"), &seed).unwrap();
    assert_refused(folder, &["no credentials file", "`nkey`"], &[&seed]);
}

/// Makes a token as NATS takes it: JSON in base64, signed with Ed25519.
fn jwt(issuer: &KeyPair, subject: &KeyPair, name: &str, nats: serde_json::Value) -> String {
    let header = serde_json::json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let claims = serde_json::json!({
        "jti": name, "iat": 1_700_000_000, "iss": issuer.public_key(), "name": name, "sub": subject.public_key(), "nats": nats
    });
    let text = format!(
        "{}.{}",
        base64url(header.to_string().as_bytes()),
        base64url(claims.to_string().as_bytes())
    );
    let signature = issuer.sign(text.as_bytes()).unwrap();
    format!("{text}.{}", base64url(&signature))
}

fn base64url(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut three = [0; 3];
        three[..chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for digit in 0..=chunk.len() {
            let index = (bits >> (18 - 6 * digit)) & 63;
            text.push(char::from(DIGITS[index as usize]));
        }
    }
    text
}

#[test]
fn certificates_of_an_authority_of_ones_own_on_both_sides() {
    let authority = Authority::new();
    let files = TempDir::with_prefix("hapax-certificates-").unwrap();
    let path = |name: &str| files.path().join(name).display().to_string();
    std::fs::write(files.path().join("ca.pem"), &authority.pem).unwrap();
    authority
        .server(&["localhost"])
        .write(files.path(), "server");
    authority.client("hapax").write(files.path(), "client");
    let nats = Nats::start_with(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
        path("server.pem"),
        path("server.key"),
        path("ca.pem")
    ));
    let url = format!("tls://localhost:{}", nats.port());
    let tls = |ca: &str, cert: &str, key: &str| {
        format!(
            "tls = {{ ca = \"{}\", cert = \"{}\", key = \"{}\" }}",
            path(ca),
            path(cert),
            path(key)
        )
    };
    let place = place(&url, &tls("ca.pem", "client.pem", "client.key"));
    let folder = place.path();
    assert_open(folder);

    // The name of the host is looked at.
    let by_number = format!("nats://127.0.0.1:{}", nats.port());
    write_config(
        folder,
        &by_number,
        &tls("ca.pem", "client.pem", "client.key"),
    );
    assert_refused(folder, &["the name in `url`"], &[]);

    // So is the authority, on both sides.
    let other = Authority::new();
    std::fs::write(files.path().join("other-ca.pem"), &other.pem).unwrap();
    other.client("hapax").write(files.path(), "other");
    write_config(
        folder,
        &url,
        &tls("other-ca.pem", "client.pem", "client.key"),
    );
    assert_refused(folder, &["signed the server's certificate"], &[]);
    write_config(folder, &url, &tls("ca.pem", "other.pem", "other.key"));
    let refused = send(folder);
    assert!(!refused.status.success(), "{}", refused.err);

    write_config(folder, &url, &tls("ca.pem", "client.pem", "nowhere.key"));
    assert_refused(folder, &["nowhere.key`", "`tls.key`"], &[]);
    write_config(folder, &url, &tls("ca.pem", "client.key", "client.key"));
    assert_refused(
        folder,
        &["client.key`", "`tls.cert`", "BEGIN CERTIFICATE"],
        &[],
    );
}
