//! Handlers for the tests of `hapax test`, one for each value of the setting `does`: each of the first eleven has the bug that it is named
//! after, the others have none.
//!
//! **Invariant**: the statements mean the same on SQLite and on PostgreSQL; SQLite has no sequences.

use hapax_guest::outbox::Outgoing;
use hapax_guest::{Failure, Message, config, params, sql};

#[derive(serde::Deserialize)]
struct Change {
    account: String,
    amount: i64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    version: i64,
}

fn handle(message: Message) -> Result<(), Failure> {
    let change: Change = message.json()?;
    match config::require("does")?.as_str() {
        "counter" => add(&change),
        "lost-update" => lost_update(&change),
        "random-id" => random_id(&change),
        "decision-on-now" => decision_on_now(&message, &change),
        "no-key" => no_key(&change),
        "last-wins" => last_wins(&change),
        "swallowed-unique" => swallowed_unique(&message, &change),
        "attempt" => attempt(&message),
        "float-sum" => float_sum(&change),
        "unordered-limit" => unordered_limit(&message),
        "sequence" => sequence(&message),

        "add" => add(&change),
        "newest" => newest(&change),
        "keyed" => keyed(&message, &change),
        "serial" => serial(&message, &change),
        "savepoint" => in_savepoint(&change),
        "transfer" => transfer(&change),
        other => Err(Failure::reject(format_args!("nothing does `{other}`"))),
    }
}

/// A counter: a bug without claims, and fine with them.
fn add(change: &Change) -> Result<(), Failure> {
    sql::execute(
        "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
        &params![change.amount, &change.account],
    )?;
    Ok(())
}

/// Reads, goes on after an error, and writes what it made of what it read.
fn lost_update(change: &Change) -> Result<(), Failure> {
    let balance: i64 = sql::query_one(
        "SELECT balance FROM accounts WHERE id = $1",
        &params![&change.account],
    )?
    .get(0)?;
    let _ = sql::execute(
        "INSERT INTO seen (account) VALUES ($1)",
        &params![&change.account],
    );
    let _ = sql::execute(
        "UPDATE accounts SET balance = $1 WHERE id = $2",
        &params![balance + change.amount, &change.account],
    );
    Ok(())
}

fn random_id(change: &Change) -> Result<(), Failure> {
    let id: String = sql::query_one("SELECT CAST(random() AS text)", &[])?.get(0)?;
    Outgoing::new("account.changed")
        .key(&change.account)
        .header("Id", id)
        .payload(change.amount.to_string())
        .publish()?;
    Ok(())
}

fn decision_on_now(message: &Message, change: &Change) -> Result<(), Failure> {
    let now: String = sql::query_one("SELECT CAST(CURRENT_TIMESTAMP AS text)", &[])?.get(0)?;
    let statement = if now.as_str() < "2020" {
        "INSERT INTO early (id, amount) VALUES ($1, $2)"
    } else {
        "INSERT INTO late (id, amount) VALUES ($1, $2)"
    };
    sql::execute(statement, &params![&message.id, change.amount])?;
    Ok(())
}

fn no_key(change: &Change) -> Result<(), Failure> {
    sql::execute(
        "INSERT INTO log (account, amount) VALUES ($1, $2)",
        &params![&change.account, change.amount],
    )?;
    Ok(())
}

fn last_wins(change: &Change) -> Result<(), Failure> {
    sql::execute(
        "INSERT INTO profiles (id, name) VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        &params![&change.account, &change.name],
    )?;
    Ok(())
}

/// Takes a unique violation for a duplicate; but after an error nothing of the transaction can be kept.
fn swallowed_unique(message: &Message, change: &Change) -> Result<(), Failure> {
    let inserted = sql::execute(
        "INSERT INTO payments (id, amount) VALUES ($1, $2)",
        &params![&message.id, change.amount],
    );
    match inserted {
        Err(error) if !error.is_unique_violation() => Err(error.into()),
        _ => Ok(()),
    }
}

fn attempt(message: &Message) -> Result<(), Failure> {
    sql::execute(
        "INSERT INTO tries (id, attempt) VALUES ($1, $2)",
        &params![&message.id, i64::from(message.attempt)],
    )?;
    Ok(())
}

fn float_sum(change: &Change) -> Result<(), Failure> {
    sql::execute(
        "UPDATE totals SET total = total + $1 WHERE id = $2",
        &params![change.amount as f64 / 10.0, &change.account],
    )?;
    Ok(())
}

fn unordered_limit(message: &Message) -> Result<(), Failure> {
    let row = sql::query_optional("SELECT id FROM stock WHERE taken_by IS NULL LIMIT 1", &[])?;
    let Some(row) = row else {
        return Err(Failure::reject("nothing is left"));
    };
    let item: String = row.get(0)?;
    sql::execute(
        "UPDATE stock SET taken_by = $1 WHERE id = $2",
        &params![&message.id, item],
    )?;
    Ok(())
}

/// A rollback does not give a sequence's number back.
fn sequence(message: &Message) -> Result<(), Failure> {
    let number: i64 = sql::query_one("SELECT nextval('numbers')", &[])?.get(0)?;
    sql::execute(
        "INSERT INTO numbered (id, number) VALUES ($1, $2)",
        &params![&message.id, number],
    )?;
    Ok(())
}

/// Keeps the newest version.
fn newest(change: &Change) -> Result<(), Failure> {
    sql::execute(
        "INSERT INTO profiles (id, name, version) VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE \
         SET name = excluded.name, version = excluded.version WHERE excluded.version > profiles.version",
        &params![&change.account, &change.name, change.version],
    )?;
    Ok(())
}

fn keyed(message: &Message, change: &Change) -> Result<(), Failure> {
    sql::execute(
        "INSERT INTO payments (id, amount) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING",
        &params![&message.id, change.amount],
    )?;
    Ok(())
}

/// The database numbers the rows and dates them; another table names the number; a message leaves.
fn serial(message: &Message, change: &Change) -> Result<(), Failure> {
    let number: i64 = sql::query_one(
        "INSERT INTO entries (message, amount) VALUES ($1, $2) RETURNING number",
        &params![&message.id, change.amount],
    )?
    .get(0)?;
    sql::execute(
        "INSERT INTO notes (entry, account) VALUES ($1, $2)",
        &params![number, &change.account],
    )?;
    Outgoing::new("entry.made")
        .key(&change.account)
        .payload(change.amount.to_string())
        .publish()?;
    Ok(())
}

/// Tries to insert, and adds if the row is there: the error is undone with its savepoint.
fn in_savepoint(change: &Change) -> Result<(), Failure> {
    let inserted = sql::savepoint(|| {
        sql::execute(
            "INSERT INTO accounts (id, balance) VALUES ($1, $2)",
            &params![&change.account, change.amount],
        )
    });
    match inserted {
        Ok(_) => Ok(()),
        Err(error) if error.is_unique_violation() => add(change),
        Err(error) => Err(error.into()),
    }
}

/// Takes from one account what another gets, waits for accounts that are not there yet, and refuses what can never be.
fn transfer(change: &Change) -> Result<(), Failure> {
    if change.amount == 0 {
        return Err(Failure::reject("an amount of nothing"));
    }
    if change.name == "open" {
        sql::execute(
            "INSERT INTO accounts (id, balance) VALUES ($1, $2)",
            &params![&change.account, change.amount],
        )?;
        return Ok(());
    }
    let changed = sql::execute(
        "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
        &params![change.amount, &change.account],
    )?;
    if changed == 0 {
        return Err(Failure::retry("the account is not open yet"));
    }
    Ok(())
}

hapax_guest::handler!(handle);
