//! `hapax handlers`: arguments, and what is asked of a host at its admin address.

mod client;
mod text;
mod wait;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use self::client::{Client, DeployFiles};
use super::listing::ask;
use super::{print, print_json};
use crate::admin::{Changed, HandlerHistory, HandlersList};
use crate::config::{Config, duration};
use crate::exit::{CommandError, Exit};

/// The largest file that `deploy` reads, in bytes: beyond it the host refuses in any case.
const FILE_BYTES_MAX: u64 = crate::handler::COMPONENT_BYTES_MAX as u64;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Show each handler: which component it runs, on which hosts, and what is paused
    #[command(
        after_help = "Examples:\n  hapax handlers list\n  hapax handlers list --admin http://web-1:7878 --json"
    )]
    List {
        #[command(flatten)]
        host: HostArguments,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show what was deployed to a handler, when and by whom
    #[command(
        after_help = "Examples:\n  hapax handlers history credit\n  hapax handlers history credit --json"
    )]
    History {
        /// The handler's name
        handler: String,
        #[command(flatten)]
        host: HostArguments,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Put a component into the store and make every host run it
    ///
    /// The host that is asked checks it first, and applies its migrations; what is refused changes nothing. Batches in flight finish on
    /// the old component.
    #[command(
        after_help = "Examples:\n  hapax handlers deploy credit target/credit.wasm\n  \
                      hapax handlers deploy credit target/credit.wasm --migrations migrations/\n  \
                      HAPAX_ADMIN__TOKEN=... hapax handlers deploy credit credit.wasm --admin https://hapax.example.com"
    )]
    Deploy {
        /// The handler's name; its table says `component = "store"`
        handler: String,
        /// The component
        file: PathBuf,
        /// The folder of the component's migrations
        #[arg(long, value_name = "DIR")]
        migrations: Option<PathBuf>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Go back to an earlier component, on every host
    ///
    /// Without a digest: the one before the active one. Going back again goes further back. Tables stay as they are.
    #[command(
        after_help = "Examples:\n  hapax handlers rollback credit\n  hapax handlers rollback credit 4f2a9c01"
    )]
    Rollback {
        /// The handler's name
        handler: String,
        /// The component's SHA-256, or at least 8 digits from its start
        digest: Option<String>,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Let a handler's messages wait, on every host
    ///
    /// What runs is finished. A host that starts meanwhile lets them wait, too.
    #[command(after_help = "Examples:\n  hapax handlers pause credit")]
    Pause {
        /// The handler's name
        handler: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Let a paused handler's messages run again
    #[command(after_help = "Examples:\n  hapax handlers resume credit")]
    Resume {
        /// The handler's name
        handler: String,
        #[command(flatten)]
        change: ChangeArguments,
    },
    /// Take a handler's component away from every host: its messages wait until another one is deployed
    ///
    /// Its history stays, and `rollback` brings a component back.
    #[command(
        after_help = "Examples:\n  hapax handlers remove credit\n  hapax handlers remove credit --yes"
    )]
    Remove {
        /// The handler's name
        handler: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
        #[command(flatten)]
        change: ChangeArguments,
    },
}

/// Which host is asked.
#[derive(Debug, Args)]
pub(super) struct HostArguments {
    /// The configuration: its `[admin]` says where the host is, and holds the token
    #[arg(
        long,
        env = "HAPAX_CONFIG",
        default_value = "hapax.toml",
        value_name = "FILE"
    )]
    config: PathBuf,
    /// A host's admin address, instead of the configuration's; the token is read from HAPAX_ADMIN__TOKEN
    #[arg(long, env = "HAPAX_ADMIN_URL", value_name = "URL")]
    admin: Option<String>,
}

impl HostArguments {
    fn client(&self) -> Result<Client, CommandError> {
        if let Some(url) = &self.admin {
            return Client::new(url, std::env::var("HAPAX_ADMIN__TOKEN").ok());
        }
        let config = super::ConfigFile {
            config: self.config.clone(),
        }
        .load()?;
        Client::configured(&config)
    }
}

#[derive(Debug, Args)]
pub(super) struct ChangeArguments {
    #[command(flatten)]
    host: HostArguments,
    /// Do not wait until every host has it
    #[arg(long)]
    no_wait: bool,
    /// How long to wait for the hosts
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    duration(text).map_err(|(problem, hint)| format!("{problem}; {hint}"))
}

pub(super) async fn handlers(command: Command) -> Result<(), CommandError> {
    match command {
        Command::List { host, json } => {
            let list: HandlersList = host.client()?.get("/api/handlers").await?;
            if json {
                return print_json(&list);
            }
            print(&text::list(&list))
        }
        Command::History {
            handler,
            host,
            json,
        } => {
            let path = format!("/api/handlers/{}/history", path_part(&handler)?);
            let history: HandlerHistory = host.client()?.get(&path).await?;
            if json {
                return print_json(&history);
            }
            print(&text::history(&history))
        }
        Command::Deploy {
            handler,
            file,
            migrations,
            change,
        } => {
            let files = DeployFiles {
                component: read(&file).await?,
                migrations: match migrations {
                    None => None,
                    Some(folder) => Some(read_migrations(&folder)?),
                },
            };
            let path = format!("/api/handlers/{}/deploy", path_part(&handler)?);
            let client = change.host.client()?;
            let changed = client.deploy(&path, files).await?;
            finish(&client, &change, "deployed", &changed).await
        }
        Command::Rollback {
            handler,
            digest,
            change,
        } => {
            let path = format!("/api/handlers/{}/rollback", path_part(&handler)?);
            ask_for(&change, &path, json!({ "digest": digest }), "went back").await
        }
        Command::Pause { handler, change } => {
            let path = format!("/api/handlers/{}/pause", path_part(&handler)?);
            ask_for(&change, &path, json!({}), "paused").await
        }
        Command::Resume { handler, change } => {
            let path = format!("/api/handlers/{}/resume", path_part(&handler)?);
            ask_for(&change, &path, json!({}), "resumed").await
        }
        Command::Remove {
            handler,
            yes,
            change,
        } => {
            let path = format!("/api/handlers/{}/remove", path_part(&handler)?);
            if !yes {
                let what = format!("the component of `{handler}`");
                ask("remove", "removed", &what, " Its messages wait then.")?;
            }
            ask_for(&change, &path, json!({ "confirm": true }), "removed").await
        }
    }
}

async fn ask_for(
    change: &ChangeArguments,
    path: &str,
    body: Value,
    done: &str,
) -> Result<(), CommandError> {
    let client = change.host.client()?;
    let changed = client.post(path, body).await?;
    finish(&client, change, done, &changed).await
}

/// Waits until every host has the change, and says which have.
async fn finish(
    client: &Client,
    change: &ChangeArguments,
    done: &str,
    changed: &Changed,
) -> Result<(), CommandError> {
    if !change.json {
        print(&text::changed(done, changed))?;
    }
    let hosts = if change.no_wait {
        Vec::new()
    } else {
        wait::until_every_host_has(client, changed, change.timeout).await?
    };
    if change.json {
        print_json(&json!({ "change": changed, "hosts": hosts }))?;
    } else {
        print(&text::hosts(&hosts))?;
    }
    wait::all_well(changed, &hosts, change.timeout)
}

/// Names of handlers need no escape; anything else is none.
fn path_part(handler: &str) -> Result<&str, CommandError> {
    let is_name = !handler.is_empty()
        && handler
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if is_name {
        return Ok(handler);
    }
    Err(CommandError::new(
        Exit::CommandLine,
        format!("`{}` is not a handler's name", handler.escape_debug()),
        Some("`hapax handlers list` shows them"),
    ))
}

async fn read(file: &Path) -> Result<Vec<u8>, CommandError> {
    let cannot = |why: &dyn std::fmt::Display| {
        CommandError::new(
            Exit::CommandLine,
            format!("cannot read `{}`: {why}", file.display()),
            Some("give the component's file, such as `target/handler.wasm`"),
        )
    };
    let size = tokio::fs::metadata(file)
        .await
        .map_err(|error| cannot(&error))?
        .len();
    if size > FILE_BYTES_MAX {
        return Err(cannot(&format!(
            "it has {size} bytes, and a host loads at most {FILE_BYTES_MAX}"
        )));
    }
    tokio::fs::read(file).await.map_err(|error| cannot(&error))
}

/// Reads the `.sql` files of a folder, and of the folders for either database in it: the host knows which it needs.
fn read_migrations(folder: &Path) -> Result<Vec<(String, Vec<u8>)>, CommandError> {
    let mut files = Vec::new();
    for (prefix, folder) in [
        ("", folder.to_owned()),
        ("postgres/", folder.join("postgres")),
        ("sqlite/", folder.join("sqlite")),
    ] {
        if !prefix.is_empty() && !folder.is_dir() {
            continue;
        }
        let failed = |error: std::io::Error| {
            CommandError::new(
                Exit::CommandLine,
                format!(
                    "the folder of migrations `{}` cannot be read: {error}",
                    folder.display()
                ),
                Some("correct `--migrations`, or leave it out"),
            )
        };
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.extension().is_some_and(|extension| extension == "sql") {
                files.push((
                    format!("{prefix}{name}"),
                    std::fs::read(&path).map_err(failed)?,
                ));
            }
        }
    }
    files.sort();
    Ok(files)
}

impl Client {
    /// Of the host that a configuration describes.
    fn configured(config: &Config) -> Result<Self, CommandError> {
        let Some(admin) = &config.admin else {
            return Err(CommandError::new(
                Exit::Configuration,
                format!(
                    "`{}` has no `[admin]`: its hosts have no address at which they could be asked",
                    config.file.display()
                ),
                Some(
                    "write `[admin]` with `listen = \"127.0.0.1:7878\"` and start the host again, or name another host's address with \
                     `--admin URL`",
                ),
            ));
        };
        let mut address = admin.listen;
        if address.ip().is_unspecified() {
            // Where it listens everywhere, it listens here, too.
            address.set_ip(match address {
                std::net::SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                std::net::SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        let token = match &admin.token {
            None => None,
            Some(secret) => Some(secret.read().map_err(|error| {
                CommandError::new(
                    Exit::Configuration,
                    format!("`admin.token`: {error}"),
                    Some("it is the token that the hosts ask for"),
                )
            })?),
        };
        Self::new(&format!("http://{address}"), token)
    }
}
