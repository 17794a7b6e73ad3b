use super::*;

const BOTH: [StoreKind; 2] = [StoreKind::Sqlite, StoreKind::Postgres];

fn found(kind: StoreKind, statement: &str) -> Vec<(String, Reaches)> {
    read(kind, statement)
        .differing
        .into_iter()
        .map(|differing| (differing.what, differing.reaches))
        .collect()
}

fn column(name: &str) -> Reaches {
    Reaches::Column(name.to_owned())
}

#[test]
fn what_differs_is_named_with_the_column_that_it_reaches() {
    for kind in BOTH {
        for (statement, what, reaches) in [
            (
                "INSERT INTO t (a, b) VALUES ($1, coalesce($2, random()))",
                "random()",
                column("b"),
            ),
            (
                "insert into s.t (a, \"B\") values ($1, CURRENT_TIMESTAMP) on conflict (a) do nothing",
                "CURRENT_TIMESTAMP",
                column("B"),
            ),
            (
                "INSERT INTO t VALUES (1, (2), random())",
                "random()",
                Reaches::ColumnAt(2),
            ),
            (
                "INSERT INTO t (a, b) SELECT x, random() FROM u",
                "random()",
                column("b"),
            ),
            (
                "INSERT INTO t (a) VALUES ($1) ON CONFLICT (a) DO UPDATE SET n = t.n + 1, at = CURRENT_TIMESTAMP",
                "CURRENT_TIMESTAMP",
                column("at"),
            ),
            (
                "UPDATE t SET a = $1, b = random() WHERE c = $2",
                "random()",
                column("b"),
            ),
            (
                "UPDATE t SET a = $1 WHERE b < CURRENT_TIMESTAMP",
                "CURRENT_TIMESTAMP",
                Reaches::Condition,
            ),
            (
                "DELETE FROM t WHERE b < CURRENT_DATE",
                "CURRENT_DATE",
                Reaches::Condition,
            ),
            ("SELECT CAST(random() AS text)", "random()", Reaches::Result),
            (
                "SELECT a FROM t ORDER BY random()",
                "random()",
                Reaches::Condition,
            ),
            (
                "INSERT INTO t (a) VALUES ($1) RETURNING a, random()",
                "random()",
                Reaches::Result,
            ),
            (
                "SELECT id FROM t WHERE x IS NULL LIMIT 1",
                "LIMIT without ORDER BY",
                Reaches::Result,
            ),
            (
                "UPDATE t SET a = 1 WHERE id IN (SELECT id FROM t LIMIT 1)",
                "LIMIT without ORDER BY",
                Reaches::Condition,
            ),
            (
                "INSERT INTO t (a, b) VALUES (1, (SELECT x FROM u LIMIT 1))",
                "LIMIT without ORDER BY",
                column("b"),
            ),
        ] {
            assert_eq!(
                found(kind, statement),
                [(what.to_owned(), reaches)],
                "{kind}: {statement}"
            );
        }
    }
    assert_eq!(
        found(
            StoreKind::Postgres,
            "INSERT INTO t (id, at) VALUES (nextval('s'), now())"
        ),
        [
            ("nextval()".to_owned(), column("id")),
            ("now()".to_owned(), column("at"))
        ]
    );
    let merge = "MERGE INTO t USING u ON t.id = u.id WHEN MATCHED THEN UPDATE SET at = now() \
                 WHEN NOT MATCHED THEN INSERT (id, made) VALUES (u.id, now())";
    assert_eq!(
        found(StoreKind::Postgres, merge),
        [
            ("now()".to_owned(), column("at")),
            ("now()".to_owned(), column("made"))
        ]
    );
    assert_eq!(
        found(StoreKind::Sqlite, "UPDATE t SET at = strftime('%s', 'now')"),
        [("strftime('now')".to_owned(), column("at"))]
    );
}

#[test]
fn what_is_the_same_in_each_run_is_not() {
    for kind in BOTH {
        for statement in [
            "SELECT a FROM t ORDER BY a LIMIT 1",
            "SELECT t.random, now FROM t",
            "UPDATE t SET a = 'random()' WHERE b = 'now'",
            "SELECT a FROM (SELECT a FROM t ORDER BY a LIMIT 3) AS u",
            "INSERT INTO t (\"limit\") VALUES ($1)",
            "-- random()\nSELECT 1",
        ] {
            assert_eq!(found(kind, statement), [], "{kind}: {statement}");
        }
    }
    assert_eq!(
        found(StoreKind::Sqlite, "SELECT date($1), datetime(at) FROM t"),
        []
    );
    assert_eq!(differing_in(StoreKind::Postgres, "'x'::text"), None);
    assert_eq!(
        differing_in(StoreKind::Sqlite, "strftime('%Y', 'now')").as_deref(),
        Some("strftime('now')")
    );
}

#[test]
fn what_is_written_to_is_named() {
    for kind in BOTH {
        for (statement, table, columns) in [
            (
                "INSERT INTO t (a, b) VALUES (1, 2)",
                "t",
                Some(vec!["a", "b"]),
            ),
            ("INSERT INTO public.t VALUES (1)", "t", None),
            ("UPDATE \"T\" SET a = 1", "T", None),
            ("DELETE FROM t WHERE a = 1", "t", None),
            (
                "WITH x AS (SELECT 1) INSERT INTO t (a) SELECT * FROM x",
                "t",
                Some(vec!["a"]),
            ),
        ] {
            let reading = read(kind, statement);
            assert_eq!(reading.table.as_deref(), Some(table), "{statement}");
            let expected =
                columns.map(|columns| columns.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(reading.columns, expected, "{statement}");
        }
        assert_eq!(read(kind, "SELECT a FROM t FOR UPDATE").table, None);
    }
    let limit = read(
        StoreKind::Sqlite,
        "SELECT a FROM t WHERE t.id = $1 AND b > 2 LIMIT 1",
    );
    assert_eq!(
        limit.differing[0].picks_from,
        Some(("t".to_owned(), vec!["id".to_owned()]))
    );
}
