//! The savepoints that a handler has open in its transaction: how many there may be, what ends with what, and whether an
//! error can still be undone.
//!
//! A savepoint can neither be begun nor released after an error, on both databases: so every open one was begun before
//! the error, and going back to any of them undoes it. What no savepoint undoes is noted as `lost`.
//!
//! **Invariant**: no I/O and no sqlx here.
//! **Invariant**: a savepoint's name is the host's own, and is not used again in its transaction.

use super::{SqlError, records};

/// The most savepoints that may be open at once.
pub const SAVEPOINTS_MAX: usize = 64;

/// A savepoint of the open transaction, by its number there. A later one has a larger number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Savepoint(
    /// From 1.
    pub u32,
);

impl Savepoint {
    /// Returns the statement that begins it.
    pub(crate) fn begin(self) -> String {
        format!("SAVEPOINT {}", self.name())
    }

    /// Returns the statement that keeps what was done since, and ends it.
    pub(crate) fn release(self) -> String {
        format!("RELEASE SAVEPOINT {}", self.name())
    }

    /// Returns the statements that undo what was done since, and end it: going back alone would leave it open.
    pub(crate) fn roll_back(self) -> String {
        format!("ROLLBACK TO SAVEPOINT {}; {}", self.name(), self.release())
    }

    fn name(self) -> String {
        format!("hapax_savepoint_{}", self.0)
    }
}

/// What is known of a transaction's savepoints.
#[derive(Debug, Default)]
pub(crate) struct Savepoints {
    /// In the order of beginning.
    open: Vec<Savepoint>,
    last: u32,
    lost: bool,
}

impl Savepoints {
    /// Returns the savepoint to begin next.
    pub(crate) fn next(&self) -> Result<Savepoint, SqlError> {
        match self.last.checked_add(1) {
            Some(number) if self.open.len() < SAVEPOINTS_MAX => Ok(Savepoint(number)),
            _ => Err(SqlError {
                hint: Some("release or roll back savepoints before more are begun".into()),
                ..SqlError::new(
                    "limit.savepoints",
                    format!("at most {SAVEPOINTS_MAX} savepoints may be open at once"),
                )
            }),
        }
    }

    /// Takes down that the database has begun it.
    pub(crate) fn begun(&mut self, savepoint: Savepoint) {
        self.last = savepoint.0;
        self.open.push(savepoint);
    }

    /// Takes down that the database has ended it, and with it those that were begun later.
    pub(crate) fn ended(&mut self, savepoint: Savepoint) {
        self.open.retain(|open| *open < savepoint);
    }

    pub(crate) fn is_open(&self, savepoint: Savepoint) -> bool {
        self.open.contains(&savepoint)
    }

    /// Fails for a savepoint that is not open.
    pub(crate) fn check_open(&self, savepoint: Savepoint) -> Result<(), SqlError> {
        if self.is_open(savepoint) {
            return Ok(());
        }
        Err(SqlError::new(
            "savepoint.ended",
            "the savepoint is not open: it was released or rolled back, or ended with one that was begun before it",
        ))
    }

    /// Returns how many are open.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Returns the one that was begun last, ended or not; number 0 if none was.
    pub(crate) fn last(&self) -> Savepoint {
        Savepoint(self.last)
    }

    /// Takes down that no savepoint can undo what has happened.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost
    }

    /// Returns what calls are answered with after an error.
    pub(crate) fn aborted(&self) -> SqlError {
        if self.lost || self.open.is_empty() {
            return records::aborted();
        }
        SqlError {
            hint: Some("roll back to a savepoint, or return the first error to the host".into()),
            ..SqlError::new(
                "aborted",
                "an earlier statement failed, so nothing that was done since the last savepoint can be kept",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(savepoints: &mut Savepoints) -> Savepoint {
        let savepoint = savepoints.next().unwrap();
        savepoints.begun(savepoint);
        savepoint
    }

    #[test]
    fn later_ones_end_with_an_earlier_one_and_no_name_comes_twice() {
        let mut savepoints = Savepoints::default();
        let [a, b, c] = [(); 3].map(|()| begun(&mut savepoints));
        savepoints.ended(b);
        assert!(savepoints.check_open(a).is_ok());
        for ended in [b, c] {
            assert_eq!(
                savepoints.check_open(ended).unwrap_err().code,
                "savepoint.ended"
            );
        }
        let d = begun(&mut savepoints);
        assert_eq!(d, Savepoint(4));
        assert_eq!(savepoints.open(), 2);
        assert_eq!(
            d.roll_back(),
            "ROLLBACK TO SAVEPOINT hapax_savepoint_4; RELEASE SAVEPOINT hapax_savepoint_4"
        );
    }

    #[test]
    fn open_ones_are_bounded_and_ended_ones_are_not_counted() {
        let mut savepoints = Savepoints::default();
        for _ in 0..1_000 {
            let savepoint = begun(&mut savepoints);
            savepoints.ended(savepoint);
        }
        for _ in 0..SAVEPOINTS_MAX {
            begun(&mut savepoints);
        }
        assert_eq!(savepoints.next().unwrap_err().code, "limit.savepoints");
    }
}
