//! One file that is watched: whether its content is whole, and whether it was decided upon already.
//!
//! A file counts as whole when it looked the same for a moment and nobody is known to have it open for writing; or when it looked the
//! same for long, since not every writer is seen (another machine, say).
//!
//! **Invariant**: what counts is the content; how a file got it decides only about when it is read.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

/// For how long a file that nobody writes looks the same before it is read.
const QUIET: Duration = Duration::from_millis(100);
/// And one that somebody may still be writing.
const QUIET_WHILE_OPEN: Duration = Duration::from_secs(2);
/// How long what could not be done now rests.
const PASSING_PAUSE: Duration = Duration::from_secs(2);
/// As deep as links are followed.
const LINKS_MAX: usize = 16;

/// What the file system says of a file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::app) struct Look {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Look {
    /// Looks at what `path` leads to. `None` if there is nothing.
    pub(in crate::app) fn at(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// What a content is told by.
pub(in crate::app) type ContentHash = [u8; 32];

/// Returns what a content is told by.
pub(in crate::app) fn content_hash(bytes: &[u8]) -> ContentHash {
    Sha256::digest(bytes).into()
}

/// What to do about a file now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Now {
    /// Nothing, until something happens.
    Nothing,
    /// Look again at this moment.
    Wait(Instant),
    /// Read it: its content may be another one.
    Read(Look),
}

/// A file that is watched.
#[derive(Debug)]
pub(super) struct WatchedFile {
    path: PathBuf,
    seen: Option<Look>,
    since: Instant,
    /// Somebody wrote to it, and was not seen closing it.
    is_open: bool,
    /// What was decided upon.
    decided: Option<(Look, ContentHash)>,
    /// When the same content is tried again.
    again_at: Option<Instant>,
}

impl WatchedFile {
    pub(super) fn new(path: PathBuf, now: Instant) -> Self {
        Self {
            path,
            seen: None,
            since: now,
            is_open: false,
            decided: None,
            again_at: None,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Somebody wrote to it (`is_open`), or is done with it.
    pub(super) fn written(&mut self, is_open: bool, now: Instant) {
        self.is_open = is_open;
        self.since = now;
    }

    /// Takes what the file looks like now, and says what to do.
    pub(super) fn look(&mut self, look: Option<Look>, now: Instant) -> Now {
        if look != self.seen {
            self.seen = look;
            self.since = now;
        }
        let Some(look) = look else {
            // It is being replaced; whoever reads it at a restart will say that it is missing.
            self.is_open = false;
            return Now::Nothing;
        };
        if self.decided.is_some_and(|(decided, _)| decided == look) {
            return match self.again_at {
                Some(at) if at <= now => Now::Read(look),
                Some(at) => Now::Wait(at),
                None => Now::Nothing,
            };
        }
        let quiet = if self.is_open {
            QUIET_WHILE_OPEN
        } else {
            QUIET
        };
        let ready_at = self.since + quiet;
        if now < ready_at {
            Now::Wait(ready_at)
        } else {
            Now::Read(look)
        }
    }

    /// Takes what was read when the file looked like `look`. True if that is to be decided upon: it is another content than before,
    /// or one that is tried again.
    pub(super) fn is_news(&mut self, look: Look, hash: ContentHash) -> bool {
        let is_again = self.again_at.take().is_some();
        let is_other = self.decided.is_none_or(|(_, decided)| decided != hash);
        self.decided = Some((look, hash));
        self.is_open = false;
        is_other || is_again
    }

    /// Has the same content tried again in a while.
    pub(super) fn try_again(&mut self, now: Instant) {
        self.again_at = Some(now + PASSING_PAUSE);
    }

    /// Has it read and decided upon again, whatever it looks like.
    pub(super) fn forget(&mut self) {
        self.decided = None;
    }

    /// Returns every name by which a change of what it leads to can be seen: its own, and those of the links on the way.
    pub(super) fn names(&self) -> Vec<PathBuf> {
        let mut names = vec![self.path.clone()];
        let mut here = self.path.clone();
        for _ in 0..LINKS_MAX {
            let Ok(target) = std::fs::read_link(&here) else {
                break;
            };
            here = here.parent().unwrap_or(Path::new("/")).join(target);
            names.push(here.clone());
        }
        // Links among the folders are resolved, too.
        if let Ok(file) = std::fs::canonicalize(&self.path)
            && !names.contains(&file)
        {
            names.push(file);
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(inode: u64, size: u64) -> Option<Look> {
        Some(Look {
            device: 1,
            inode,
            size,
            modified: (0, 0),
            changed: (0, 0),
        })
    }

    #[test]
    fn a_file_is_read_once_it_is_quiet_and_decided_upon_once() {
        let start = Instant::now();
        let mut file = WatchedFile::new(PathBuf::from("x"), start);
        assert_eq!(file.look(look(1, 1), start), Now::Wait(start + QUIET));
        // It grows.
        let later = start + QUIET / 2;
        assert_eq!(file.look(look(1, 2), later), Now::Wait(later + QUIET));
        let quiet = later + QUIET;
        let whole = look(1, 2).unwrap();
        assert_eq!(file.look(look(1, 2), quiet), Now::Read(whole));
        assert!(file.is_news(whole, [1; 32]));
        assert_eq!(file.look(look(1, 2), quiet), Now::Nothing);
        // Touched: another look, the same content.
        let touched = look(2, 2).unwrap();
        assert_eq!(file.look(Some(touched), quiet), Now::Wait(quiet + QUIET));
        assert_eq!(file.look(Some(touched), quiet + QUIET), Now::Read(touched));
        assert!(!file.is_news(touched, [1; 32]));
    }

    #[test]
    fn a_writer_that_is_seen_is_waited_for() {
        let start = Instant::now();
        let mut file = WatchedFile::new(PathBuf::from("x"), start);
        file.look(look(1, 1), start);
        file.written(true, start);
        let later = start + QUIET * 5;
        assert_eq!(
            file.look(look(1, 1), later),
            Now::Wait(start + QUIET_WHILE_OPEN)
        );
        file.written(false, later);
        assert_eq!(file.look(look(1, 1), later), Now::Wait(later + QUIET));
        // One that was not seen closing it is not waited for without end.
        file.written(true, later);
        let end = later + QUIET_WHILE_OPEN;
        assert!(matches!(file.look(look(1, 1), end), Now::Read(_)));
    }

    #[test]
    fn what_could_not_be_done_now_is_tried_again() {
        let start = Instant::now();
        let mut file = WatchedFile::new(PathBuf::from("x"), start);
        let here = look(1, 1).unwrap();
        assert!(file.is_news(here, [1; 32]));
        file.try_again(start);
        assert_eq!(
            file.look(Some(here), start),
            Now::Wait(start + PASSING_PAUSE)
        );
        assert_eq!(file.look(None, start), Now::Nothing);
        assert_eq!(
            file.look(Some(here), start + PASSING_PAUSE),
            Now::Read(here)
        );
        assert!(file.is_news(here, [1; 32]));
        assert!(!file.is_news(here, [1; 32]));
    }
}
