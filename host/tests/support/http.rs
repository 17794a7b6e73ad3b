//! The admin address of a host, asked over bare connections, so that a test can say anything.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::host::Host;

/// Longer than anything that a test waits for takes.
const PATIENCE: Duration = Duration::from_secs(120);

/// Where a host's admin address is.
#[derive(Clone, Debug)]
pub struct Http {
    /// On this machine, also if it listens at all addresses.
    pub address: SocketAddr,
    token: Option<String>,
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    /// 200 and so on.
    pub status: u16,
    /// All lines before the body.
    pub head: String,
    /// As it came.
    pub body: Vec<u8>,
}

impl Answer {
    /// Reads an answer, to the end of its connection.
    pub fn read(stream: &mut TcpStream) -> std::io::Result<Self> {
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes)?;
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let end = end.ok_or_else(|| {
            std::io::Error::other(format!("no answer: {}", String::from_utf8_lossy(&bytes)))
        })?;
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        Ok(Self {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            head: head.to_lowercase(),
            body: bytes[end + 4..].to_vec(),
        })
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.head, self.text()))
    }

    /// The code of an error, which has the shape of every error.
    pub fn code(&self) -> String {
        let json = self.json();
        assert!(json["error"]["message"].is_string(), "{json}");
        json["error"]["code"].as_str().unwrap().to_owned()
    }
}

impl Http {
    /// Waits until the host listens.
    pub fn of(host: &mut Host) -> Self {
        let line = host.wait_for_line("the admin address is open");
        let line: Value = serde_json::from_str(&line).unwrap();
        let mut address: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
        if address.ip().is_unspecified() {
            address.set_ip([127, 0, 0, 1].into());
        }
        Self::at(address)
    }

    /// Of a host that listens there already.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            token: None,
        }
    }

    /// Asks with a token from now on.
    pub fn knowing(self, token: &str) -> Self {
        Self {
            token: Some(token.to_owned()),
            ..self
        }
    }

    /// Opens a connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Asks with the given lines after the first one. The connection ends with the answer.
    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.connect();
        let mut head = format!("{method} {path} HTTP/1.0\r\n");
        if let Some(token) = &self.token {
            head.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if method != "GET" && !headers.iter().any(|(name, _)| *name == "Content-Length") {
            head.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        Answer::read(&mut stream).unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// GET.
    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    /// GET, which must be answered with 200 and JSON.
    pub fn get_json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    /// POST of JSON.
    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask(
            "POST",
            path,
            &[("Content-Type", "application/json")],
            body.to_string().as_bytes(),
        )
    }

    /// POST of JSON, which must be answered with 200 and JSON.
    pub fn post_json(&self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }
}
