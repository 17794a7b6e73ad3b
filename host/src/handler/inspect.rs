//! Says what a component is, without running it.
//!
//! **Invariant**: the bytes are hostile, and are only read here: what is said of them is what stands in them. Whether this host runs them, the
//! loader says.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use wasmparser::{KnownCustom, Parser, Payload};

use super::bindings::{PACKAGE, World};
use super::load::{contract_version, is_compatible};
use super::{LoadError, text, wasi};
use crate::message::ComponentDigest;

/// The longest name that is repeated from a component, in bytes.
const NAME_BYTES_MAX: usize = 200;
/// The most names of one sort that are repeated.
const NAMES_MAX: usize = 200;

/// What stands in a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Inspected {
    /// SHA-256 of the whole file, in hexadecimal digits.
    pub digest: String,
    /// The whole file's size.
    pub bytes: usize,
    /// The world of `hapax:handler` that it is for, by what it exports: `handler` or `batch-handler`; absent if it exports neither function.
    pub world: Option<World>,
    /// The version of `hapax:handler` in its names; absent if it imports nothing of it.
    pub contract: Option<String>,
    /// What it imports, in the file's order; bare types are left out, since nobody has to grant them.
    pub imports: Vec<InspectedImport>,
    /// What it exports, in the file's order.
    pub exports: Vec<String>,
    /// Languages, tools and SDKs that it was made with, as they say themselves.
    pub producers: Vec<Producer>,
    /// How large its parts are, the largest first. Headers are left out.
    pub sections: Vec<SectionSize>,
    /// The linear memory that one instance has at its start, in bytes.
    pub memory_bytes: u64,
}

/// One import of a component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InspectedImport {
    /// Its whole name, such as `hapax:handler/sql@0.1.0`.
    pub name: String,
    /// True if this host has it.
    pub granted: bool,
    /// True if it is of WASI, of which a handler gets a closed one: clocks stand still, there are no files and no sockets.
    pub closed_wasi: bool,
}

/// One line of a producers section.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Producer {
    /// `language`, `sdk` or `processed-by`.
    pub field: String,
    /// Such as `Rust`.
    pub name: String,
    /// As the producer wrote it; may be empty.
    pub version: String,
}

/// All sections of one sort, at every depth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SectionSize {
    /// `code`, `data`, `custom name` and the like.
    pub name: String,
    /// Of all of them.
    pub bytes: usize,
}

/// Reads what stands in a component. `name` is for messages: the file's path.
///
/// # Errors
/// The bytes are no component, or end in the middle.
pub fn inspect(name: &str, bytes: &[u8]) -> Result<Inspected, LoadError> {
    super::load::check_format(name, bytes)?;
    let mut found = Found::default();
    for payload in Parser::new(0).parse_all(bytes) {
        let read = payload.and_then(|payload| found.take(&payload));
        read.map_err(|error| LoadError {
            problem: format!("`{name}` is not a valid component: {error}"),
            hint: "build it again: the file is damaged".into(),
        })?;
    }
    Ok(found.into_inspected(bytes))
}

#[derive(Default)]
struct Found {
    /// How many components and modules are open around the present place.
    depth: usize,
    world: Option<World>,
    imports: Vec<String>,
    exports: Vec<String>,
    producers: Vec<Producer>,
    sections: BTreeMap<String, usize>,
    memory_bytes: u64,
}

impl Found {
    fn take(&mut self, payload: &Payload<'_>) -> wasmparser::Result<()> {
        match payload {
            // Their own sections come next, and are counted one by one.
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => {
                self.depth += 1;
                return Ok(());
            }
            Payload::End(_) => {
                self.depth = self.depth.saturating_sub(1);
                return Ok(());
            }
            Payload::ComponentImportSection(imports) if self.depth == 0 => {
                for import in imports.clone() {
                    let import = import?;
                    // `use types.{message}` in the world imports the bare type.
                    if !matches!(import.ty, wasmparser::ComponentTypeRef::Type(_)) {
                        push(&mut self.imports, import.name.name);
                    }
                }
            }
            Payload::ComponentExportSection(exports) if self.depth == 0 => {
                for export in exports.clone() {
                    let export = export?.name.name;
                    self.world = self.world.or_else(|| World::of_function(export));
                    push(&mut self.exports, export);
                }
            }
            Payload::MemorySection(memories) => {
                for memory in memories.clone() {
                    let memory = memory?;
                    let page = 1_u64 << memory.page_size_log2.unwrap_or(16).min(16);
                    let bytes = memory.initial.saturating_mul(page);
                    self.memory_bytes = self.memory_bytes.saturating_add(bytes);
                }
            }
            Payload::CustomSection(custom) => {
                if let KnownCustom::Producers(fields) = custom.as_known() {
                    self.take_producers(fields)?;
                }
            }
            _ => {}
        }
        if let Some((_, range)) = payload.as_section() {
            let section = match payload {
                Payload::CustomSection(custom) => {
                    format!("custom {}", text::one_line(custom.name(), NAME_BYTES_MAX))
                }
                payload => section_name(payload).to_owned(),
            };
            // No more sorts than a reader can bear, whoever made them up.
            let section = if self.sections.len() < NAMES_MAX || self.sections.contains_key(&section)
            {
                section
            } else {
                "others".to_owned()
            };
            *self.sections.entry(section).or_default() += range.len();
        }
        Ok(())
    }

    fn take_producers(
        &mut self,
        fields: wasmparser::ProducersSectionReader<'_>,
    ) -> wasmparser::Result<()> {
        for field in fields {
            let field = field?;
            for value in field.values {
                let value = value?;
                let producer = Producer {
                    field: field.name.to_owned(),
                    name: text::one_line(value.name, NAME_BYTES_MAX),
                    version: text::one_line(value.version, NAME_BYTES_MAX),
                };
                if self.producers.len() < NAMES_MAX && !self.producers.contains(&producer) {
                    self.producers.push(producer);
                }
            }
        }
        Ok(())
    }

    fn into_inspected(mut self, bytes: &[u8]) -> Inspected {
        self.producers.sort();
        let mut sections: Vec<SectionSize> = self
            .sections
            .into_iter()
            .map(|(name, bytes)| SectionSize { name, bytes })
            .collect();
        sections.sort_by_key(|section| std::cmp::Reverse(section.bytes));
        let contract = self
            .imports
            .iter()
            .chain(&self.exports)
            .find_map(|name| contract_version(name))
            .map(str::to_owned);
        Inspected {
            digest: ComponentDigest::of(bytes).to_string(),
            bytes: bytes.len(),
            world: self.world,
            contract,
            imports: self
                .imports
                .into_iter()
                .map(|name| InspectedImport {
                    granted: is_granted(self.world, &name),
                    closed_wasi: wasi::is_granted(&name),
                    name,
                })
                .collect(),
            exports: self.exports,
            producers: self.producers,
            sections,
            memory_bytes: self.memory_bytes,
        }
    }
}

/// Adds a foreign name, unless there are too many.
fn push(names: &mut Vec<String>, name: &str) {
    if names.len() < NAMES_MAX {
        names.push(text::one_line(name, NAME_BYTES_MAX));
    }
}

/// True if this host has an interface of that name for that world, in a version that fits.
fn is_granted(world: Option<World>, import: &str) -> bool {
    if wasi::is_wasi(import) {
        return wasi::is_granted(import);
    }
    import
        .strip_prefix(PACKAGE)
        .and_then(|rest| rest.strip_prefix('/'))
        .and_then(|rest| rest.split_once('@'))
        .is_some_and(|(interface, version)| {
            let world = world.unwrap_or(World::Handler);
            world.interfaces().contains(&interface) && is_compatible(version)
        })
}

fn section_name(payload: &Payload<'_>) -> &'static str {
    match payload {
        Payload::CodeSectionStart { .. } => "code",
        Payload::DataSection(_) => "data",
        Payload::ElementSection(_) => "elements",
        Payload::FunctionSection(_) => "functions",
        Payload::GlobalSection(_) => "globals",
        Payload::ImportSection(_) | Payload::ComponentImportSection(_) => "imports",
        Payload::ExportSection(_) | Payload::ComponentExportSection(_) => "exports",
        Payload::MemorySection(_) => "memories",
        Payload::TableSection(_) => "tables",
        Payload::TypeSection(_)
        | Payload::CoreTypeSection(_)
        | Payload::ComponentTypeSection(_) => "types",
        Payload::ComponentCanonicalSection(_) => "canonical functions",
        Payload::InstanceSection(_) | Payload::ComponentInstanceSection(_) => "instances",
        Payload::ComponentAliasSection(_) => "aliases",
        _ => "others",
    }
}
