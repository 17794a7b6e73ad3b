//! The handler in C: clang and its linker for Wasm, bindings from the contract, no libc.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;
use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

use crate::failure::Hinted;
use crate::{debian, guests, process, python, tools};

const EXAMPLE: &str = "examples/credit-account-c";
const COMPONENT: &str = "credit-account-c.wasm";
const DEBIAN_PACKAGES: [&str; 2] = ["clang-19", "lld-19"];
/// A package of Python's registry that carries a clang with its linker, for machines where nobody is root.
const PYPI_PACKAGE: &str = "ziglang==0.17.0";
const WHAT: &str = "a C compiler for Wasm";

/// A call of a compiler that was seen to make a Wasm module, to be completed by sources.
#[derive(Debug)]
pub(super) struct Compiler(Vec<OsString>);

impl Compiler {
    /// Finds a clang, or gets one: Debian's as root, Python's registry's otherwise.
    ///
    /// # Errors
    /// With what to run, when none is installed and none can be.
    pub(super) fn prepare() -> anyhow::Result<Self> {
        let venv = tools().join("zig");
        if let Some(found) = Self::find(&venv) {
            return Ok(found);
        }
        if debian::is_root() && debian::is_here() {
            debian::update()?;
            debian::install(&DEBIAN_PACKAGES, &format!("{WHAT}, 51 MB to download"))?;
        } else {
            process::say(format_args!(
                "getting {WHAT} from Python's package registry ({PYPI_PACKAGE}, 100 MB)"
            ));
            python::install(&venv, PYPI_PACKAGE).map_err(|err| {
                Hinted::error(
                    format!("there is no {WHAT}: {err:#}"),
                    format!("as root: {}", debian::command_for(&DEBIAN_PACKAGES)),
                )
            })?;
        }
        Self::find(&venv).with_context(|| format!("{WHAT} was installed and makes no module"))
    }

    /// Returns the first that makes a module.
    fn find(venv: &Path) -> Option<Self> {
        let clang = |name: &str| vec![name.into(), "--target=wasm32".into()];
        let mut zig: Vec<OsString> = vec![venv.join("bin/python").into()];
        zig.extend(["-m", "ziglang", "cc", "-target", "wasm32-freestanding"].map(OsString::from));
        [clang("clang-19"), clang("clang"), zig]
            .into_iter()
            .map(Self)
            .find(|compiler| compiler.works().unwrap_or(false))
    }

    fn works(&self) -> anyhow::Result<bool> {
        let folder = tempfile::tempdir()?;
        let source = folder.path().join("empty.c");
        fs::write(&source, "int nothing;\n")?;
        let mut call = self.call(&folder.path().join("empty.wasm"));
        Ok(process::output(call.arg(source)).is_ok())
    }

    /// Returns a call that makes the module `out`, still without sources.
    fn call(&self, out: &Path) -> Command {
        let mut command = Command::new(&self.0[0]);
        command
            .args(&self.0[1..])
            .args(["-std=c11", "-Os", "-Wall", "-mbulk-memory"])
            .args(["-ffreestanding", "-fno-builtin", "-nostdlib"])
            .arg("-Wl,--no-entry")
            .arg("-o")
            .arg(out);
        command
    }
}

/// Builds the example into its component.
pub(super) fn build(root: &Path, compiler: &Compiler) -> anyhow::Result<()> {
    let example = root.join(EXAMPLE);
    let folder = root.join("target/foreign/c");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make `{}`", folder.display()))?;
    let module = folder.join("handler.wasm");
    let mut call = compiler.call(&module);
    call.arg("-I").arg(example.join("nolibc"));
    call.arg("-I").arg(&folder);
    call.args(bindings(root, &folder)?);
    for source in ["handler.c", "json.c", "nolibc/nolibc.c"] {
        call.arg(example.join(source));
    }
    process::run(&mut call)?;
    let component = guests::componentize(&module)?;
    let written = guests::write_if_changed(&example.join(COMPONENT), &component)?;
    guests::say_built(
        &Path::new(EXAMPLE).join(COMPONENT),
        component.len(),
        written,
    );
    Ok(())
}

/// Writes the bindings for the world `handler` into `folder`, and returns those to be compiled and linked.
fn bindings(root: &Path, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_path(root.join("wit"))?;
    let world = resolve.select_world(&[package], Some("handler"))?;
    let mut files = Files::default();
    wit_bindgen_c::Opts::default()
        .build()
        .generate(&mut resolve, world, &mut files)?;
    let mut linked = Vec::new();
    for (name, bytes) in files.iter() {
        let file = folder.join(name);
        fs::write(&file, bytes).with_context(|| format!("cannot write `{}`", file.display()))?;
        if !name.ends_with(".h") {
            linked.push(file);
        }
    }
    Ok(linked)
}
