//! A handler in C: a clang with its linker for Wasm, bindings from the contract, no C library.
//!
//! Every `.c` file of the project's folder and of its folder `sdk/` is compiled.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::tools;
use super::{Made, Work, bindings, component, sdk};
use crate::exit::{CommandError, Exit};

/// A package of Python's registry that carries a clang with its linker, for machines where nobody is root.
const PYPI_PACKAGE: &str = "ziglang==0.17.0";

/// A call of a compiler that was seen to make a Wasm module, to be completed by sources.
struct Compiler {
    words: Vec<OsString>,
    name: String,
}

impl Compiler {
    /// Returns the first that makes a module.
    fn find(folder: &Path) -> Option<Self> {
        let scratch = tools::scratch().ok()?;
        let source = scratch.path().join("empty.c");
        std::fs::write(&source, "int nothing;\n").ok()?;
        let clang = |name: &str| {
            let program = tools::find(name)?;
            Some((program, vec!["--target=wasm32"]))
        };
        let zig = |program: Option<PathBuf>, words: &[&'static str]| {
            let mut arguments = words.to_vec();
            arguments.extend(["cc", "-target", "wasm32-freestanding"]);
            Some((program?, arguments))
        };
        let python = folder.join(".venv/bin/python");
        let candidates = [
            clang("clang"),
            clang("clang-22"),
            clang("clang-19"),
            zig(tools::find("zig"), &[]),
            zig(tools::find("python-zig"), &[]),
            zig(
                tools::is_executable(&python).then_some(python),
                &["-m", "ziglang"],
            ),
        ];
        candidates
            .into_iter()
            .flatten()
            .find_map(|(program, arguments)| {
                let name = tools::first_line(&program, &["--version"])
                    .unwrap_or_else(|| program.display().to_string());
                let mut words = vec![program.into_os_string()];
                words.extend(arguments.into_iter().map(OsString::from));
                let compiler = Self { words, name };
                let mut call = compiler.call(&scratch.path().join("empty.wasm"));
                let said = tools::run(call.arg(&source)).ok()?;
                said.succeeded.then_some(compiler)
            })
    }

    /// Returns a call that makes the module `out`, still without sources.
    fn call(&self, out: &Path) -> Command {
        let mut command = Command::new(&self.words[0]);
        command
            .args(&self.words[1..])
            .args(["-std=c11", "-Os", "-Wall", "-Wextra", "-mbulk-memory"])
            // A call of something that nobody declares, or with another type, is a mistake.
            .args([
                "-Werror=implicit-function-declaration",
                "-Werror=int-conversion",
                "-Werror=incompatible-pointer-types",
            ])
            .args(["-ffreestanding", "-fno-builtin", "-nostdlib"])
            .arg("-Wl,--no-entry")
            .arg("-o")
            .arg(out);
        command
    }
}

pub(super) fn make(work: &Work<'_>) -> Result<Made, CommandError> {
    let compiler = match Compiler::find(work.folder) {
        Some(compiler) => compiler,
        None if work.install && tools::find("python3").is_some() => {
            (work.step)(&format!(
                "pip downloads {PYPI_PACKAGE}, a clang with its linker (100 MB), into `.venv`"
            ));
            super::python::install(work.folder, PYPI_PACKAGE)?;
            Compiler::find(work.folder).ok_or_else(lacking)?
        }
        None => return Err(lacking()),
    };
    (work.step)(&format!("compiling with {}", compiler.name));
    let scratch = tools::scratch()?;
    let bindings = scratch.path().join("bindings");
    sdk::write_all(&bindings, &bindings::c()?)?;
    let module = scratch.path().join("handler.wasm");
    let mut call = compiler.call(&module);
    // From the project's folder, so that messages name its files as their author does.
    call.current_dir(work.folder)
        .args(["-I", "sdk/libc", "-I", "sdk", "-I", "."])
        .args(sources(work.folder)?)
        .arg(bindings.join("handler.c"))
        .arg(bindings.join("handler_component_type.o"));
    let said = tools::run(&mut call)?;
    if !said.succeeded {
        return Err(said.failed(
            "the compiler does not take it",
            "correct what the compiler names; nothing of a C library is there but what `sdk/libc` declares",
        ));
    }
    (work.step)("making the component");
    Ok(Made {
        component: component::of_module(&tools::read(&module)?)?,
        warnings: said.text(),
    })
}

/// Returns the sources below the project's folder, sorted, so that the same ones make the same module.
fn sources(folder: &Path) -> Result<Vec<PathBuf>, CommandError> {
    let mut sources = Vec::new();
    for below in ["", "sdk", "sdk/libc"] {
        let entries = std::fs::read_dir(folder.join(below)).map_err(|error| {
            CommandError::new(
                Exit::Failed,
                format!("cannot read `{}`: {error}", folder.join(below).display()),
                Some("run `hapax build --update-sdk`, which writes the SDK anew"),
            )
        })?;
        sources.extend(
            entries
                .flatten()
                .map(|entry| Path::new(below).join(entry.file_name()))
                // The bindings lie in the project for editors only: those that are compiled are of this program's contract.
                .filter(|file| {
                    file.extension().is_some_and(|extension| extension == "c")
                        && file != Path::new("sdk/handler.c")
                }),
        );
    }
    sources.sort();
    Ok(sources)
}

fn lacking() -> CommandError {
    let install = if tools::has_apt() {
        "apt-get install -y --no-install-recommends clang-19 lld-19".to_owned()
    } else {
        format!("python3 -m venv .venv && .venv/bin/pip install {PYPI_PACKAGE}")
    };
    tools::missing(
        "a C compiler for Wasm (`clang` with `wasm-ld`, or `zig`)",
        "it compiles handlers in C",
        &install,
    )
}
