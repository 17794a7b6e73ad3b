//! Handlers in other languages than Rust: their tools, and their components.
//!
//! **Invariant**: the daemon, its demo and the guests in Rust need nothing of this.

mod c;
mod javascript;

use std::path::Path;

use anyhow::Context as _;

use crate::failure::Hinted;
use crate::{interrupt, process};

/// What becomes of a language whose tools are neither here nor to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Missing {
    /// A line says so, with what to run; the others are built.
    IsTold,
    /// Nothing goes on.
    IsAnError,
}

/// Builds the handlers in C and JavaScript, getting the tools for them first.
///
/// # Errors
/// What the tools say about a handler; with [`Missing::IsAnError`] also that there are none.
pub(crate) fn build(root: &Path, missing: Missing) -> anyhow::Result<()> {
    process::say("building the handlers in C and JavaScript");
    let clang = usable(c::Compiler::prepare(), "examples/credit-account-c", missing)?;
    if let Some(clang) = clang {
        c::build(root, &clang).context("`examples/credit-account-c`")?;
    }
    let node = javascript::Node::prepare(root);
    if let Some(node) = usable(node, javascript::EXAMPLE, missing)? {
        javascript::build(root, &node).with_context(|| format!("`{}`", javascript::EXAMPLE))?;
    }
    Ok(())
}

/// Returns the tools, or nothing where it was told that there are none.
fn usable<T>(
    tools: anyhow::Result<T>,
    example: &str,
    missing: Missing,
) -> anyhow::Result<Option<T>> {
    interrupt::check()?;
    match tools {
        Ok(tools) => Ok(Some(tools)),
        Err(err) if missing == Missing::IsTold => {
            let hint = Hinted::find(&err).unwrap_or("see above");
            eprintln!("    {example} is not built: {err:#}; {hint}");
            Ok(None)
        }
        Err(err) => Err(err),
    }
}
