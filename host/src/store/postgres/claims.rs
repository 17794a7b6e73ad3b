//! Claims, and the numbers of components, on PostgreSQL.

use std::collections::HashMap;

use sqlx::Row as _;

use super::PostgresSession;
use crate::message::ComponentDigest;
use crate::store::{Claim, ClaimAs, ClaimRequest, StoreError, records};

impl PostgresSession {
    /// Returns the number of a component, made if need be.
    pub(super) async fn component(
        &mut self,
        digest: Option<ComponentDigest>,
    ) -> Result<Option<i32>, StoreError> {
        let Some(digest) = digest else {
            return Ok(None);
        };
        if let Some(id) = self.components.get(&digest) {
            return Ok(Some(*id));
        }
        // A rolled-back number would point nowhere, so it is remembered at the commit.
        if let Some((_, id)) = self
            .tx
            .components
            .iter()
            .find(|(known, _)| *known == digest)
        {
            return Ok(Some(*id));
        }
        let bytes = &digest.0[..];
        let find = "SELECT id FROM hapax.components WHERE digest = $1";
        for _ in 0..2 {
            let found: Option<i32> = sqlx::query_scalar(find)
                .bind(bytes)
                .fetch_optional(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
            if let Some(id) = found {
                self.tx.components.push((digest, id));
                return Ok(Some(id));
            }
            sqlx::query(
                "INSERT INTO hapax.components (digest) VALUES ($1) ON CONFLICT (digest) DO NOTHING",
            )
            .bind(bytes)
            .execute(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        }
        let found: Option<i32> = sqlx::query_scalar(find)
            .bind(bytes)
            .fetch_optional(&mut self.connection)
            .await
            .map_err(|error| self.host_error(&error))?;
        match found {
            Some(id) => {
                self.tx.components.push((digest, id));
                Ok(Some(id))
            }
            None => Err(StoreError::Busy(
                "the component's row vanished while it was looked up".into(),
            )),
        }
    }

    pub(super) async fn try_claim(
        &mut self,
        consumer: &str,
        requests: &[ClaimRequest],
        claim_as: ClaimAs,
        component: Option<i32>,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        let ids: Vec<&str> = requests.iter().map(|request| request.id.as_str()).collect();
        let hashes: Vec<&[u8]> = requests
            .iter()
            .map(|request| &request.payload_hash.0[..])
            .collect();
        // The insert waits for uncommitted claims of the same ids; in one order, so that two hosts can't deadlock here.
        let rows = sqlx::query(
            "WITH claimed AS ( \
                 INSERT INTO hapax.processed_messages (consumer, message_id, outcome, payload_hash, component) \
                 SELECT $1, wanted.message_id, $4, wanted.payload_hash, $5 \
                 FROM unnest($2::text[], $3::bytea[]) AS wanted (message_id, payload_hash) \
                 ORDER BY wanted.message_id COLLATE \"C\" \
                 ON CONFLICT DO NOTHING \
                 RETURNING message_id \
             ) \
             SELECT claimed.message_id, pg_current_xact_id()::text, ( \
                 SELECT max(attempt) FROM hapax.attempts \
                 WHERE consumer = $1 AND message_id = claimed.message_id \
             ), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
             FROM claimed",
        )
        .bind(consumer)
        .bind(&ids)
        .bind(&hashes)
        .bind(records::outcome_text(claim_as))
        .bind(component)
        .fetch_all(&mut self.connection)
        .await?;

        let mut found: HashMap<String, Claim> = HashMap::with_capacity(requests.len());
        let mut tried_before: Vec<String> = Vec::new();
        for row in &rows {
            let id: String = row.try_get(0)?;
            self.tx.xid = Some(row.try_get(1)?);
            self.tx.claimed_at = Some(row.try_get(3)?);
            let attempts: Option<i32> = row.try_get(2)?;
            let attempts = u32::try_from(attempts.unwrap_or(0)).unwrap_or(0);
            if attempts > 0 {
                tried_before.push(id.clone());
            }
            found.insert(
                id,
                Claim::Fresh {
                    attempt: attempts + 1,
                },
            );
        }
        if claim_as == ClaimAs::Done && !tried_before.is_empty() {
            sqlx::query("DELETE FROM hapax.attempts WHERE consumer = $1 AND message_id = ANY ($2)")
                .bind(consumer)
                .bind(&tried_before)
                .execute(&mut self.connection)
                .await?;
        }
        if found.len() < requests.len() {
            // A row that the insert waited for is invisible to it; this statement has a newer snapshot.
            let rows = sqlx::query(
                "SELECT message_id, payload_hash, outcome, EXISTS ( \
                     SELECT 1 FROM hapax.attempts \
                     WHERE consumer = $1 AND message_id = processed_messages.message_id \
                 ) \
                 FROM hapax.processed_messages WHERE consumer = $1 AND message_id = ANY ($2)",
            )
            .bind(consumer)
            .bind(&ids)
            .fetch_all(&mut self.connection)
            .await?;
            let mut tried_in_vain: Vec<String> = Vec::new();
            for row in &rows {
                let id: String = row.try_get(0)?;
                if found.contains_key(&id) {
                    continue;
                }
                let hash: Vec<u8> = row.try_get(1)?;
                let outcome: String = row.try_get(2)?;
                let tried: bool = row.try_get(3)?;
                let Some(request) = requests.iter().find(|request| request.id.as_str() == id)
                else {
                    continue;
                };
                let claim = records::settled_claim(request, &hash, &outcome);
                if tried {
                    tried_in_vain.push(id.clone());
                }
                found.insert(id, claim);
            }
            // A failure that was recorded after another host's claim counts no more.
            if !tried_in_vain.is_empty() {
                sqlx::query(
                    "DELETE FROM hapax.attempts WHERE consumer = $1 AND message_id = ANY ($2)",
                )
                .bind(consumer)
                .bind(&tried_in_vain)
                .execute(&mut self.connection)
                .await?;
            }
        }
        // An id that is missing here was claimed when the insert looked and gone when the second statement did.
        Ok(requests
            .iter()
            .filter_map(|request| found.remove(request.id.as_str()))
            .collect())
    }
}
