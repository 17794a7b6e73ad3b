//! Watches the configuration and the components that it names, and has the running handlers follow.
//!
//! **Invariant**: each new content of a file is decided upon once, when it is whole; whatever is wrong with it, what runs goes on.

mod file;
mod folders;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::supervisor::{Change, ComponentBytes, Supervisor};
use crate::config::{Config, HandlerConfig};
use crate::exit::CommandError;
use crate::handler::read_component;
use crate::systemd::Notifier;
pub(super) use file::{ContentHash, Look, content_hash};
pub(super) use folders::Folders;

use file::{Now, WatchedFile};
use folders::Happened;

/// How often all files are looked at, whatever the system tells.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Reads the configuration again, as at start.
#[derive(Clone)]
pub struct Reread(Arc<dyn Fn() -> Result<Config, CommandError> + Send + Sync>);

impl Reread {
    /// Makes it of a function.
    pub fn new(read: impl Fn() -> Result<Config, CommandError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }
}

impl fmt::Debug for Reread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reread").finish_non_exhaustive()
    }
}

/// How a process is told of changes.
#[derive(Clone, Debug)]
pub struct Watching {
    /// Reads the configuration again.
    pub reread: Reread,
    /// Counts how often somebody asked to read everything again.
    pub asked: watch::Receiver<u64>,
}

/// Watches until `drain`.
pub(super) async fn keep_watching(
    watching: Watching,
    supervisor: Supervisor,
    notifier: Option<Arc<Notifier>>,
    mut drain: watch::Receiver<bool>,
) {
    let file = &supervisor.config().file;
    let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
    let Watching { reread, mut asked } = watching;
    asked.mark_unchanged();
    let mut watcher = Watcher {
        supervisor,
        reread,
        config: WatchedFile::new(path, Instant::now()),
        components: BTreeMap::new(),
        folders: Folders::new(),
        has_read: false,
    };
    let mut is_answered = true;
    loop {
        let wait = watcher.look().await;
        if wait.is_none() && !is_answered {
            is_answered = true;
            tracing::info!("read everything again");
            if let Some(notifier) = &notifier {
                notifier.reloaded();
            }
        }
        let next = Instant::now() + LOOK_EVERY;
        let next = wait.map_or(next, |wait| wait.min(next));
        tokio::select! {
            // None loses anything when dropped.
            _ = drain.wait_for(|draining| *draining) => return,
            () = tokio::time::sleep_until(next.into()) => {}
            happened = watcher.folders.next() => watcher.heard(happened),
            Ok(()) = asked.changed() => {
                is_answered = false;
                if let Some(notifier) = &notifier {
                    notifier.reloading();
                }
                watcher.forget();
            }
        }
    }
}

struct Watcher {
    supervisor: Supervisor,
    reread: Reread,
    config: WatchedFile,
    components: BTreeMap<PathBuf, WatchedFile>,
    folders: Folders,
    /// The configuration was read since the start.
    has_read: bool,
}

impl Watcher {
    /// Looks at every file, and decides upon those with a new content. Returns when to look again, if some content may be new.
    async fn look(&mut self) -> Option<Instant> {
        while let Some(happened) = self.folders.more() {
            self.heard(happened);
        }
        // Before the looks, so that nothing happens unnoticed between the two.
        self.follow();
        let mut waits = Vec::new();
        match look(&mut self.config) {
            Now::Nothing => {}
            Now::Wait(at) => waits.push(at),
            Now::Read(look) => {
                waits.extend(self.decide_config(look).await);
                // The components may be others.
                self.follow();
            }
        }
        let paths: Vec<PathBuf> = self.components.keys().cloned().collect();
        for path in paths {
            let Some(file) = self.components.get_mut(&path) else {
                continue;
            };
            match look(file) {
                Now::Nothing => {}
                Now::Wait(at) => waits.push(at),
                Now::Read(look) => waits.extend(self.decide_component(&path, look).await),
            }
        }
        waits.into_iter().min()
    }

    /// Watches what is configured now.
    fn follow(&mut self) {
        let config = self.supervisor.config();
        let files: Vec<&Path> = config.handlers.values().filter_map(file_of).collect();
        self.components
            .retain(|path, _| files.contains(&path.as_path()));
        for path in files {
            if !self.components.contains_key(path) {
                let file = WatchedFile::new(path.to_owned(), Instant::now());
                self.components.insert(path.to_owned(), file);
            }
        }
        let names: Vec<PathBuf> = self.files().flat_map(|file| file.names()).collect();
        self.folders.follow(&names);
    }

    fn files(&mut self) -> impl Iterator<Item = &mut WatchedFile> {
        std::iter::once(&mut self.config).chain(self.components.values_mut())
    }

    fn heard(&mut self, happened: Happened) {
        let (path, is_open) = match happened {
            Happened::Written(path) => (path, true),
            Happened::Whole(path) => (path, false),
            Happened::Something => return,
        };
        for file in self.files() {
            if file.names().contains(&path) {
                file.written(is_open, Instant::now());
            }
        }
    }

    /// Has everything read again.
    fn forget(&mut self) {
        self.files().for_each(WatchedFile::forget);
    }

    async fn decide_config(&mut self, look: Look) -> Option<Instant> {
        let path = self.config.path().to_owned();
        let bytes = tokio::fs::read(&path).await.ok()?;
        if Look::at(&path) != Some(look) {
            // It is being written: the next look sees that.
            return Some(Instant::now());
        }
        if !self.config.is_news(look, content_hash(&bytes)) {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.has_read, true);
        let config = match (self.reread.0)() {
            Ok(config) => config,
            Err(error) => {
                let (problem, hint) = error.sentences();
                tracing::error!(
                    reason = problem,
                    hint,
                    "the new configuration is not in force; the one before goes on"
                );
                return None;
            }
        };
        match self.supervisor.reload(config).await {
            // What was changed since the start was read is a change.
            Ok(changes) if changes.is_empty() => {
                if !is_first {
                    tracing::info!(file = %path.display(), "the new configuration changes nothing that runs");
                }
            }
            Ok(changes) => {
                let is_passing = |change: &Change| matches!(change, Change::Kept { why, .. } if why.is_passing());
                if changes.iter().any(is_passing) {
                    self.config.try_again(Instant::now());
                }
            }
            Err(why) => tracing::error!(
                reason = %why,
                hint = why.hint(),
                "the new configuration is not in force; the one before goes on"
            ),
        }
        None
    }

    async fn decide_component(&mut self, path: &Path, look: Look) -> Option<Instant> {
        let Ok(bytes) = read_component(path).await else {
            return self.cannot_read(path, look).await;
        };
        let file = self.components.get_mut(path)?;
        if Look::at(path) != Some(look) {
            return Some(Instant::now());
        }
        if !file.is_news(look, content_hash(&bytes)) {
            tracing::debug!(file = %path.display(), "its content is the same");
            return None;
        }
        let component = ComponentBytes {
            bytes: bytes.into(),
            origin: path.display().to_string(),
        };
        let config = self.supervisor.config();
        for handler in config.handlers.values() {
            if file_of(handler) != Some(path) {
                continue;
            }
            let swapped = self.supervisor.swap(&handler.name, component.clone()).await;
            if swapped.is_err_and(|why| why.is_passing())
                && let Some(file) = self.components.get_mut(path)
            {
                file.try_again(Instant::now());
            }
        }
        None
    }

    /// What can't be read, or is too large, is told once.
    async fn cannot_read(&mut self, path: &Path, look: Look) -> Option<Instant> {
        let file = self.components.get_mut(path)?;
        if Look::at(path) != Some(look) {
            return Some(Instant::now());
        }
        let Err(error) = read_component(path).await else {
            return Some(Instant::now());
        };
        if file.is_news(look, content_hash(error.problem.as_bytes())) {
            tracing::error!(
                reason = error.problem,
                hint = error.hint,
                "the new component is not in force; the one before goes on"
            );
        }
        None
    }
}

fn look(file: &mut WatchedFile) -> Now {
    let look = Look::at(file.path());
    file.look(look, Instant::now())
}

/// Returns the file of a handler's component, if it is in one.
fn file_of(handler: &HandlerConfig) -> Option<&Path> {
    handler.component.file()
}
