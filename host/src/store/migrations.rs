//! Which migrations there are, and which are still to be applied: hapax's own and the handlers'.
//!
//! **Invariant**: no I/O and no sqlx here.

use sha2::{Digest as _, Sha256};

use super::{HandlerMigration, StoreError, StoreKind, guard};

/// One of hapax's own files.
pub(crate) struct OwnMigration {
    /// Counted from 1, without gaps, the same on both databases. A binary's version is that of the last file it knows.
    pub(crate) version: i64,
    /// The oldest binary that still works after it: one that only adds leaves this as it was; one that takes away raises it to
    /// the release that stopped using what goes.
    pub(crate) serves: i64,
    /// Several statements.
    pub(crate) sql: &'static str,
}

macro_rules! own_migration {
    ($version:literal, serves $serves:literal, $folder:literal, $file:literal) => {
        OwnMigration {
            version: $version,
            serves: $serves,
            sql: include_str!(concat!("../../../migrations/", $folder, "/", $file)),
        }
    };
}

/// Returns hapax's own migrations, in order.
pub(crate) fn own(kind: StoreKind) -> &'static [OwnMigration] {
    match kind {
        StoreKind::Postgres => &[
            own_migration!(1, serves 1, "postgres", "0001_tables.sql"),
            own_migration!(2, serves 1, "postgres", "0002_relay.sql"),
            own_migration!(3, serves 1, "postgres", "0003_retention.sql"),
            own_migration!(4, serves 1, "postgres", "0004_outbox_targets.sql"),
            own_migration!(5, serves 1, "postgres", "0005_checkpoints.sql"),
            own_migration!(6, serves 1, "postgres", "0006_deployments.sql"),
        ],
        StoreKind::Sqlite => &[
            own_migration!(1, serves 1, "sqlite", "0001_tables.sql"),
            own_migration!(2, serves 1, "sqlite", "0002_relay.sql"),
            own_migration!(3, serves 1, "sqlite", "0003_retention.sql"),
            own_migration!(4, serves 1, "sqlite", "0004_outbox_targets.sql"),
            own_migration!(5, serves 1, "sqlite", "0005_checkpoints.sql"),
            own_migration!(6, serves 1, "sqlite", "0006_deployments.sql"),
        ],
    }
}

/// Returns the version of hapax's own tables that this binary knows.
pub fn schema_version() -> i64 {
    // The same on both databases.
    own(StoreKind::Sqlite).last().map_or(0, |last| last.version)
}

/// What `meta` says of the own tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Schema {
    /// The last migration that was applied; 0 before the first.
    pub(crate) version: i64,
    /// The oldest binary that it serves; absent if it does not say.
    pub(crate) serves: Option<i64>,
}

/// Returns the own migrations that a database lacks: none of one that is newer and says that it serves this binary.
///
/// # Errors
/// `SchemaNewer` if it is beyond this binary.
pub(crate) fn own_missing(
    kind: StoreKind,
    found: Schema,
) -> Result<impl Iterator<Item = &'static OwnMigration>, StoreError> {
    let known = schema_version();
    if found.version > known && found.serves.is_none_or(|oldest| oldest > known) {
        return Err(StoreError::SchemaNewer {
            found: found.version,
            known,
        });
    }
    Ok(own(kind)
        .iter()
        .filter(move |migration| migration.version > found.version))
}

/// A handler's migration as it was recorded when it was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recorded {
    pub(crate) version: i64,
    pub(crate) file: String,
    pub(crate) checksum: Vec<u8>,
}

/// Returns the SHA-256 of a migration's text.
pub(crate) fn checksum(migration: &HandlerMigration) -> [u8; 32] {
    Sha256::digest(migration.sql.as_bytes()).into()
}

/// Checks a handler's migrations as far as that goes without their database.
///
/// # Errors
/// `Unusable`, as when they are applied.
pub fn check_handler_migrations(
    kind: StoreKind,
    migrations: &[HandlerMigration],
) -> Result<(), StoreError> {
    handler_missing(kind, migrations, &[]).map(|_| ())
}

/// Returns a handler's migrations that are not recorded yet, in order.
///
/// # Errors
/// `Unusable`, naming the file: two files with one number, a recorded file that has changed or is missing, a new file
/// with a number below a recorded one, a transaction command in a new file.
pub(crate) fn handler_missing<'a>(
    kind: StoreKind,
    migrations: &'a [HandlerMigration],
    recorded: &[Recorded],
) -> Result<Vec<&'a HandlerMigration>, StoreError> {
    let unusable = |text: String| Err(StoreError::Unusable(text));
    let mut sorted: Vec<&HandlerMigration> = migrations.iter().collect();
    sorted.sort_by_key(|migration| migration.version);
    for pair in sorted.windows(2) {
        if pair[0].version == pair[1].version {
            return unusable(format!(
                "`{}` and `{}` have the same number",
                pair[0].file, pair[1].file
            ));
        }
    }
    for old in recorded {
        match sorted.iter().find(|new| new.version == old.version) {
            None => {
                return unusable(format!(
                    "`{}` was applied to this database and is missing now\nhint: put it back",
                    old.file
                ));
            }
            Some(new) if checksum(new)[..] != old.checksum[..] => {
                return unusable(format!(
                    "`{}` has changed since it was applied to this database\nhint: put the old text back, and write the \
                     change as a new file",
                    new.file
                ));
            }
            Some(_) => {}
        }
    }
    let last = recorded.iter().map(|old| old.version).max();
    let mut missing = Vec::new();
    for new in sorted {
        if recorded.iter().any(|old| old.version == new.version) {
            continue;
        }
        if let Some(last) = last
            && new.version < last
        {
            return unusable(format!(
                "`{}` is new, but number {last} was applied already\nhint: give it a higher number",
                new.file
            ));
        }
        if new.sql.contains('\0') {
            return unusable(format!("`{}` contains a NUL byte", new.file));
        }
        if let Some(command) = guard::transaction_command(kind, &new.sql) {
            return unusable(format!(
                "`{}` contains `{command}`\nhint: leave it out: each file runs in a transaction of the host's",
                new.file
            ));
        }
        missing.push(new);
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: i64, sql: &str) -> HandlerMigration {
        HandlerMigration {
            version,
            file: format!("{version:04}_x.sql"),
            sql: sql.into(),
        }
    }

    fn recorded(migration: &HandlerMigration) -> Recorded {
        Recorded {
            version: migration.version,
            file: migration.file.clone(),
            checksum: checksum(migration).to_vec(),
        }
    }

    #[test]
    fn own_migrations_are_numbered_alike() {
        for kind in [StoreKind::Postgres, StoreKind::Sqlite] {
            let versions: Vec<i64> = own(kind).iter().map(|one| one.version).collect();
            let expected: Vec<i64> = (1..).take(versions.len()).collect();
            assert_eq!(versions, expected);
            assert_eq!(versions.len(), own(StoreKind::Postgres).len());
            assert!(own(kind).iter().is_sorted_by_key(|one| one.serves));
            assert!(own(kind).iter().all(|one| one.serves <= one.version));
            let known = versions.len() as i64;
            let missing = |version, serves| {
                own_missing(kind, Schema { version, serves }).map(Iterator::count)
            };
            assert_eq!(missing(0, None).unwrap(), versions.len());
            assert_eq!(missing(1000, Some(known)).unwrap(), 0);
            for serves in [None, Some(known + 1)] {
                assert!(matches!(
                    missing(1000, serves),
                    Err(StoreError::SchemaNewer { found: 1000, .. })
                ));
            }
        }
    }

    #[test]
    fn a_handlers_migrations() {
        let kind = StoreKind::Postgres;
        let (one, two, ten) = (file(1, "a"), file(2, "b"), file(10, "c"));
        let all = [ten.clone(), one.clone(), two.clone()];
        let missing = |migrations: &[HandlerMigration], recorded: &[Recorded]| {
            handler_missing(kind, migrations, recorded)
                .map(|missing| missing.iter().map(|one| one.version).collect::<Vec<_>>())
                .map_err(|error| error.to_string())
        };
        assert_eq!(missing(&all, &[]).unwrap(), [1, 2, 10]);
        assert_eq!(missing(&all, &[recorded(&one)]).unwrap(), [2, 10]);
        let text = |result: Result<Vec<i64>, String>| result.unwrap_err();
        assert!(text(missing(&all, &[recorded(&ten)])).contains("`0001_x.sql` is new"));
        assert!(
            text(missing(&all, &[recorded(&file(1, "x"))])).contains("`0001_x.sql` has changed")
        );
        assert!(text(missing(&[two], &[recorded(&one)])).contains("`0001_x.sql` was applied"));
        assert!(text(missing(&[one.clone(), one], &[])).contains("the same number"));
        assert!(text(missing(&[file(1, "SELECT 1; COMMIT;")], &[])).contains("`COMMIT`"));
    }
}
