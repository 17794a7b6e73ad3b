//! Compiled code is kept: a second start compiles nothing, and what is wrong in the cache is compiled again.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use hapax::store::StoreKind;

use crate::stage::{Stage, lines};

const COMPILED: &str = "\"message\":\"compiled\"";
const FOUND: &str = "its compiled code is in the cache";
const UNUSABLE: &str = "cannot be used";

fn run(stage: &Stage) -> String {
    let folder = cache(stage).display().to_string();
    stage
        .scene
        .host(
            &["--until-idle"],
            &[
                ("HAPAX_LOG", "info,hapax=debug"),
                ("HAPAX_CACHE__DIRECTORY", &folder),
            ],
        )
        .wait_well()
}

fn cache(stage: &Stage) -> PathBuf {
    stage.scene.folder().join("cache")
}

fn entry(stage: &Stage) -> PathBuf {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(cache(stage))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_start_compiles_nothing() {
    let stage = Stage::new(StoreKind::Sqlite, "").await;
    let said = run(&stage);
    assert_eq!(
        (lines(&said, COMPILED), lines(&said, FOUND)),
        (1, 0),
        "{said}"
    );
    let said = run(&stage);
    assert_eq!(
        (lines(&said, COMPILED), lines(&said, FOUND)),
        (0, 1),
        "{said}"
    );

    // Damaged, cut short, empty; and what another version of wasmtime could have written, with the right digest.
    let whole = std::fs::read(entry(&stage)).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x10;
    let foreign = of_another_version(&whole);
    for bytes in [&damaged[..], &whole[..middle], &[], &foreign[..]] {
        std::fs::write(entry(&stage), bytes).unwrap();
        let said = run(&stage);
        assert_eq!(
            (lines(&said, COMPILED), lines(&said, UNUSABLE)),
            (1, 1),
            "{said}"
        );
        // It was replaced.
        assert_eq!(lines(&run(&stage), FOUND), 1);
    }

    let open = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(cache(&stage), open).unwrap();
    let said = run(&stage);
    assert_eq!(
        (lines(&said, COMPILED), lines(&said, "others may write to")),
        (1, 1),
        "{said}"
    );
}

/// An entry that is whole, and of which wasmtime says that it is not its own: the version in the code's metadata differs.
fn of_another_version(entry: &[u8]) -> Vec<u8> {
    use sha2::Digest as _;
    const HEAD: usize = 16 + 32;
    let mut code = entry[HEAD..].to_vec();
    let version = b"48.0.";
    let mut changed = 0;
    for at in 0..code.len() - version.len() {
        if code[at..].starts_with(version) {
            code[at + 1] = b'7';
            changed += 1;
        }
    }
    assert!(changed > 0, "the code names wasmtime's version");
    let mut foreign = entry[..16].to_vec();
    foreign.extend_from_slice(&sha2::Sha256::digest(&code));
    foreign.extend_from_slice(&code);
    foreign
}
