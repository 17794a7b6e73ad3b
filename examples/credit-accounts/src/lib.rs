//! Adds amounts to accounts, many messages a call with one statement.

use std::collections::HashSet;

use hapax_guest::batch::Results;
use hapax_guest::{Failure, Message, config, params, sql};

#[derive(serde::Deserialize)]
struct Credit {
    account: String,
    amount: i64,
}

/// An UPDATE takes only one of several rows that it is joined with: the amounts of an account are added up first.
const CREDIT: &str = "
    UPDATE accounts SET balance = balance + credits.amount
    FROM (
        SELECT account, sum(amount)::bigint AS amount
        FROM unnest($1::text[], $2::bigint[]) AS credit (account, amount)
        GROUP BY account
    ) AS credits
    WHERE accounts.id = credits.account
    RETURNING accounts.id";

/// SQLite has no arrays: there they are one JSON text.
const CREDIT_FROM_JSON: &str = "
    UPDATE accounts SET balance = balance + credits.amount
    FROM (
        SELECT value ->> 0 AS account, sum(value ->> 1) AS amount
        FROM json_each($1)
        GROUP BY 1
    ) AS credits
    WHERE accounts.id = credits.account
    RETURNING accounts.id";

fn handle(messages: &[Message]) -> Result<Results, Failure> {
    let mut results = Results::ok(messages);
    let credits = results.each(messages, |message| message.json::<Credit>());
    let accounts: Vec<&str> = credits
        .iter()
        .map(|(_, credit)| credit.account.as_str())
        .collect();
    let amounts: Vec<i64> = credits.iter().map(|(_, credit)| credit.amount).collect();
    let credited = match config::get("arrays").as_deref() {
        Some("json") => {
            let pairs: Vec<(&str, i64)> = accounts.into_iter().zip(amounts).collect();
            let pairs = serde_json::to_string(&pairs).map_err(Failure::reject)?;
            sql::query(CREDIT_FROM_JSON, &params![pairs])?
        }
        _ => sql::query(CREDIT, &params![accounts, amounts])?,
    };
    let mut known = HashSet::with_capacity(credits.len());
    for row in credited {
        known.insert(row.get::<String>(0)?);
    }
    for (index, credit) in &credits {
        if !known.contains(&credit.account) {
            let reason = format!("account `{}` does not exist", credit.account);
            results.fail(*index, Failure::reject(reason));
        }
    }
    Ok(results)
}

hapax_guest::batch_handler!(handle);
