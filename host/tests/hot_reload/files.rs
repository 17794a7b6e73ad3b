//! Whichever way a file gets another content: one decision, and the right one.

use std::io::Write as _;
use std::time::Duration;

use hapax::store::StoreKind;

use crate::stage::{Stage, lines};

const SWAPPED: &str = "\"message\":\"swapped\"";
const REFUSED: &str = "is not in force";
const SAME: &str = "its content is the same";

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_a_link_and_a_touch_on_sqlite() {
    let stage = Stage::new(StoreKind::Sqlite, "").await;
    let mut host = stage.host();
    // What it finds at its start is what it runs.
    host.wait_for_line("runs already");
    stage.assert_runs("m1", 1).await;

    stage.write_new(&stage.component(), &stage.second);
    let line = host.wait_for_line(SWAPPED);
    let (first, second) = stage.digests();
    assert!(
        line.contains(&format!("\"component\":\"{second}\"")),
        "{line}"
    );
    assert!(line.contains(&format!("\"before\":\"{first}\"")), "{line}");
    stage.assert_runs("m2", 2).await;

    // Touched: another time, the same content.
    let file = std::fs::File::options()
        .write(true)
        .open(stage.component())
        .unwrap();
    file.set_modified(std::time::SystemTime::now() + Duration::from_secs(5))
        .unwrap();
    drop(file);
    host.wait_for_line(SAME);
    // The same bytes in another file.
    stage.write_new(&stage.component(), &stage.second);
    host.wait_for_line(SAME);

    // A link takes the file's place, to one in another folder; then another link takes the link's.
    for (name, bytes) in [("v1", &stage.first), ("v2", &stage.second)] {
        let folder = stage.scene.folder().join(name);
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("handler.wasm"), bytes).unwrap();
    }
    for (id, name, version) in [("m3", "v1", 1), ("m4", "v2", 2)] {
        let link = stage.scene.folder().join("link");
        std::os::unix::fs::symlink(format!("{name}/handler.wasm"), &link).unwrap();
        std::fs::rename(link, stage.component()).unwrap();
        host.wait_for_line(SWAPPED);
        stage.assert_runs(id, version).await;
    }
    // What the link leads to is written in place.
    std::fs::write(stage.scene.folder().join("v2/handler.wasm"), &stage.first).unwrap();
    host.wait_for_line(SWAPPED);
    stage.assert_runs("m5", 1).await;

    host.terminate();
    let said = host.wait_well();
    assert_eq!(
        (lines(&said, SWAPPED), lines(&said, REFUSED)),
        (4, 0),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_written_slowly_is_read_when_it_is_whole() {
    let stage = Stage::new(StoreKind::Sqlite, "").await;
    let mut host = stage.host();
    host.wait_for_line("runs already");
    let mut file = std::fs::File::create(stage.component()).unwrap();
    let parts: Vec<&[u8]> = stage.second.chunks(stage.second.len() / 8 + 1).collect();
    for (index, part) in parts.iter().enumerate() {
        file.write_all(part).unwrap();
        // Longer than a quiet file is left alone. Meanwhile the old version serves.
        tokio::time::sleep(Duration::from_millis(200)).await;
        stage.assert_runs(&format!("m{index}"), 1).await;
    }
    drop(file);
    host.wait_for_line(SWAPPED);
    stage.assert_runs("after", 2).await;
    host.terminate();
    let said = host.wait_well();
    assert_eq!(
        (lines(&said, SWAPPED), lines(&said, REFUSED)),
        (1, 0),
        "{said}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_is_told_once_and_changes_nothing() {
    let stage = Stage::new(StoreKind::Postgres, "").await;
    let mut host = stage.host();
    for (index, bytes) in [
        &b"no component at all"[..],
        &stage.second[..stage.second.len() / 2],
        &[],
        b"\0asm\x01\0\0\0",
    ]
    .into_iter()
    .enumerate()
    {
        stage.write_new(&stage.component(), bytes);
        host.wait_for_line(REFUSED);
        stage.assert_runs(&format!("m{index}"), 1).await;
    }
    // A file that is gone is nobody's new content.
    std::fs::remove_file(stage.component()).unwrap();
    stage.assert_runs("gone", 1).await;
    stage.write_new(&stage.component(), &stage.second);
    host.wait_for_line(SWAPPED);
    stage.assert_runs("good", 2).await;

    // SIGHUP has all of it read again.
    stage.write_new(&stage.component(), b"no component either");
    host.wait_for_line(REFUSED);
    host.signal(rustix::process::Signal::HUP);
    host.wait_for_line(REFUSED);
    host.wait_for_line("read everything again");
    stage.assert_runs("still", 2).await;
    host.terminate();
    let said = host.wait_well();
    assert_eq!(
        (lines(&said, SWAPPED), lines(&said, REFUSED)),
        (1, 6),
        "{said}"
    );
}
