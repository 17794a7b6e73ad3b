//! The folders in which something may happen to a watched file: the system tells of it, as far as it can.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use notify::event::{AccessKind, AccessMode, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

/// Events that wait to be heard, at the most: what does not fit is noticed by the next look.
const EVENTS_MAX: usize = 4_096;

/// What happened to a file.
#[derive(Debug)]
pub(in crate::app) enum Happened {
    /// Somebody writes to it.
    Written(PathBuf),
    /// Somebody has written to it, and closed it; or it got here whole.
    Whole(PathBuf),
    /// Something else: look.
    Something,
}

/// The watched folders.
pub(in crate::app) struct Folders {
    /// Absent where the system tells of nothing.
    watcher: Option<RecommendedWatcher>,
    /// Each with its device and inode: another folder may have taken its name.
    watched: BTreeMap<PathBuf, (u64, u64)>,
    events: mpsc::Receiver<Happened>,
    /// Held, so that the channel stays open without a watcher.
    _sender: mpsc::Sender<Happened>,
}

impl Folders {
    /// Makes it with no folder yet. Says once if the system can't tell of changes.
    pub(in crate::app) fn new() -> Self {
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let heard = sender.clone();
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            for happened in event.map_or_else(|_| vec![Happened::Something], happened) {
                // What does not fit is noticed by the next look.
                let _ = heard.try_send(happened);
            }
        });
        let watcher = watcher
            .inspect_err(|error| {
                tracing::warn!(%error, "the system tells of no changed files: they are looked at every few seconds");
            })
            .ok();
        Self {
            watcher,
            watched: BTreeMap::new(),
            events,
            _sender: sender,
        }
    }

    /// Watches the folders of all of `files`, and no others.
    pub(in crate::app) fn follow(&mut self, files: &[PathBuf]) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        let wanted: BTreeSet<&Path> = files.iter().filter_map(|file| file.parent()).collect();
        self.watched.retain(|folder, identity| {
            let stays = wanted.contains(folder.as_path()) && identity_of(folder) == Some(*identity);
            if !stays {
                // One that is gone is not watched any more anyway.
                let _ = watcher.unwatch(folder);
            }
            stays
        });
        for folder in wanted {
            if self.watched.contains_key(folder) {
                continue;
            }
            // One that can't be watched is looked at, as all are, every few seconds.
            if let Some(identity) = identity_of(folder)
                && watcher.watch(folder, RecursiveMode::NonRecursive).is_ok()
            {
                self.watched.insert(folder.to_owned(), identity);
            }
        }
    }

    /// Waits until something happens.
    pub(in crate::app) async fn next(&mut self) -> Happened {
        self.events.recv().await.unwrap_or(Happened::Something)
    }

    /// Returns what else has happened.
    pub(in crate::app) fn more(&mut self) -> Option<Happened> {
        self.events.try_recv().ok()
    }
}

fn identity_of(folder: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::metadata(folder).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

fn happened(event: Event) -> Vec<Happened> {
    let each = |what: fn(PathBuf) -> Happened| event.paths.iter().cloned().map(what).collect();
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => each(Happened::Whole),
        // Reading is no change, and this process reads.
        EventKind::Access(_) => Vec::new(),
        EventKind::Modify(ModifyKind::Data(_)) => each(Happened::Written),
        EventKind::Modify(ModifyKind::Name(_)) => each(Happened::Whole),
        // A link is whole at once, a file is written next.
        EventKind::Create(_) => event
            .paths
            .iter()
            .map(|path| match std::fs::symlink_metadata(path) {
                Ok(metadata) if metadata.is_file() => Happened::Written(path.clone()),
                _ => Happened::Something,
            })
            .collect(),
        _ => vec![Happened::Something],
    }
}
