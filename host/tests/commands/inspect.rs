//! `inspect`: what is in a component, and whether this host runs it.

use crate::place::{Place, assert_fails};
use crate::support::scene;
use crate::support::wit::Wit;

#[test]
fn a_handler_in_rust_is_told_by_its_parts() {
    let place = Place::empty();
    let bytes = std::fs::read(scene::script()).unwrap();
    place.write("handler.wasm", &bytes);

    let output = place.hapax(&["inspect", "handler.wasm", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", output.err);
    let found: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(found["file"], "handler.wasm");
    assert_eq!(found["bytes"], bytes.len());
    assert_eq!(found["digest"].as_str().unwrap().len(), 64);
    assert_eq!(found["world"], "handler");
    assert_eq!(found["contract"], "0.1.0");
    assert_eq!(found["refused"], serde_json::Value::Null);
    let imports = found["imports"].as_array().unwrap();
    assert!(
        imports
            .iter()
            .any(|import| import["name"] == "hapax:handler/sql@0.1.0"),
        "{imports:?}"
    );
    assert!(imports.iter().all(|import| import["granted"] == true));
    assert!(
        found["exports"]
            .as_array()
            .unwrap()
            .contains(&"handle".into())
    );
    // The compiler says what it is.
    let producers = found["producers"].as_array().unwrap();
    assert!(
        producers
            .iter()
            .any(|producer| producer["name"] == "rustc" && producer["field"] == "processed-by"),
        "{producers:?}"
    );
    // All but the headers of sections and modules is some section's.
    let sections = found["sections"].as_array().unwrap();
    let code = sections.iter().find(|section| section["name"] == "code");
    assert!(code.unwrap()["bytes"].as_u64().unwrap() > 1_000);
    let all: u64 = sections
        .iter()
        .map(|section| section["bytes"].as_u64().unwrap())
        .sum();
    let bytes = bytes.len() as u64;
    assert!(all <= bytes && all > bytes * 98 / 100, "{all} of {bytes}");
    // A Rust guest has a stack of a MiB, and its data.
    let memory = found["memory_bytes"].as_u64().unwrap();
    assert!((1 << 20..16 << 20).contains(&memory), "{memory}");

    let text = place.hapax(&["inspect", "handler.wasm"]);
    assert_eq!(text.status.code(), Some(0), "{}", text.err);
    for part in [
        "world      handler of hapax:handler@0.1.0",
        "hapax:handler/sql@0.1.0\n",
        "(processed-by)",
        "runs here  yes; compiled in ",
    ] {
        assert!(text.out.contains(part), "no `{part}` in:\n{}", text.out);
    }
    assert!(!text.out.contains("MISSING"), "{}", text.out);
}

#[test]
fn what_this_host_lacks_is_named_and_is_no_error() {
    let place = Place::empty();
    place.write(
        "import.wasm",
        Wit::new().with_unknown_import().component("handler"),
    );
    place.write(
        "newer.wasm",
        Wit::new().with_version("0.2.0").component("handler"),
    );
    place.write("batch.wasm", Wit::new().component("batch-handler"));

    let missing = place.hapax(&["inspect", "import.wasm"]);
    assert_eq!(missing.status.code(), Some(0), "{}", missing.err);
    for part in [
        "acme:mail/send@1.0.0  MISSING in this host\n",
        "runs here  no: cannot link `import.wasm`: this host does not provide import `acme:mail/send@1.0.0`",
        "hint       rebuild against the interfaces in `wit/`, or remove the import\n",
    ] {
        assert!(
            missing.out.contains(part),
            "no `{part}` in:\n{}",
            missing.out
        );
    }

    let json = |file: &str| -> serde_json::Value {
        let output = place.hapax(&["inspect", file, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", output.err);
        serde_json::from_str(&output.out).unwrap()
    };
    let newer = json("newer.wasm");
    assert_eq!(newer["contract"], "0.2.0");
    let imports = newer["imports"].as_array().unwrap();
    assert!(imports.iter().all(|import| import["granted"] == false));
    assert!(
        newer["refused"]["problem"]
            .as_str()
            .unwrap()
            .contains("0.2.0")
    );
    let batch = json("batch.wasm");
    assert_eq!(batch["world"], "batch-handler");
    let imports = batch["imports"].as_array().unwrap();
    assert!(imports.iter().all(|import| import["granted"] == true));
    assert!(batch["refused"].is_null(), "{batch}");
}

#[test]
fn what_is_no_component_is_an_error() {
    let place = Place::empty();
    let whole = Wit::new().component("handler");
    place.write("cut.wasm", &whole[..whole.len() - 7]);
    place.write("module.wasm", Wit::new().module("handler"));
    let cut = place.hapax(&["inspect", "cut.wasm"]);
    assert_eq!(cut.status.code(), Some(3), "{}", cut.out);
    assert!(
        cut.err
            .starts_with("error: `cut.wasm` is not a valid component: ")
            && cut
                .err
                .ends_with("hint: build it again: the file is damaged\n"),
        "{}",
        cut.err
    );
    assert_fails(
        &place.hapax(&["inspect", "module.wasm"]),
        3,
        "error: `module.wasm` is a core Wasm module; a handler is a Wasm component\n\
         hint: run the component step of the build, such as `wasm-tools component new module.wasm -o handler.wasm`",
    );
    assert_fails(
        &place.hapax(&["inspect", "nowhere.wasm"]),
        3,
        "error: cannot read `nowhere.wasm`: No such file or directory (os error 2)\n\
         hint: give the path of a component's file, such as `target/handler.wasm`",
    );
}
