//! Violations of every kind of constraint: what a handler is told of them.

use crate::support::database::TestStore;

/// One statement that violates something: its code, and `constraint`, `table`, `column` of the error.
struct Violation {
    statement: &'static str,
    code: &'static str,
    constraint: Option<&'static str>,
    table: Option<&'static str>,
    column: Option<&'static str>,
}

fn violation(
    statement: &'static str,
    code: &'static str,
    [constraint, table, column]: [Option<&'static str>; 3],
) -> Violation {
    Violation {
        statement,
        code,
        constraint,
        table,
        column,
    }
}

/// Runs each in a transaction of its own.
async fn check(test: TestStore, tables: &str, violations: &[Violation]) {
    test.run(tables).await;
    let mut wrong = Vec::new();
    for violation in violations {
        let mut tx = test.begin().await;
        let error = tx.execute(violation.statement, &[]).await.unwrap_err();
        let found = [&error.constraint, &error.table, &error.column].map(Option::as_deref);
        let expected = [violation.constraint, violation.table, violation.column];
        if error.code != violation.code || found != expected {
            wrong.push(format!("{}: {error:?}", violation.statement));
        }
        assert!(!error.retryable && !error.message.is_empty(), "{error:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn on_postgres_every_violation_names_its_constraint() {
    let tables = "
        CREATE DOMAIN positive AS int CONSTRAINT above_zero CHECK (VALUE > 0);
        CREATE TABLE owners (id int CONSTRAINT owners_key PRIMARY KEY);
        CREATE TABLE accounts (
            id int PRIMARY KEY, owner int CONSTRAINT owner_exists REFERENCES owners, kind text NOT NULL,
            balance int CONSTRAINT no_debt CHECK (balance >= 0), size positive,
            during int4range, CONSTRAINT one_kind UNIQUE (owner, kind), CONSTRAINT no_overlap EXCLUDE USING gist (during WITH &&)
        );
        CREATE UNIQUE INDEX one_open ON accounts (lower(kind)) WHERE owner IS NULL;
        CREATE VIEW rich AS SELECT * FROM accounts WHERE balance > 100 WITH CHECK OPTION;
        INSERT INTO owners VALUES (1), (2);
        INSERT INTO accounts VALUES (1, 1, 'a', 0, 1, '[1,5)'), (2, NULL, 'b', 0, 1, NULL);
    ";
    let some = Some;
    check(
        TestStore::postgres().await,
        tables,
        &[
            violation(
                "INSERT INTO owners VALUES (1)",
                "constraint.unique",
                [some("owners_key"), some("owners"), None],
            ),
            violation(
                "INSERT INTO accounts VALUES (3, 1, 'a')",
                "constraint.unique",
                [some("one_kind"), some("accounts"), None],
            ),
            violation(
                "INSERT INTO accounts VALUES (3, NULL, 'B')",
                "constraint.unique",
                [some("one_open"), some("accounts"), None],
            ),
            violation(
                "INSERT INTO accounts VALUES (3, 9, 'x')",
                "constraint.foreign-key",
                [some("owner_exists"), some("accounts"), None],
            ),
            violation(
                "DELETE FROM owners WHERE id = 1",
                "constraint.foreign-key",
                [some("owner_exists"), some("accounts"), None],
            ),
            violation(
                "INSERT INTO accounts (id) VALUES (3)",
                "constraint.not-null",
                [None, some("accounts"), some("kind")],
            ),
            violation(
                "UPDATE accounts SET balance = -1",
                "constraint.check",
                [some("no_debt"), some("accounts"), None],
            ),
            violation(
                "UPDATE accounts SET size = 0",
                "constraint.check",
                [some("above_zero"), None, None],
            ),
            violation(
                "INSERT INTO rich (id, kind, balance) VALUES (3, 'x', 5)",
                "constraint.check",
                [None, None, None],
            ),
            violation(
                "INSERT INTO accounts (id, kind, during) VALUES (3, 'x', '[4,9)')",
                "constraint.exclusion",
                [some("no_overlap"), some("accounts"), None],
            ),
        ],
    )
    .await;
}

#[tokio::test]
async fn on_sqlite_every_violation_is_told_as_far_as_it_is_known() {
    let tables = "
        CREATE TABLE owners (id INTEGER PRIMARY KEY) STRICT;
        CREATE TABLE accounts (
            id INTEGER PRIMARY KEY, owner INTEGER REFERENCES owners, kind TEXT NOT NULL, number TEXT UNIQUE,
            balance INTEGER CONSTRAINT no_debt CHECK (balance >= 0), size INTEGER CHECK (size > 0),
            CONSTRAINT one_kind UNIQUE (owner, kind)
        ) STRICT;
        CREATE UNIQUE INDEX one_open ON accounts (lower(kind)) WHERE owner IS NULL;
        INSERT INTO owners VALUES (1), (2);
        INSERT INTO accounts VALUES (1, 1, 'a', 'n', 0, 1), (2, NULL, 'b', NULL, 0, 1);
    ";
    let some = Some;
    check(
        TestStore::sqlite().await,
        tables,
        &[
            violation(
                "INSERT INTO owners VALUES (1)",
                "constraint.unique",
                [None, some("owners"), some("id")],
            ),
            violation(
                "INSERT INTO accounts (kind, number) VALUES ('x', 'n')",
                "constraint.unique",
                [None, some("accounts"), some("number")],
            ),
            violation(
                "INSERT INTO accounts (owner, kind) VALUES (1, 'a')",
                "constraint.unique",
                [None, some("accounts"), some("owner, kind")],
            ),
            violation(
                "INSERT INTO accounts (kind) VALUES ('B')",
                "constraint.unique",
                [some("one_open"), None, None],
            ),
            violation(
                "INSERT INTO accounts (owner, kind) VALUES (9, 'x')",
                "constraint.foreign-key",
                [None, None, None],
            ),
            violation(
                "DELETE FROM owners WHERE id = 1",
                "constraint.foreign-key",
                [None, None, None],
            ),
            violation(
                "INSERT INTO accounts (id) VALUES (3)",
                "constraint.not-null",
                [None, some("accounts"), some("kind")],
            ),
            violation(
                "UPDATE accounts SET balance = -1",
                "constraint.check",
                [some("no_debt"), None, None],
            ),
            violation(
                "UPDATE accounts SET size = 0",
                "constraint.check",
                [some("size > 0"), None, None],
            ),
            violation(
                "UPDATE accounts SET balance = 'x'",
                "type.mismatch",
                [None, some("accounts"), some("balance")],
            ),
        ],
    )
    .await;
}
