//! `hapax inspect`.

use std::fmt::Write as _;
use std::path::Path;

use super::{print, print_json, size};
use crate::app::{self, InspectedFile};
use crate::exit::CommandError;

/// The sections that are shown; the others are added up.
const SECTIONS_MAX: usize = 8;

/// Says what is in a component's file.
pub(super) async fn inspect(file: &Path, json: bool) -> Result<(), CommandError> {
    let inspected = app::inspect(file).await?;
    if json {
        return print_json(&serde_json::json!(inspected));
    }
    print(&text_of(&inspected))
}

fn text_of(inspected: &InspectedFile) -> String {
    let component = &inspected.component;
    let mut text = format!("{}\n", inspected.file);
    let mut line = |label: &str, value: String| {
        // Writing to a text cannot fail.
        let _ = writeln!(text, "  {label:<9}  {value}");
    };
    line("sha256", component.digest.clone());
    line("size", size(component.bytes as u64));
    line(
        "world",
        match (component.world, &component.contract) {
            (Some(world), Some(contract)) => {
                format!("{} of hapax:handler@{contract}", world.as_str())
            }
            (Some(world), None) => world.as_str().to_owned(),
            (None, _) => {
                "none of hapax:handler: it exports neither `handle` nor `handle-batch`".to_owned()
            }
        },
    );
    for (index, import) in component.imports.iter().enumerate() {
        let label = if index == 0 { "imports" } else { "" };
        let by = match (import.granted, import.closed_wasi) {
            (true, true) => "  granted by the closed WASI",
            (true, false) => "",
            (false, _) => "  MISSING in this host",
        };
        line(label, format!("{}{by}", import.name));
    }
    if component.imports.is_empty() {
        line("imports", "none".to_owned());
    }
    for (index, export) in component.exports.iter().enumerate() {
        line(if index == 0 { "exports" } else { "" }, export.clone());
    }
    for (index, producer) in component.producers.iter().enumerate() {
        line(
            if index == 0 { "made with" } else { "" },
            format!(
                "{} {} ({})",
                producer.name, producer.version, producer.field
            ),
        );
    }
    line(
        "memory",
        format!("{} an instance, at its start", size(component.memory_bytes)),
    );
    let (shown, others) = component
        .sections
        .split_at(component.sections.len().min(SECTIONS_MAX));
    for (index, section) in shown.iter().enumerate() {
        line(
            if index == 0 { "sections" } else { "" },
            format!("{:>10}  {}", section.bytes, section.name),
        );
    }
    if !others.is_empty() {
        let bytes: usize = others.iter().map(|section| section.bytes).sum();
        line("", format!("{bytes:>10}  in {} more", others.len()));
    }
    match &inspected.refused {
        None => line(
            "runs here",
            format!("yes; compiled in {} ms", inspected.compiled_in.as_millis()),
        ),
        Some(refused) => {
            line("runs here", format!("no: {}", refused.problem));
            line("hint", refused.hint.clone());
        }
    }
    text
}
