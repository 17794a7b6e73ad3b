//! Adds an amount to an account. Running it twice would add it twice: nothing here guards against that, the host does.

use hapax_guest::{Failure, Message, params, sql};

#[derive(serde::Deserialize)]
struct Credit {
    account: String,
    amount: i64,
}

fn handle(message: Message) -> Result<(), Failure> {
    let credit: Credit = message.json()?;
    let updated = sql::execute(
        "UPDATE accounts SET balance = balance + $1 WHERE id = $2",
        &params![credit.amount, credit.account],
    )?;
    if updated == 0 {
        return Err(Failure::reject(format!(
            "account `{}` does not exist",
            credit.account
        )));
    }
    Ok(())
}

hapax_guest::handler!(handle);
