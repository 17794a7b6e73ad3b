//! Handlers for `cargo xtask bench`, one for each value of the setting `does`.
//!
//! **Invariant**: the consumer written by hand (`bench/`) sends the same statements.

use hapax_guest::{Failure, Message, config, params, sql};

#[derive(serde::Deserialize)]
struct Credit {
    account: String,
    amount: i64,
}

fn handle(message: Message) -> Result<(), Failure> {
    let credit: Credit = message.json()?;
    match config::require("does")?.as_str() {
        "execute" => execute(&credit, &config::require("table")?),
        "read-write" => read_write(&credit, &config::require("lock")?),
        other => Err(Failure::reject(format_args!("nothing does `{other}`"))),
    }
}

/// As `examples/credit-account`, in a table of its own for each handler.
fn execute(credit: &Credit, table: &str) -> Result<(), Failure> {
    let updated = sql::execute(
        &format!("UPDATE {table} SET balance = balance + $1 WHERE id = $2"),
        &params![credit.amount, &credit.account],
    )?;
    if updated == 0 {
        return Err(missing(credit));
    }
    Ok(())
}

/// Reads, decides, writes. `lock` is what the database needs so that nobody else writes between: ` FOR UPDATE`, or nothing.
fn read_write(credit: &Credit, lock: &str) -> Result<(), Failure> {
    let row = sql::query_optional(
        &format!("SELECT balance FROM accounts WHERE id = $1{lock}"),
        &params![&credit.account],
    )?
    .ok_or_else(|| missing(credit))?;
    let balance = row.get::<i64>(0)? + credit.amount;
    let kind = if balance < 0 { "overdraft" } else { "credit" };
    sql::execute(
        "UPDATE accounts SET balance = $1 WHERE id = $2",
        &params![balance, &credit.account],
    )?;
    sql::execute(
        "INSERT INTO accounts_entries (account, amount, kind) VALUES ($1, $2, $3)",
        &params![&credit.account, credit.amount, kind],
    )?;
    Ok(())
}

fn missing(credit: &Credit) -> Failure {
    Failure::reject(format_args!("account `{}` does not exist", credit.account))
}

hapax_guest::handler!(handle);
