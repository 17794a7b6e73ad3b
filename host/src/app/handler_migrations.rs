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
    let mut migrations = Vec::new();
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
        let digits: &str = &file[..file.bytes().take_while(u8::is_ascii_digit).count()];
        let version: i64 = digits.parse().map_err(|_| {
            (
                format!(
                    "the migration `{}` does not begin with a number",
                    path.display()
                ),
                "name it such as `0001_accounts.sql`".to_owned(),
            )
        })?;
        let sql = std::fs::read_to_string(&path).map_err(|err| {
            (
                format!("the migration `{}` cannot be read: {err}", path.display()),
                "it must be a text file in UTF-8".to_owned(),
            )
        })?;
        migrations.push(HandlerMigration { version, file, sql });
    }
    if migrations.is_empty() && is_for_other_only {
        return Err((
            format!("the migrations in `{shown}` are for {other} only, and the store is {kind}"),
            format!("add a folder `{}` there", kind.as_str()),
        ));
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
