//! `hapax dev`: builds a handler's project, runs it on a database of its own, and follows what its author changes.
//!
//! What serves is an ordinary host (`app/run.rs`): it takes up a new component, or a new configuration, by its own watching.
//!
//! **Invariant**: neither the store of the configuration nor its brokers are touched.
//! **Invariant**: what serves is replaced only by what was built and checked; a build that fails changes nothing.

mod place;
mod show;
mod sources;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use super::build::{self, Built, Language};
use super::prove::read_messages;
use super::run::{RunOptions, run};
use super::send::{Next, send};
use super::watch::{Reread, Watching};
use crate::exit::{CommandError, Exit};
use crate::pipeline::MessageObserver;
use build::running::Running;
use place::Place;
pub use show::{DevEvent, MessageShown, PublishedShown, RowChange};
use sources::{Habits, Kind, Sources};

/// How long the end of everything waits for that of a build.
const BUILD_ENDS_WITHIN: Duration = Duration::from_secs(2);

/// How a project is developed.
#[derive(Clone, Debug)]
pub struct DevOptions {
    /// The project's folder.
    pub folder: PathBuf,
    /// Found from the project's files if absent.
    pub language: Option<Language>,
    /// Where `messages.jsonl` goes; the only source if absent.
    pub source: Option<String>,
    /// Send `messages.jsonl` at the start, and again when it has changed.
    pub sends: bool,
    /// After each new version of the component start over with an empty database.
    pub resend: bool,
    /// Go on with the database of last time.
    pub keep: bool,
    /// Open the admin address of the configuration.
    pub admin: bool,
    /// Have cargo, npm or pip download what is missing.
    pub install: bool,
}

/// What an author asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DevAsk {
    /// Send `messages.jsonl` again: what was done before is a duplicate.
    Send,
    /// Start over with an empty database, and send.
    StartOver,
    /// End.
    Quit,
}

/// Follows the project until `stop` ends, and `tell`s what happens.
///
/// A build that fails, messages that cannot be read and a database that refuses a migration are told, and cured by the next change.
///
/// # Errors
/// The folder is no project; its configuration is wrong at the start; another `hapax dev` follows it.
pub async fn dev(
    options: DevOptions,
    mut asks: mpsc::Receiver<DevAsk>,
    tell: impl Fn(DevEvent) + Send + Sync + 'static,
    stop: impl Future<Output = ()>,
) -> Result<(), CommandError> {
    let place = Place::open(&options)?;
    let language = build::language_of(&place.build_options(&options)?)?;
    let read = place.read(&options)?;
    let mut sources = Sources::new(&place, &read.config);
    let tell: Tell = Arc::new(tell);
    tell(DevEvent::Began {
        folder: options.folder.display().to_string(),
        language,
        database: place.shown_database(),
    });
    let mut dev = Dev {
        options,
        place,
        tell,
        habits: Habits::default(),
        building: None,
        running: Running::default(),
        serving: None,
        digest: None,
        during: BTreeSet::new(),
        wants: Wants {
            build: true,
            ..Wants::default()
        },
    };
    dev.go().await;
    let mut stop = std::pin::pin!(stop);
    loop {
        // Each branch keeps what it has so far in `sources`, `dev` or its channel, so a drop loses nothing.
        tokio::select! {
            () = &mut stop => break,
            changed = sources.changed() => {
                if sources.has_configuration(&changed)
                    && let Ok(read) = dev.place.read(&dev.options)
                {
                    dev.wants.build |= sources.configure(&read.config);
                }
                dev.changed(&sources, changed);
            }
            built = ended(&mut dev.building) => {
                dev.building = None;
                // What is written by now was written during the build, by whomever.
                let changed = sources.look();
                dev.changed(&sources, changed);
                dev.built(built);
            }
            ended = ended(&mut dev.serving) => dev.ended(ended),
            Some(ask) = asks.recv() => match ask {
                DevAsk::Quit => break,
                DevAsk::Send => dev.wants.send = true,
                DevAsk::StartOver => dev.wants.start_over = true,
            },
        }
        dev.go().await;
    }
    dev.stop_building().await;
    dev.stop_serving().await;
    Ok(())
}

type Tell = Arc<dyn Fn(DevEvent) + Send + Sync>;

/// What is to be done, as soon as it can be.
#[derive(Debug, Default)]
struct Wants {
    build: bool,
    /// Serve anew, on an empty database unless it is kept.
    restart: bool,
    /// Serve anew, on an empty database.
    start_over: bool,
    send: bool,
}

struct Dev {
    options: DevOptions,
    place: Place,
    tell: Tell,
    habits: Habits,
    building: Option<Task<Built>>,
    /// The tools of the running build.
    running: Running,
    serving: Option<Task<()>>,
    /// Of what was built last.
    digest: Option<String>,
    /// What has changed since the running build began, or during the last one.
    during: BTreeSet<PathBuf>,
    wants: Wants,
}

/// Something that ends by itself.
struct Task<T> {
    task: JoinHandle<Result<T, CommandError>>,
    /// Has it end sooner.
    stop: Option<oneshot::Sender<()>>,
}

/// Waits for the end of a task; for ever if there is none.
async fn ended<T>(task: &mut Option<Task<T>>) -> Result<T, CommandError> {
    match task {
        None => std::future::pending().await,
        Some(task) => (&mut task.task)
            .await
            .unwrap_or_else(|error| Err(CommandError::new(Exit::Bug, error, None))),
    }
}

impl Dev {
    /// Takes note of changed files.
    fn changed(&mut self, sources: &Sources, changed: BTreeSet<PathBuf>) {
        // Whatever kept it from serving may be cured.
        self.wants.restart |= self.serving.is_none() && !changed.is_empty();
        for path in changed {
            match sources.kind(&path) {
                Kind::Source if self.building.is_some() => {
                    self.during.insert(path);
                }
                Kind::Source => {
                    self.habits.changed_alone(&path);
                    self.during.insert(path);
                    self.wants.build = true;
                }
                Kind::Migration => self.wants.restart = true,
                Kind::Messages => self.wants.send |= self.options.sends,
                // The host reads it by itself.
                Kind::Configuration => {}
            }
        }
    }

    /// Takes what came of a build.
    fn built(&mut self, built: Result<Built, CommandError>) {
        // More was changed while it ran: by the author, most likely, or by the build itself.
        let (worth, habitual) = self.habits.changed_in_build(&self.during);
        if !habitual.is_empty() {
            (self.tell)(DevEvent::Unfollowed {
                files: self.place.shown(&habitual),
            });
        }
        self.during = worth;
        self.wants.build |= !self.during.is_empty();
        match built {
            Err(error) => (self.tell)(DevEvent::BuildFailed {
                error: error.to_string(),
                serves: self.serving.is_some(),
            }),
            Ok(built) => {
                let digest = built.inspected.component.digest.clone();
                let is_new = self.digest.as_ref() != Some(&digest);
                (self.tell)(DevEvent::Built {
                    bytes: built.inspected.component.bytes,
                    digest: digest.clone(),
                    seconds: (built.took + built.inspected.compiled_in).as_secs_f64(),
                    warnings: built.warnings,
                    is_new,
                });
                self.digest = Some(digest);
                self.wants.restart |= self.serving.is_none();
                // Without it the host takes the new component up by itself.
                self.wants.start_over |= is_new && self.options.resend;
            }
        }
    }

    /// The host has ended without being asked.
    fn ended(&mut self, ended: Result<(), CommandError>) {
        self.serving = None;
        if let Err(error) = ended {
            (self.tell)(DevEvent::Failed {
                error: error.to_string(),
            });
        }
    }

    /// Does what is to be done and can be done now.
    async fn go(&mut self) {
        if self.building.is_some() {
            return;
        }
        if std::mem::take(&mut self.wants.build) {
            let changed = std::mem::take(&mut self.during);
            (self.tell)(DevEvent::Building {
                changed: self.place.shown(&changed),
            });
            match self.begin_build() {
                Ok(building) => self.building = Some(building),
                Err(error) => (self.tell)(DevEvent::Failed {
                    error: error.to_string(),
                }),
            }
            return;
        }
        if self.digest.is_none() {
            return;
        }
        let Wants {
            restart,
            start_over,
            send,
            ..
        } = std::mem::take(&mut self.wants);
        if restart || start_over {
            self.serve(start_over || !self.options.keep).await;
        } else if send && self.serving.is_some() {
            self.send().await;
        }
    }

    fn begin_build(&mut self) -> Result<Task<Built>, CommandError> {
        let tell = Arc::clone(&self.tell);
        let options = self.place.build_options(&self.options)?;
        self.running = Running::default();
        let step = move |step: &str| {
            tell(DevEvent::Step {
                text: step.to_owned(),
            });
        };
        let building = build::build_until(options, step, Some(self.running.clone()));
        Ok(Task {
            task: tokio::spawn(building),
            stop: None,
        })
    }

    /// Serves anew.
    async fn serve(&mut self, is_fresh: bool) {
        self.stop_serving().await;
        if let Err(error) = self.try_serve(is_fresh).await {
            (self.tell)(DevEvent::Failed {
                error: error.to_string(),
            });
        }
    }

    async fn try_serve(&mut self, is_fresh: bool) -> Result<(), CommandError> {
        if is_fresh {
            self.place.clear()?;
        }
        let config = self.place.read(&self.options)?.config;
        (self.tell)(DevEvent::Serving {
            handlers: config.handlers.keys().cloned().collect(),
            is_fresh,
        });
        // Before the host begins: what is sent to an empty database comes out in its order.
        if self.options.sends {
            self.send().await;
        }
        let (stop, stopped) = oneshot::channel();
        // Nobody asks: the host looks at the files by itself.
        let (_, asked) = watch::channel(0);
        let (place, options) = (self.place.clone(), self.options.clone());
        let tell = Arc::clone(&self.tell);
        let options = RunOptions {
            told: Some(MessageObserver::new(move |told| {
                tell(DevEvent::Message(Box::new(show::shown(told))));
            })),
            watching: Some(Watching {
                reread: Reread::new(move || Ok(place.read(&options)?.config)),
                asked,
            }),
            ..RunOptions::default()
        };
        let task = tokio::spawn(async move {
            let stop = async {
                // Dropped, it says the same.
                let _ = stopped.await;
            };
            Box::pin(run(&config, options, stop)).await
        });
        self.serving = Some(Task {
            task,
            stop: Some(stop),
        });
        Ok(())
    }

    /// Ends the running build, if there is one: nobody wants its component any more.
    async fn stop_building(&mut self) {
        if self.building.is_none() {
            return;
        }
        self.running.end();
        // It takes its temporary files away. Where it compiles for the check, it leaves none.
        let _ = tokio::time::timeout(BUILD_ENDS_WITHIN, ended(&mut self.building)).await;
    }

    async fn stop_serving(&mut self) {
        let Some(mut task) = self.serving.take() else {
            return;
        };
        drop(task.stop.take());
        if let Err(error) = ended(&mut Some(task)).await {
            (self.tell)(DevEvent::Failed {
                error: error.to_string(),
            });
        }
    }

    /// Sends `messages.jsonl`, and tells of it.
    async fn send(&self) {
        let sent = async {
            let read = self.place.read(&self.options)?;
            let source = read.source(self.options.source.as_deref())?;
            let messages = read_messages(&self.place.messages())?
                .into_iter()
                .map(|(_, message)| Next::Message(Ok(read.as_sent(&source, message))));
            let sent = send(&read.config, &source, messages, |_| {}).await?;
            Ok::<_, CommandError>(DevEvent::Sent {
                source,
                messages: sent.sent,
            })
        };
        (self.tell)(sent.await.unwrap_or_else(|error| DevEvent::Failed {
            error: error.to_string(),
        }));
    }
}
