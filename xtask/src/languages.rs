//! What one handler costs in each language: builds `credit-account` in each, and runs `host/benches/languages.rs`, optimized.

use std::path::Path;
use std::process::ExitCode;

use crate::wasm_target::WasmTarget;
use crate::{cargo, foreign, guests, process};

/// Measures `languages`, or all of them.
///
/// # Errors
/// What cannot be built, or a call that does not end as it should.
pub(crate) fn run(root: &Path, languages: &[String]) -> anyhow::Result<ExitCode> {
    guests::build(root, &WasmTarget::prepare()?)?;
    foreign::build(root, foreign::Missing::IsTold, true)?;
    process::say("building an optimized host (the first time takes minutes)");
    let mut bench = cargo::command(root);
    bench
        .args(["bench", "--workspace", "--bench", "languages", "--"])
        .args(languages);
    process::run(&mut bench)?;
    Ok(ExitCode::SUCCESS)
}
