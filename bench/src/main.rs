//! What `cargo xtask bench` measures hapax against: a consumer as a careful engineer writes it by hand, in one file.
//!
//! Each message goes through a transaction of its own: the id is inserted, then the account updated; the message is acknowledged
//! after the commit. 32 messages at a time, each on a connection that it need not wait for; statements are prepared once a
//! connection.
//!
//! **Invariant**: nothing here is slower than it has to be for what it promises, and nothing here comes from hapax.

use std::str::FromStr as _;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::{self, Message};
use futures_util::StreamExt as _;
use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

/// Messages in work at the same time.
const AT_ONCE: usize = 32;
/// Messages that are asked for at a time, so that no connection waits for the broker.
const FETCH: usize = 256;

#[derive(serde::Deserialize)]
struct Credit {
    account: String,
    amount: i64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [database, broker, stream, durable, messages] = &arguments[..] else {
        bail!("usage: plain-consumer DATABASE_URL NATS_URL STREAM DURABLE MESSAGES");
    };
    let mut left: u64 = messages.parse().context("MESSAGES is not a number")?;

    let client = async_nats::connect(broker.as_str()).await?;
    let consumer = jetstream::new(client.clone())
        .create_consumer_on_stream(
            pull::Config {
                durable_name: Some(durable.clone()),
                ack_policy: AckPolicy::Explicit,
                ..Default::default()
            },
            stream.as_str(),
        )
        .await?;
    let deliveries = consumer
        .stream()
        .max_messages_per_batch(FETCH)
        .messages()
        .await?;
    let deliveries = Arc::new(Mutex::new(deliveries));

    let options = PgConnectOptions::from_str(database)?.disable_statement_logging();
    let (applied, mut reports) = tokio::sync::mpsc::unbounded_channel();
    let mut workers = JoinSet::new();
    for _ in 0..AT_ONCE {
        let mut connection = options.connect().await?;
        let deliveries = Arc::clone(&deliveries);
        let applied = applied.clone();
        workers.spawn(async move {
            loop {
                let next = deliveries.lock().await.next().await;
                let message = next.context("the stream of deliveries ended")??;
                let fresh = process(&mut connection, &message).await?;
                message.ack().await.map_err(anyhow::Error::from_boxed)?;
                applied.send(fresh)?;
            }
        });
    }

    while left > 0 {
        tokio::select! {
            // A report that is not received in this turn is received in the next.
            Some(fresh) = reports.recv() => left -= u64::from(fresh),
            // A worker ends only with an error.
            Some(ended) = workers.join_next() => {
                let result: anyhow::Result<()> = ended?;
                return result;
            }
        }
    }
    // The acknowledgements are on their way, and arrive before the process ends.
    client.flush().await?;
    Ok(())
}

/// Applies one message. False: it was applied before.
async fn process(connection: &mut PgConnection, message: &Message) -> anyhow::Result<bool> {
    let headers = message
        .headers
        .as_ref()
        .context("a message has no headers")?;
    let id = headers
        .get("Nats-Msg-Id")
        .context("a message has no id")?
        .as_str();
    let credit: Credit = serde_json::from_slice(&message.payload)?;

    let mut tx = connection.begin().await?;
    let fresh = sqlx::query(
        "INSERT INTO processed_messages (message_id) VALUES ($1) ON CONFLICT DO NOTHING",
    )
    .bind(id)
    .execute(&mut *tx)
    .await?
    .rows_affected()
        == 1;
    if fresh {
        let updated = sqlx::query("UPDATE accounts SET balance = balance + $1 WHERE id = $2")
            .bind(credit.amount)
            .bind(&credit.account)
            .execute(&mut *tx)
            .await?
            .rows_affected();
        if updated == 0 {
            bail!("account `{}` does not exist", credit.account);
        }
    }
    tx.commit().await?;
    Ok(fresh)
}
