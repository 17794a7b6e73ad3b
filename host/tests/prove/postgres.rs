//! On PostgreSQL: in databases of the test's own, none of which stays.

use serde_json::json;

use crate::clean::serial;
use crate::place::{ACCOUNTS, Place, assert_because, changes};
use crate::planted::{counter_without_claims, decision_on_now, last_wins, lost_update};
use crate::support::postgres::Postgres;

/// Runs the test on a server, and sees that nothing stays of it.
async fn on_postgres(postgres: &Postgres, place: &Place) -> crate::place::Report {
    use sqlx::Connection as _;
    let url = postgres.url("postgres");
    let report = place.report(&["--database", &url, "--shuffles", "2"]);
    let mut connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let left: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_database WHERE datname LIKE 'hapax%'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(left, 0, "databases of the test are left");
    let tables: i64 =
        sqlx::query_scalar("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'")
            .fetch_one(&mut connection)
            .await
            .unwrap();
    assert_eq!(tables, 0, "the database that was named is touched");
    assert_eq!(report.report["database"], "PostgreSQL");
    report
}

#[tokio::test]
async fn planted_bugs_are_found() {
    let postgres = Postgres::start();
    let report = on_postgres(&postgres, &counter_without_claims()).await;
    let finding = report.the_finding("twice");
    assert_eq!(finding["messages"], json!(["m1", "m1"]));

    let report = on_postgres(&postgres, &lost_update()).await;
    let finding = report.the_finding("once");
    assert_because(finding, &["INSERT INTO seen", "constraint.unique"]);

    let report = on_postgres(&postgres, &decision_on_now()).await;
    report.the_sql("CURRENT_TIMESTAMP");
}

/// A rollback leaves a gap in a sequence: only a run that is broken shows it.
#[tokio::test]
async fn what_a_rollback_leaves_behind_is_found_at_its_host_call() {
    let postgres = Postgres::start();
    let tables = "CREATE SEQUENCE numbers;\nCREATE TABLE numbered (id text PRIMARY KEY, number bigint NOT NULL);";
    let place = Place::new("sequence", "", tables, &changes());
    let report = on_postgres(&postgres, &place).await;
    let finding = report.the_finding("rolled-back");
    assert_eq!(
        finding["messages"].as_array().unwrap().len(),
        1,
        "{finding:#}"
    );
    // At the first call nothing has been taken yet.
    assert_eq!(
        finding["place"],
        "host call 2, execute `INSERT INTO numbered (id, number) VALUES ($1, $2)`"
    );
    assert_because(finding, &["nextval() in `SELECT nextval('numbers')`"]);
}

/// Stopped half-way, it takes its databases with it.
#[tokio::test]
async fn nothing_stays_of_a_test_that_is_stopped() {
    use sqlx::Connection as _;
    let postgres = Postgres::start();
    let url = postgres.url("postgres");
    let place = Place::new("add", "", ACCOUNTS, &changes());
    let mut child = crate::support::host::hapax()
        .args(["test", "--shuffles", "100000", "--database", &url])
        .current_dir(place.path())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let connection = sqlx::PgConnection::connect(&url).await.unwrap();
    let mut probe = crate::support::database::Probe::Postgres(connection);
    let copies = "SELECT count(*) FROM pg_database WHERE datname ~ '^hapax_test_.*_[0-9]+$'";
    probe.wait_for(copies, 1).await;
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = child.wait().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(
        (status.code(), said.as_str()),
        (Some(1), "error: interrupted\n")
    );
    let left = "SELECT count(*) FROM pg_database WHERE datname LIKE 'hapax%'";
    assert_eq!(probe.number(left).await, 0);
}

#[tokio::test]
async fn clean_handlers_pass() {
    let postgres = Postgres::start();
    let place = Place::new("add", "", ACCOUNTS, &changes());
    on_postgres(&postgres, &place).await.assert_passed();

    let place = serial("bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY");
    let report = on_postgres(&postgres, &place).await;
    report.assert_passed();
    assert_eq!(report.report["left_out"].as_array().unwrap().len(), 2);

    on_postgres(&postgres, &last_wins("order_by = \"json:/account\""))
        .await
        .assert_passed();
}
