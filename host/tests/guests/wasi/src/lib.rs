//! A handler that tries what WASI 0.2 offers, and rejects the message with what it got. `README.md` beside the guests lists the probes.

use hapax_guest::{Failure, Message, log, params, sql};
use serde_json::{Value, json};
use wasip2::cli::{environment, exit, stderr, stdin, stdout};
use wasip2::clocks::{monotonic_clock, wall_clock};
use wasip2::filesystem::preopens;
use wasip2::io::poll;
use wasip2::random::{insecure, insecure_seed, random};
use wasip2::sockets::network::IpAddressFamily;
use wasip2::sockets::{instance_network, ip_name_lookup, tcp_create_socket, udp_create_socket};

#[derive(serde::Deserialize)]
struct Asked {
    probe: String,
    #[serde(default)]
    number: u64,
    #[serde(default)]
    text: String,
}

fn handle(message: Message) -> Result<(), Failure> {
    let asked: Asked = message.json()?;
    let got = match asked.probe.as_str() {
        "clock" => clock(),
        "random" => random_values(),
        "around" => json!({
            "environment": environment::get_environment(),
            "arguments": environment::get_arguments(),
            "folder": environment::initial_cwd(),
            "preopened": preopens::get_directories().len(),
            "input": stdin::get_stdin().blocking_read(10).is_err(),
        }),
        "sockets" => sockets(),
        "print" => {
            let out = stdout::get_stdout();
            let err = stderr::get_stderr();
            write(&out, "one\ntw");
            write(&err, "wrong\n");
            log::info!("between");
            write(&out, "o");
            return Ok(());
        }
        "flood" => {
            let out = stdout::get_stdout();
            let line = "x".repeat(4_095) + "\n";
            for _ in 0..asked.number {
                write(&out, &line);
            }
            return Ok(());
        }
        "timers" => timers(),
        "sleep" => {
            let until = monotonic_clock::now() + asked.number;
            while monotonic_clock::now() < until {
                monotonic_clock::subscribe_instant(until).block();
            }
            return Ok(());
        }
        "last words" => {
            write(&stderr::get_stderr(), &asked.text);
            exit::exit(if asked.number == 0 { Ok(()) } else { Err(()) });
            Value::Null
        }
        "many pollables" => {
            let pollables: Vec<_> = (0..asked.number)
                .map(|_| monotonic_clock::subscribe_duration(1))
                .collect();
            json!(pollables.len())
        }
        "many bytes" => json!(random::get_random_bytes(asked.number).len()),
        "keep" => {
            let values = json!([clock(), timers(), random_values()]).to_string();
            sql::execute(
                "INSERT INTO kept (id, value) VALUES ($1, $2)",
                &params![message.id, values],
            )?;
            return Ok(());
        }
        "nothing" => return Ok(()),
        other => json!({ "unknown": other }),
    };
    Err(Failure::reject(got.to_string()))
}

fn clock() -> Value {
    let first = wall_clock::now();
    let began = monotonic_clock::now();
    // Work, and a wait.
    let worked: u64 = (0..100_000_u64).fold(0, |sum, number| sum ^ number.wrapping_mul(7));
    monotonic_clock::subscribe_duration(1_000_000 + worked % 2).block();
    let last = wall_clock::now();
    json!({
        "seconds": first.seconds,
        "nanoseconds": first.nanoseconds,
        "stands_still": (first.seconds, first.nanoseconds) == (last.seconds, last.nanoseconds)
            && began == monotonic_clock::now(),
        "monotonic": began,
    })
}

/// Timers of a nanosecond, a second and an hour: asked at once, asked again after work, and waited for.
fn timers() -> Value {
    let all = [1, 1_000_000_000, 3_600_000_000_000].map(monotonic_clock::subscribe_duration);
    let asked = || -> Vec<bool> { all.iter().map(poll::Pollable::ready).collect() };
    let first = asked();
    let worked: u64 = (0..1_000_000_u64).fold(0, |sum, number| sum ^ number.wrapping_mul(7));
    let again = asked();
    let woken = poll::poll(&all.iter().collect::<Vec<_>>());
    all[2].block();
    json!({ "first": first, "again": again, "woken": woken, "worked": worked != 1 })
}

fn random_values() -> Value {
    json!({
        "bytes": random::get_random_bytes(20),
        "number": random::get_random_u64(),
        "insecure": insecure::get_insecure_random_u64(),
        "seed": insecure_seed::insecure_seed(),
    })
}

fn sockets() -> Value {
    let network = instance_network::instance_network();
    let shown = |refused: Option<String>| refused.unwrap_or_else(|| "a socket".to_owned());
    json!({
        "tcp": shown(tcp_create_socket::create_tcp_socket(IpAddressFamily::Ipv4).err().map(|code| code.name().to_owned())),
        "udp": shown(udp_create_socket::create_udp_socket(IpAddressFamily::Ipv6).err().map(|code| code.name().to_owned())),
        "name": shown(ip_name_lookup::resolve_addresses(&network, "localhost").err().map(|code| code.name().to_owned())),
    })
}

fn write(stream: &wasip2::io::streams::OutputStream, text: &str) {
    // One that is refused is seen by what is missing in the log.
    let _ = stream.blocking_write_and_flush(text.as_bytes());
}

hapax_guest::handler!(handle);
