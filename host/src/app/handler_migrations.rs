//! Reading a handler's own migrations from their folder.

use std::path::Path;

use crate::store::{HandlerMigration, StoreKind};

/// Reads the numbered SQL files in `folder`, or in `folder/postgres` or `folder/sqlite` if that exists, by number.
///
/// # Errors
/// Says which file is wrong and what to do.
pub(super) fn read(
    folder: &Path,
    kind: StoreKind,
) -> Result<Vec<HandlerMigration>, (String, String)> {
    let special = folder.join(kind.as_str());
    let other = match kind {
        StoreKind::Postgres => StoreKind::Sqlite,
        StoreKind::Sqlite => StoreKind::Postgres,
    };
    let is_for_other_only = !special.is_dir() && folder.join(other.as_str()).is_dir();
    let folder = if special.is_dir() {
        special
    } else {
        folder.to_owned()
    };
    let shown = folder.display();
    let entries = std::fs::read_dir(&folder).map_err(|err| {
        (
            format!("the folder of migrations `{shown}` cannot be read: {err}"),
            "correct `migrations`, or leave it out".to_owned(),
        )
    })?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|err| {
            (
                format!("`{shown}` cannot be read: {err}"),
                "check the folder".to_owned(),
            )
        })?;
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "sql") {
            continue;
        }
        let file = entry.file_name().to_string_lossy().into_owned();
        let sql = std::fs::read_to_string(&path).map_err(|err| {
            (
                format!("the migration `{}` cannot be read: {err}", path.display()),
                "it must be a text file in UTF-8".to_owned(),
            )
        })?;
        files.push((file, sql));
    }
    if files.is_empty() && is_for_other_only {
        return Err(for_other_only(&shown, kind));
    }
    numbered(files, &shown)
}

/// Takes those of `files` that are for `kind`, by number: those in its folder (`postgres/0001_a.sql`) if there are any, else those in no
/// folder. `shown` names the whole.
///
/// # Errors
/// As `read`.
pub(super) fn sent(
    files: Vec<(String, String)>,
    kind: StoreKind,
    shown: &str,
) -> Result<Vec<HandlerMigration>, (String, String)> {
    let is_empty = files.is_empty();
    let (special, plain): (Vec<_>, Vec<_>) = files.into_iter().partition(|(name, _)| {
        name.split_once('/')
            .is_some_and(|(folder, _)| folder == kind.as_str())
    });
    let chosen: Vec<_> = if special.is_empty() {
        let plain = plain.into_iter();
        plain.filter(|(name, _)| !name.contains('/')).collect()
    } else {
        let own = special.into_iter();
        own.map(|(name, sql)| (name[kind.as_str().len() + 1..].to_owned(), sql))
            .collect()
    };
    if chosen.is_empty() && !is_empty {
        return Err(for_other_only(&shown, kind));
    }
    numbered(chosen, &shown)
}

fn for_other_only(shown: &dyn std::fmt::Display, kind: StoreKind) -> (String, String) {
    let other = match kind {
        StoreKind::Postgres => StoreKind::Sqlite,
        StoreKind::Sqlite => StoreKind::Postgres,
    };
    (
        format!("the migrations in `{shown}` are for {other} only, and the store is {kind}"),
        format!("add a folder `{}` there", kind.as_str()),
    )
}

/// Reads the numbers that the files' names begin with.
fn numbered(
    files: Vec<(String, String)>,
    shown: &dyn std::fmt::Display,
) -> Result<Vec<HandlerMigration>, (String, String)> {
    let mut migrations = Vec::with_capacity(files.len());
    for (file, sql) in files {
        let digits: &str = &file[..file.bytes().take_while(u8::is_ascii_digit).count()];
        let version: i64 = digits.parse().map_err(|_| {
            (
                format!("the migration `{file}` in `{shown}` does not begin with a number"),
                "name it such as `0001_accounts.sql`".to_owned(),
            )
        })?;
        migrations.push(HandlerMigration { version, file, sql });
    }
    migrations.sort_by_key(|migration| migration.version);
    if let Some(pair) = migrations
        .windows(2)
        .find(|pair| pair[0].version == pair[1].version)
    {
        return Err((
            format!(
                "the migrations `{}` and `{}` in `{shown}` have the same number",
                pair[0].file, pair[1].file
            ),
            "give each a number of its own".to_owned(),
        ));
    }
    Ok(migrations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn files_come_by_number_and_by_database() {
        let both = folder(&[("0010_b.sql", "b"), ("2_a.sql", "a"), ("README.md", "")]);
        let files = read(both.path(), StoreKind::Sqlite).unwrap();
        assert_eq!(
            files.iter().map(|file| file.version).collect::<Vec<_>>(),
            [2, 10]
        );

        let apart = folder(&[("postgres/1_p.sql", "p"), ("sqlite/1_s.sql", "s")]);
        assert_eq!(read(apart.path(), StoreKind::Postgres).unwrap()[0].sql, "p");
        assert_eq!(read(apart.path(), StoreKind::Sqlite).unwrap()[0].sql, "s");

        let one = folder(&[("postgres/1_p.sql", "p")]);
        assert!(
            read(one.path(), StoreKind::Sqlite)
                .unwrap_err()
                .0
                .ends_with("are for PostgreSQL only, and the store is SQLite")
        );
    }

    #[test]
    fn what_is_sent_is_chosen_by_database() {
        let files = |names: &[&str]| {
            let pairs = names.iter().map(|name| ((*name).to_owned(), String::new()));
            pairs.collect::<Vec<_>>()
        };
        let chosen = |names: &[&str], kind| {
            sent(files(names), kind, "sent")
                .map(|files| files.into_iter().map(|one| one.file).collect::<Vec<_>>())
                .map_err(|(problem, _)| problem)
        };
        let both = ["sqlite/2_b.sql", "sqlite/1_a.sql", "postgres/1_p.sql"];
        assert_eq!(
            chosen(&both, StoreKind::Sqlite).unwrap(),
            ["1_a.sql", "2_b.sql"]
        );
        assert_eq!(chosen(&both, StoreKind::Postgres).unwrap(), ["1_p.sql"]);
        assert_eq!(
            chosen(&["1_a.sql"], StoreKind::Postgres).unwrap(),
            ["1_a.sql"]
        );
        assert_eq!(chosen(&[], StoreKind::Sqlite).unwrap(), [""; 0]);
        let error = chosen(&["postgres/1_p.sql"], StoreKind::Sqlite).unwrap_err();
        assert!(
            error.ends_with("are for PostgreSQL only, and the store is SQLite"),
            "{error}"
        );
        let error = chosen(&["tables.sql"], StoreKind::Sqlite).unwrap_err();
        assert!(error.contains("`tables.sql`"), "{error}");
    }

    #[test]
    fn mistakes_name_the_file() {
        let unnumbered = folder(&[("tables.sql", "")]);
        assert!(
            read(unnumbered.path(), StoreKind::Sqlite)
                .unwrap_err()
                .0
                .contains("tables.sql")
        );
        let twice = folder(&[("1_a.sql", ""), ("01_b.sql", "")]);
        assert!(
            read(twice.path(), StoreKind::Sqlite)
                .unwrap_err()
                .0
                .contains("same number")
        );
        assert!(
            read(Path::new("/nowhere/at/all"), StoreKind::Sqlite)
                .unwrap_err()
                .0
                .contains("/nowhere/at/all")
        );
    }
}
