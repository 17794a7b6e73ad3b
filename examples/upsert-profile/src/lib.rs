//! Keeps the newest state of each profile. Running it again, late or in another order, changes nothing: the version decides.

use hapax_guest::{Failure, Message, params, sql};

#[derive(serde::Deserialize)]
struct Profile {
    id: String,
    version: i64,
    name: String,
    email: Option<String>,
}

fn handle(message: Message) -> Result<(), Failure> {
    let profile: Profile = message.json()?;
    sql::execute(
        "INSERT INTO profiles (id, version, name, email) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (id) DO UPDATE SET version = excluded.version, name = excluded.name, email = excluded.email \
         WHERE profiles.version < excluded.version",
        &params![profile.id, profile.version, profile.name, profile.email],
    )?;
    Ok(())
}

hapax_guest::handler!(handle);
