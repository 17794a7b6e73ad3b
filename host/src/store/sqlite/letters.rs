//! Carried messages and dead letters on SQLite.

use std::time::Duration;

use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, Row as _, Sqlite};

use super::super::letters::{LetterFilter, LetterSession, LetterState, LetterSummary};
use super::super::text::{
    clean, clean_reason, headers_from_json, headers_to_json, instant_from_text, instant_to_text,
};
use super::super::{DeadLetter, Session as _, StoreError, StoredDeadLetter, records};
use super::{SqliteSession, YEAR_MAX};
use crate::message::{Carried, FailureClass, Incoming, Instant, MessageId, Position, ShortHash};

/// The columns of a letter, in the order in which `read_letter` takes them.
pub(super) const LETTER_COLUMNS: &str = "letter.id, letter.consumer, letter.handler, letter.message_id, letter.source, \
     letter.position, letter.subject, letter.headers, letter.content_type, letter.payload, letter.published_at, \
     letter.class, letter.reason, component.digest, letter.attempts, letter.dead_at, letter.queue_id, letter.order_key";

/// Returns a moment as it is stored; one that the database can't hold is left out.
fn moment(instant: Option<Instant>) -> Option<String> {
    instant.and_then(|instant| instant_to_text(records::to_microseconds(instant), YEAR_MAX).ok())
}

/// The columns that a new letter is written with, in the order of `WRITTEN_VALUES` and `bind_letter`.
const WRITTEN_COLUMNS: &str = "consumer, handler, message_id, source, position, subject, headers, content_type, payload, \
     published_at, class, reason, component, order_key, queue_id";
const WRITTEN_VALUES: &str = "?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15";

fn bind_letter<'q>(
    query: Query<'q, Sqlite, SqliteArguments>,
    letter: &'q DeadLetter,
    component: Option<i64>,
) -> Query<'q, Sqlite, SqliteArguments> {
    query
        .bind(clean(&letter.consumer))
        .bind(clean(&letter.handler))
        .bind(letter.message_id.as_ref().map(MessageId::as_str))
        .bind(clean(&letter.source))
        .bind(clean(&letter.position.0))
        .bind(clean(&letter.subject))
        .bind(headers_to_json(&letter.headers))
        .bind(letter.content_type.as_deref().map(clean))
        .bind(&letter.payload[..])
        .bind(moment(letter.published_at))
        .bind(letter.class.as_str())
        .bind(clean_reason(&letter.reason))
        .bind(component)
        .bind(letter.order_key.as_deref().map(clean))
        .bind(letter.queue_id.as_deref().map(clean))
}

/// As `moment`, in the form that the database writes itself, so that texts compare as moments do.
pub(super) fn own_moment(instant: Option<Instant>) -> Option<String> {
    let mut text = moment(instant)?;
    // `.ffffffZ` becomes `.fffZ`.
    if text.ends_with("000Z") {
        text.truncate(text.len() - 4);
        text.push('Z');
    }
    Some(text)
}

/// Returns the list as JSON, for `json_each`.
fn list(numbers: &[i64]) -> String {
    serde_json::Value::from(numbers).to_string()
}

/// Reads what a row of a consumer's own queue says of its origin, from column `first` on.
pub(super) fn read_carried(
    row: &SqliteRow,
    first: usize,
    message_id: Option<&str>,
) -> Result<Option<Carried>, sqlx::Error> {
    let source: Option<String> = row.try_get(first)?;
    let Some(source) = source else {
        return Ok(None);
    };
    let position: Option<String> = row.try_get(first + 1)?;
    let published_at: Option<String> = row.try_get(first + 2)?;
    Ok(Some(Carried {
        source,
        position: Position(position.unwrap_or_default()),
        published_at: published_at.as_deref().and_then(instant_from_text),
        message_id: message_id.and_then(|id| MessageId::new(id).ok()),
        queue_id: row.try_get(first + 3)?,
        dead_letter: row.try_get(first + 4)?,
        forced: row.try_get(first + 5)?,
    }))
}

impl SqliteSession {
    async fn drop_in_tx(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        self.begin().await?;
        sqlx::query(
            "DELETE FROM hapax_queue WHERE dead_letter IN (SELECT value FROM json_each(?1))",
        )
        .bind(list(numbers))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        sqlx::query_scalar(
            "DELETE FROM hapax_dead_letters WHERE id IN (SELECT value FROM json_each(?1)) RETURNING id",
        )
        .bind(list(numbers))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }
}

impl LetterSession for SqliteSession {
    async fn write_dead_letter(&mut self, letter: &DeadLetter) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let component = self.component(letter.component).await?;
        let own_id = records::id_of_own_attempts(letter);
        let statement = format!(
            "INSERT INTO hapax_dead_letters ({WRITTEN_COLUMNS}, attempts) VALUES ({WRITTEN_VALUES}, ( \
                 SELECT json_group_array(json_object( \
                     'attempt', attempt.attempt, \
                     'at', attempt.at, \
                     'class', attempt.class, \
                     'error', attempt.error, \
                     'component', nullif(lower(hex(component.digest)), '') \
                 ) ORDER BY attempt.attempt) \
                 FROM hapax_attempts AS attempt \
                 LEFT JOIN hapax_components AS component ON component.id = attempt.component \
                 WHERE attempt.consumer = ?1 AND attempt.message_id = ?16 \
             )) \
             ON CONFLICT (consumer, source, position) DO NOTHING"
        );
        bind_letter(sqlx::query(AssertSqlSafe(statement)), letter, component)
            .bind(own_id)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        if let Some(id) = own_id {
            sqlx::query("DELETE FROM hapax_attempts WHERE consumer = ?1 AND message_id = ?2")
                .bind(&letter.consumer)
                .bind(id)
                .execute(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    async fn dead_letter_count(&mut self, consumer: &str) -> Result<u64, StoreError> {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM hapax_dead_letters WHERE consumer = ?1")
                .bind(consumer)
                .fetch_one(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        Ok(count.unsigned_abs())
    }

    async fn dead_letters(
        &mut self,
        consumer: &str,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(format!(
            "SELECT {LETTER_COLUMNS} FROM hapax_dead_letters AS letter \
             LEFT JOIN hapax_components AS component ON component.id = letter.component \
             WHERE letter.consumer = ?1 ORDER BY letter.id LIMIT ?2"
        )))
        .bind(consumer)
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter().map(read_letter).collect()
    }

    async fn carry(
        &mut self,
        consumer: &str,
        carried: &Carried,
        incoming: &Incoming,
        wait: Duration,
    ) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let queue = Carried::queue(consumer);
        let id = carried.message_id.as_ref().map(MessageId::as_str);
        // The clock has milliseconds.
        let wait = format!("+{:.3} seconds", wait.as_secs_f64());
        let waiting = sqlx::query(
            "UPDATE hapax_queue SET due_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?5) \
             WHERE queue = ?1 AND origin_source IS NOT NULL AND ( \
                 dead_letter = ?3 OR ?3 IS NULL AND dead_letter IS NULL AND message_id = ?2 AND payload = ?4 \
             )",
        )
        .bind(&queue)
        .bind(id)
        .bind(carried.dead_letter)
        .bind(&incoming.payload[..])
        .bind(&wait)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        if waiting.rows_affected() > 0 {
            return Ok(());
        }
        sqlx::query(
            "INSERT INTO hapax_queue (queue, message_id, dead_letter, forced, origin_source, due_at, payload, subject, headers, \
                 content_type, origin_position, origin_published_at, origin_queue_id) \
             VALUES (?1, ?2, ?3, ?4, ?5, strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?6), ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )
        .bind(queue)
        .bind(id)
        .bind(carried.dead_letter)
        .bind(carried.forced)
        .bind(clean(&carried.source))
        .bind(wait)
        .bind(&incoming.payload[..])
        .bind(clean(&incoming.subject))
        .bind(headers_to_json(&incoming.headers))
        .bind(incoming.content_type.as_deref().map(clean))
        .bind(clean(&carried.position.0))
        .bind(moment(carried.published_at))
        .bind(carried.queue_id.as_deref().map(clean))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn lock_letters(
        &mut self,
        consumer: &str,
        numbers: &[i64],
    ) -> Result<Vec<i64>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        // There is one writer: the transaction locks all there is.
        sqlx::query_scalar(
            "SELECT id FROM hapax_dead_letters \
             WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2)) ORDER BY id",
        )
        .bind(consumer)
        .bind(list(numbers))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn release_dead_claims(
        &mut self,
        consumer: &str,
        claims: &[(MessageId, ShortHash)],
    ) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        for (id, payload_hash) in claims {
            sqlx::query(
                "DELETE FROM hapax_processed_messages \
                 WHERE consumer = ?1 AND message_id = ?2 AND outcome = 'dead' AND payload_hash = ?3",
            )
            .bind(consumer)
            .bind(id.as_str())
            .bind(&payload_hash.0[..])
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    async fn delete_letters(&mut self, consumer: &str, numbers: &[i64]) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        sqlx::query(
            "DELETE FROM hapax_dead_letters WHERE consumer = ?1 AND id IN (SELECT value FROM json_each(?2))",
        )
        .bind(consumer)
        .bind(list(numbers))
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn rewrite_letter(&mut self, number: i64, letter: &DeadLetter) -> Result<(), StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let component = self.component(letter.component).await?;
        let own_id = records::id_of_own_attempts(letter);
        sqlx::query(
            "UPDATE hapax_dead_letters SET handler = ?3, message_id = coalesce(?4, message_id), class = ?5, reason = ?6, \
                 component = ?7, dead_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now'), attempts = ( \
                     SELECT json_group_array(json(record.value) ORDER BY record.part, record.place) FROM ( \
                         SELECT value, 0 AS part, key AS place FROM json_each(hapax_dead_letters.attempts) \
                         UNION ALL \
                         SELECT json_object( \
                             'attempt', attempt.attempt, \
                             'at', attempt.at, \
                             'class', attempt.class, \
                             'error', attempt.error, \
                             'component', nullif(lower(hex(component.digest)), '') \
                         ), 1, attempt.attempt \
                         FROM hapax_attempts AS attempt \
                         LEFT JOIN hapax_components AS component ON component.id = attempt.component \
                         WHERE attempt.consumer = ?2 AND attempt.message_id = ?8 \
                     ) AS record \
                 ) \
             WHERE id = ?1",
        )
        .bind(number)
        .bind(&letter.consumer)
        .bind(clean(&letter.handler))
        .bind(letter.message_id.as_ref().map(MessageId::as_str))
        .bind(letter.class.as_str())
        .bind(clean_reason(&letter.reason))
        .bind(component)
        .bind(own_id)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        if let Some(id) = own_id {
            sqlx::query("DELETE FROM hapax_attempts WHERE consumer = ?1 AND message_id = ?2")
                .bind(&letter.consumer)
                .bind(id)
                .execute(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        }
        Ok(())
    }

    async fn insert_letter(
        &mut self,
        stored: &StoredDeadLetter,
    ) -> Result<Option<i64>, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        let letter = &stored.letter;
        let component = self.component(letter.component).await?;
        // A number that was never given would be given again; one that was, never is.
        let keeps_number: bool = sqlx::query_scalar(
            "SELECT ?1 BETWEEN 1 AND coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'hapax_dead_letters'), 0) \
                 AND NOT EXISTS (SELECT 1 FROM hapax_dead_letters WHERE id = ?1)",
        )
        .bind(stored.number)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let statement = format!(
            "INSERT INTO hapax_dead_letters ({WRITTEN_COLUMNS}, id, attempts, dead_at) \
             VALUES ({WRITTEN_VALUES}, ?16, ?17, coalesce(?18, strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))) \
             ON CONFLICT (consumer, source, position) DO NOTHING RETURNING id"
        );
        let row = bind_letter(sqlx::query(AssertSqlSafe(statement)), letter, component)
            .bind(keeps_number.then_some(stored.number))
            .bind(records::attempts_to_json(&stored.attempts))
            .bind(own_moment(stored.dead_at))
            .fetch_optional(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        row.map(|row| row.try_get(0))
            .transpose()
            .map_err(|error| self.host_error(&error))
    }

    async fn is_done(
        &mut self,
        consumer: &str,
        id: &MessageId,
        payload_hash: ShortHash,
    ) -> Result<bool, StoreError> {
        self.refuse_if_aborted().map_err(StoreError::Refused)?;
        sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM hapax_processed_messages \
                 WHERE consumer = ?1 AND message_id = ?2 AND outcome = 'done' AND payload_hash = ?3)",
        )
        .bind(consumer)
        .bind(id.as_str())
        .bind(&payload_hash.0[..])
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn letter_summaries(
        &mut self,
        filter: &LetterFilter,
        below: Option<i64>,
        limit: u32,
    ) -> Result<Vec<LetterSummary>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, consumer, handler, message_id, source, position, class, reason, json_array_length(attempts), \
                 dead_at, length(payload), \
                 EXISTS (SELECT 1 FROM hapax_queue WHERE dead_letter = hapax_dead_letters.id) \
             FROM hapax_dead_letters \
             WHERE (?1 IS NULL OR handler = ?1 OR consumer = ?2) AND (?3 IS NULL OR class = ?3) \
                 AND (?4 IS NULL OR dead_at >= ?4) AND (?5 IS NULL OR message_id = ?5) AND (?6 IS NULL OR id < ?6) \
             ORDER BY id DESC LIMIT ?7",
        )
        .bind(&filter.handler)
        .bind(&filter.consumer)
        .bind(filter.class.map(FailureClass::as_str))
        .bind(own_moment(filter.since))
        .bind(&filter.message_id)
        .bind(below)
        .bind(i64::from(limit))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter().map(read_summary).collect()
    }

    async fn letters(&mut self, numbers: &[i64]) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
            "SELECT {LETTER_COLUMNS} FROM hapax_dead_letters AS letter \
             LEFT JOIN hapax_components AS component ON component.id = letter.component \
             WHERE letter.id IN (SELECT value FROM json_each(?1)) ORDER BY letter.id"
        )))
        .bind(list(numbers))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.iter().map(read_letter).collect()
    }

    async fn letter_states(&mut self, numbers: &[i64]) -> Result<Vec<LetterState>, StoreError> {
        let rows = sqlx::query(
            "SELECT letter.id, letter.consumer, letter.message_id, letter.class, claim.outcome, \
                 EXISTS (SELECT 1 FROM hapax_queue WHERE dead_letter = letter.id) \
             FROM hapax_dead_letters AS letter \
             LEFT JOIN hapax_processed_messages AS claim \
                 ON claim.consumer = letter.consumer AND claim.message_id = letter.message_id \
             WHERE letter.id IN (SELECT value FROM json_each(?1)) ORDER BY letter.id",
        )
        .bind(list(numbers))
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let broken = |error: sqlx::Error| StoreError::Unusable(error.to_string());
        rows.iter()
            .map(|row| {
                let class: String = row.try_get(3).map_err(broken)?;
                let outcome: Option<String> = row.try_get(4).map_err(broken)?;
                Ok(LetterState {
                    number: row.try_get(0).map_err(broken)?,
                    consumer: row.try_get(1).map_err(broken)?,
                    message_id: row.try_get(2).map_err(broken)?,
                    class: records::stored_class(&class)?,
                    claim: outcome.as_deref().map(records::outcome_of),
                    is_queued: row.try_get(5).map_err(broken)?,
                })
            })
            .collect()
    }

    async fn queue_replays(&mut self, letters: &[(i64, bool)]) -> Result<Vec<i64>, StoreError> {
        let wanted = serde_json::Value::from(
            letters
                .iter()
                .map(|(number, forced)| serde_json::json!([number, i64::from(*forced)]))
                .collect::<Vec<_>>(),
        );
        sqlx::query_scalar(
            "INSERT INTO hapax_queue (queue, message_id, subject, headers, content_type, payload, origin_source, \
                 origin_position, origin_published_at, origin_queue_id, dead_letter, forced) \
             SELECT '@' || letter.consumer, letter.message_id, letter.subject, letter.headers, letter.content_type, \
                 letter.payload, letter.source, letter.position, letter.published_at, letter.queue_id, letter.id, \
                 wanted.value ->> 1 \
             FROM json_each(?1) AS wanted JOIN hapax_dead_letters AS letter ON letter.id = wanted.value ->> 0 \
             WHERE true ORDER BY letter.id \
             ON CONFLICT (dead_letter) WHERE dead_letter IS NOT NULL DO NOTHING \
             RETURNING dead_letter",
        )
        .bind(wanted.to_string())
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn drop_letters(&mut self, numbers: &[i64]) -> Result<Vec<i64>, StoreError> {
        match self.drop_in_tx(numbers).await {
            Ok(dropped) => self.commit_own().await.map(|()| dropped),
            Err(error) => self.abandon(error).await,
        }
    }
}

fn read_summary(row: &SqliteRow) -> Result<LetterSummary, StoreError> {
    let broken = |error: sqlx::Error| StoreError::Unusable(error.to_string());
    let class: String = row.try_get(6).map_err(broken)?;
    let attempts: i64 = row.try_get(8).map_err(broken)?;
    let dead_at: String = row.try_get(9).map_err(broken)?;
    let bytes: i64 = row.try_get(10).map_err(broken)?;
    Ok(LetterSummary {
        number: row.try_get(0).map_err(broken)?,
        consumer: row.try_get(1).map_err(broken)?,
        handler: row.try_get(2).map_err(broken)?,
        message_id: row.try_get(3).map_err(broken)?,
        source: row.try_get(4).map_err(broken)?,
        position: Position(row.try_get(5).map_err(broken)?),
        class: records::stored_class(&class)?,
        reason: row.try_get(7).map_err(broken)?,
        attempts: attempts.unsigned_abs(),
        dead_at: instant_from_text(&dead_at),
        bytes: bytes.unsigned_abs(),
        is_queued: row.try_get(11).map_err(broken)?,
    })
}

fn read_letter(row: &SqliteRow) -> Result<StoredDeadLetter, StoreError> {
    let broken = |error: sqlx::Error| StoreError::Unusable(error.to_string());
    let headers: String = row.try_get(7).map_err(broken)?;
    let class: String = row.try_get(11).map_err(broken)?;
    let attempts: String = row.try_get(14).map_err(broken)?;
    let published_at: Option<String> = row.try_get(10).map_err(broken)?;
    let dead_at: String = row.try_get(15).map_err(broken)?;
    Ok(StoredDeadLetter {
        number: row.try_get(0).map_err(broken)?,
        letter: DeadLetter {
            consumer: row.try_get(1).map_err(broken)?,
            handler: row.try_get(2).map_err(broken)?,
            message_id: records::stored_id(row.try_get(3).map_err(broken)?)?,
            source: row.try_get(4).map_err(broken)?,
            position: Position(row.try_get(5).map_err(broken)?),
            subject: row.try_get(6).map_err(broken)?,
            headers: headers_from_json(&headers),
            content_type: row.try_get(8).map_err(broken)?,
            payload: row.try_get::<Vec<u8>, _>(9).map_err(broken)?.into(),
            published_at: published_at.as_deref().and_then(instant_from_text),
            queue_id: row.try_get(16).map_err(broken)?,
            class: records::stored_class(&class)?,
            reason: row.try_get(12).map_err(broken)?,
            component: records::stored_digest(row.try_get(13).map_err(broken)?)?,
            order_key: row.try_get(17).map_err(broken)?,
        },
        attempts: records::stored_attempts(&attempts)?,
        dead_at: instant_from_text(&dead_at),
    })
}
