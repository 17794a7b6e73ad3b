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

    // Damaged, cut short, empty; and what another version of wasmtime, or one for another processor, could have written, with the right digest.
    let whole = std::fs::read(entry(&stage)).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x10;
    // Both with their length in front, as wasmtime writes them.
    let old = foreign(&whole, b"\x0248", b"\x0247");
    let (ours, mut theirs) = (std::env::consts::ARCH, std::env::consts::ARCH.to_owned());
    theirs.replace_range(..1, "z");
    let other = foreign(&whole, ours.as_bytes(), theirs.as_bytes());
    for bytes in [&damaged[..], &whole[..middle], &[], &old, &other] {
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

/// An entry that is whole, and of which wasmtime says that it is not its own: its code says that it was made by another version of
/// wasmtime, or for another processor.
fn foreign(entry: &[u8], ours: &[u8], theirs: &[u8]) -> Vec<u8> {
    use sha2::Digest as _;
    const HEAD: usize = 16 + 32;
    let mut code = entry[HEAD..].to_vec();
    let at = code.windows(ours.len()).position(|window| window == ours);
    let at = at.expect("the code names the version and the processor that it was made for");
    code[at..at + theirs.len()].copy_from_slice(theirs);
    let mut foreign = entry[..HEAD - 32].to_vec();
    foreign.extend_from_slice(&sha2::Sha256::digest(&code));
    foreign.extend_from_slice(&code);
    foreign
}
