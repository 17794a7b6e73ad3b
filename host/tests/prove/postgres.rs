//! On PostgreSQL: in databases of the test's own, none of which stays.

use serde_json::json;

use crate::clean::serial;
use crate::place::{ACCOUNTS, Place, assert_because, changes};
use crate::planted::{counter_without_claims, decision_on_now, last_wins, lost_update, random_id};
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

    let report = on_postgres(&postgres, &random_id()).await;
    assert_because(
        report.the_finding("again"),
        &["SELECT CAST(random() AS text)"],
    );

    let report = on_postgres(&postgres, &decision_on_now()).await;
    report.the_sql("CURRENT_TIMESTAMP");

    let report = on_postgres(&postgres, &last_wins("")).await;
    assert_eq!(
        report.the_finding("shuffled")["messages"],
        json!(["m3", "m1"])
    );
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
