//! Which tools made a component, as it says itself.
//!
//! **Invariant**: it is for people to read. Nothing is decided by it, since anybody can write anything there.

use serde::{Deserialize, Serialize};
use wasmparser::{KnownCustom, Parser, Payload};

use super::text::one_line;

/// The most that are kept of one component.
const PRODUCERS_MAX: usize = 32;
/// The longest name or version, in bytes.
const TEXT_BYTES_MAX: usize = 100;

/// A tool or a language that had a part in a component.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Producer {
    /// `language`, `processed-by` or `sdk`.
    pub field: String,
    /// Such as `Rust`.
    pub name: String,
    /// Such as `1.95.0`.
    pub version: String,
}

/// Returns what the `producers` sections of a component and of the modules in it say, sorted, each once. What can't be read is left
/// out.
pub fn producers(component: &[u8]) -> Vec<Producer> {
    let mut found = Vec::new();
    for payload in Parser::new(0).parse_all(component) {
        let Ok(payload) = payload else {
            break;
        };
        let Payload::CustomSection(section) = payload else {
            continue;
        };
        let KnownCustom::Producers(fields) = section.as_known() else {
            continue;
        };
        for field in fields.into_iter().map_while(Result::ok) {
            for value in field.values.into_iter().map_while(Result::ok) {
                let producer = Producer {
                    field: field.name.to_owned(),
                    name: one_line(value.name, TEXT_BYTES_MAX),
                    version: one_line(value.version, TEXT_BYTES_MAX),
                };
                if found.len() < PRODUCERS_MAX && !found.contains(&producer) {
                    found.push(producer);
                }
            }
        }
    }
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMO: &[u8] = include_bytes!("../app/demo/github-activity.wasm");

    #[test]
    fn a_component_names_its_tools() {
        let found = producers(DEMO);
        let of = |field: &str, name: &str| {
            found
                .iter()
                .any(|one| one.field == field && one.name == name && !one.version.is_empty())
        };
        assert!(of("processed-by", "wit-component"), "{found:?}");
        assert!(
            found
                .iter()
                .any(|one| one.field == "language" && one.name == "Rust")
        );
        assert!(found.is_sorted() && found.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn what_is_cut_or_foreign_has_none_or_fewer() {
        assert_eq!(producers(b"no wasm"), []);
        for end in (0..DEMO.len()).step_by(997) {
            assert!(producers(&DEMO[..end]).len() <= producers(DEMO).len());
        }
    }
}
