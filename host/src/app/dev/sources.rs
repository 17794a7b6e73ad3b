//! The files of a project that its author changes: what has changed, and what that means.
//!
//! What counts is the content. Left out are hidden files, what the project's `.gitignore` names, what builds and packages lie in, and the
//! component.
//!
//! **Invariant**: a build that changes files of the project by itself does not lead to builds without end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ignore::WalkBuilder;
use tokio::time::Instant;

use super::place::Place;
use crate::app::prove::{CONFIG, EXPECTED, MESSAGES};
use crate::app::watch::{ContentHash, Folders, Look, content_hash};
use crate::config::Config;

/// For how long nothing happens before the files are looked at.
const QUIET: Duration = Duration::from_millis(100);
/// How long that is waited for at the most.
const QUIET_WITHIN: Duration = Duration::from_secs(1);
/// How often the files are looked at, whatever the system tells.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Left out wherever they are.
const NEVER: [&str; 2] = ["node_modules", "__pycache__"];
/// Left out in the project's folder itself.
const NEVER_AT_TOP: [&str; 2] = ["target", "dist"];
/// In how many builds in a row a file changes before that counts as the build's own doing.
const HABIT: u32 = 3;

/// What a change of a file means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The component is built of it, as far as anybody knows.
    Source,
    /// The tables are made by it.
    Migration,
    /// What is sent.
    Messages,
    /// What the host reads by itself, or nobody here.
    Configuration,
}

/// The files, as they looked last.
pub(super) struct Sources {
    root: PathBuf,
    migrations: Vec<PathBuf>,
    component: Vec<PathBuf>,
    folders: Folders,
    files: BTreeMap<PathBuf, (Look, ContentHash)>,
    /// Something happened: since when, and when it is quiet enough to look.
    stirred: Option<(Instant, Instant)>,
}

impl Sources {
    /// Looks at the files for the first time.
    pub(super) fn new(place: &Place, config: &Config) -> Self {
        let mut sources = Self {
            root: place.folder().to_owned(),
            migrations: Vec::new(),
            component: Vec::new(),
            folders: Folders::new(),
            files: BTreeMap::new(),
            stirred: None,
        };
        sources.configure(config);
        sources.look();
        sources
    }

    /// Goes by another configuration from now on. True if components belong elsewhere.
    pub(super) fn configure(&mut self, config: &Config) -> bool {
        let handlers = || config.handlers.values();
        self.migrations = handlers()
            .filter_map(|handler| std::path::absolute(handler.migrations.as_ref()?).ok())
            .collect();
        let component: Vec<PathBuf> = handlers()
            .filter_map(|handler| std::path::absolute(handler.component.file()?).ok())
            .collect();
        let before = std::mem::replace(&mut self.component, component);
        before != self.component
    }

    /// True if the configuration is among `changed`.
    pub(super) fn has_configuration(&self, changed: &BTreeSet<PathBuf>) -> bool {
        changed.contains(&self.root.join(CONFIG))
    }

    /// Says what a change of `path` means.
    pub(super) fn kind(&self, path: &Path) -> Kind {
        let at_top = |name: &str| path == self.root.join(name);
        if self
            .migrations
            .iter()
            .any(|folder| path.starts_with(folder))
        {
            Kind::Migration
        } else if at_top(MESSAGES) {
            Kind::Messages
        } else if at_top(CONFIG)
            || at_top(EXPECTED)
            || path.extension().is_some_and(|extension| extension == "md")
        {
            Kind::Configuration
        } else {
            Kind::Source
        }
    }

    /// Waits until files have other contents than before, or are new, or gone, and returns them.
    ///
    /// *Cancellation*: dropped, nothing is lost.
    pub(super) async fn changed(&mut self) -> BTreeSet<PathBuf> {
        loop {
            let (since, until) = match self.stirred {
                Some(stirred) => stirred,
                None => {
                    let heard = tokio::time::timeout(LOOK_EVERY, self.folders.next()).await;
                    let now = Instant::now();
                    let wait = if heard.is_ok() { QUIET } else { Duration::ZERO };
                    *self.stirred.insert((now, now + wait))
                }
            };
            match tokio::time::timeout_at(until, self.folders.next()).await {
                Ok(_) => {
                    let until = (Instant::now() + QUIET).min(since + QUIET_WITHIN);
                    self.stirred = Some((since, until));
                }
                Err(_) => {
                    let changed = self.look();
                    if !changed.is_empty() {
                        return changed;
                    }
                }
            }
        }
    }

    /// Looks at the files now, and returns those with other contents than before, new ones and those that are gone.
    pub(super) fn look(&mut self) -> BTreeSet<PathBuf> {
        self.stirred = None;
        while self.folders.more().is_some() {}
        let (mut files, mut folders) = (BTreeMap::new(), vec![self.root.join(CONFIG)]);
        for path in self.walk() {
            if path.is_dir() {
                // A folder is watched because of a file in it, whether there is one or not.
                folders.push(path.join(CONFIG));
                continue;
            }
            let Some(look) = Look::at(&path) else {
                continue;
            };
            let known = self.files.get(&path).filter(|(known, _)| *known == look);
            let hash = match known {
                Some((_, hash)) => *hash,
                None => match std::fs::read(&path) {
                    Ok(bytes) => content_hash(&bytes),
                    Err(_) => continue,
                },
            };
            files.insert(path, (look, hash));
        }
        self.folders.follow(&folders);
        let hash_in = |files: &BTreeMap<PathBuf, (Look, ContentHash)>, path: &PathBuf| {
            files.get(path).map(|(_, hash)| *hash)
        };
        let changed = files
            .keys()
            .chain(self.files.keys())
            .filter(|path| hash_in(&files, path) != hash_in(&self.files, path))
            .cloned()
            .collect();
        self.files = files;
        changed
    }

    fn walk(&self) -> impl Iterator<Item = PathBuf> {
        let (root, component) = (self.root.clone(), self.component.clone());
        WalkBuilder::new(&self.root)
            // Whatever repository, if any, the project lies in: what counts is its own.
            .parents(false)
            .require_git(false)
            .git_global(false)
            .git_exclude(false)
            .filter_entry(move |entry| {
                let name = entry.file_name();
                let is_at_top = entry.path().parent() == Some(&root);
                !(NEVER.iter().any(|never| name == *never)
                    || is_at_top && NEVER_AT_TOP.iter().any(|never| name == *never)
                    || component.iter().any(|file| file == entry.path()))
            })
            .build()
            .filter_map(Result::ok)
            .map(ignore::DirEntry::into_path)
    }
}

/// Which files change whenever a build runs.
#[derive(Debug, Default)]
pub(super) struct Habits {
    /// In how many builds in a row.
    builds: BTreeMap<PathBuf, u32>,
}

impl Habits {
    /// A file has changed while no build ran: that was the author.
    pub(super) fn changed_alone(&mut self, path: &Path) {
        self.builds.remove(path);
    }

    /// These files have changed while a build ran. Returns those that are worth another build, and those that are not from now on.
    pub(super) fn changed_in_build(
        &mut self,
        changed: &BTreeSet<PathBuf>,
    ) -> (BTreeSet<PathBuf>, BTreeSet<PathBuf>) {
        self.builds.retain(|path, _| changed.contains(path));
        let (mut worth, mut habitual) = (BTreeSet::new(), BTreeSet::new());
        for path in changed {
            let builds = self.builds.entry(path.clone()).or_default();
            *builds = builds.saturating_add(1);
            if *builds < HABIT {
                worth.insert(path.clone());
            } else if *builds == HABIT {
                habitual.insert(path.clone());
            }
        }
        (worth, habitual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(names: &[&str]) -> BTreeSet<PathBuf> {
        names.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn what_changes_in_every_build_is_the_builds_own_until_it_changes_alone() {
        let mut habits = Habits::default();
        let none = BTreeSet::new();
        // Another file in the first build only.
        let both = habits.changed_in_build(&paths(&["lock", "source"]));
        assert_eq!(both, (paths(&["lock", "source"]), none.clone()));
        let again = habits.changed_in_build(&paths(&["lock"]));
        assert_eq!(again, (paths(&["lock"]), none.clone()));
        let third = habits.changed_in_build(&paths(&["lock"]));
        assert_eq!(third, (none.clone(), paths(&["lock"])));
        // Told once.
        assert_eq!(
            habits.changed_in_build(&paths(&["lock"])),
            (none.clone(), none.clone())
        );
        habits.changed_alone(Path::new("lock"));
        let after = habits.changed_in_build(&paths(&["lock"]));
        assert_eq!(after, (paths(&["lock"]), none));
    }
}
