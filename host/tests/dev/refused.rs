//! Command lines and folders that are wrong.

use crate::author::Author;
use crate::support::host;

#[test]
fn a_folder_that_is_no_project_or_is_followed_already() {
    let author = Author::with_project("c");
    let output = host::run(author.folder(), &["dev"]);
    assert_eq!(output.status.code(), Some(2), "{}", output.err);
    assert_eq!(
        output.err,
        "error: `.` is no project: it has no `hapax.toml`\n\
         hint: name a project's folder; `hapax new NAME --lang rust` makes one\n"
    );

    let mut followed = author.follow(&[]);
    followed.event("began");
    let output = host::run(author.folder(), &["dev", "credit"]);
    assert_eq!(output.status.code(), Some(1), "{}", output.err);
    assert!(
        output
            .err
            .starts_with("error: another `hapax dev` follows `credit`\n"),
        "{}",
        output.err
    );
    // Also in the middle of a build.
    followed.interrupt();
    assert!(followed.end().success());

    let output = host::run(author.folder(), &["dev", "credit", "--admin"]);
    assert_eq!(output.status.code(), Some(3), "{}", output.err);
    assert!(
        output.err.contains("has no table `[admin]`"),
        "{}",
        output.err
    );
}

#[test]
fn text_for_people_names_rows_by_their_keys() {
    let author = Author::with_project("c");
    let mut child = host::hapax()
        .args(["dev", "credit"])
        .current_dir(author.folder())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(out).map_while(Result::ok);
    let mut said = Vec::new();
    for line in lines.by_ref() {
        said.push(line);
        if said.iter().any(|line| line.starts_with("m-4  dead")) {
            break;
        }
    }
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"q\n").unwrap();
    said.extend(lines);
    assert!(child.wait().unwrap().success());
    for line in [
        "following credit (C); its database is credit/.hapax/dev.db",
        "building",
        "serving credit on an empty database",
        "sent 4 messages to payments",
        "    accounts  id \"a1\": balance 0 -> 5",
        "m-4  dead  (rejected: account `nobody` does not exist)",
        "ended",
    ] {
        assert!(said.iter().any(|said| said == line), "{line}\n{said:#?}");
    }
}
