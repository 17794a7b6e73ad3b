//! Claims, and the numbers of components, on SQLite.

use std::collections::HashMap;

use super::SqliteSession;
use crate::message::ComponentDigest;
use crate::store::{Claim, ClaimAs, ClaimRequest, StoreError, records};

impl SqliteSession {
    /// Returns the number of a component, made if need be.
    pub(super) async fn component(
        &mut self,
        digest: Option<ComponentDigest>,
    ) -> Result<Option<i64>, StoreError> {
        let Some(digest) = digest else {
            return Ok(None);
        };
        if let Some(id) = self.components.get(&digest) {
            return Ok(Some(*id));
        }
        // A rolled-back number would point nowhere, so it is remembered at the commit.
        if let Some((_, id)) = self
            .tx_components
            .iter()
            .find(|(known, _)| *known == digest)
        {
            return Ok(Some(*id));
        }
        // The update that changes nothing makes RETURNING answer for a row that is there already.
        let id: i64 = sqlx::query_scalar(
            "INSERT INTO hapax_components (digest) VALUES (?1) \
             ON CONFLICT (digest) DO UPDATE SET digest = excluded.digest RETURNING id",
        )
        .bind(&digest.0[..])
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        self.tx_components.push((digest, id));
        Ok(Some(id))
    }

    pub(super) async fn try_claim(
        &mut self,
        consumer: &str,
        requests: &[ClaimRequest],
        claim_as: ClaimAs,
        component: Option<i64>,
    ) -> Result<Vec<Claim>, sqlx::Error> {
        let wanted = serde_json::Value::from(
            requests
                .iter()
                .map(|request| {
                    serde_json::json!([request.id.as_str(), request.payload_hash.to_hex()])
                })
                .collect::<Vec<_>>(),
        )
        .to_string();
        let fresh: Vec<String> = sqlx::query_scalar(
            "INSERT INTO hapax_processed_messages (consumer, message_id, outcome, payload_hash, component) \
             SELECT ?1, wanted.value ->> 0, ?3, unhex(wanted.value ->> 1), ?4 FROM json_each(?2) AS wanted WHERE true \
             ON CONFLICT DO NOTHING RETURNING message_id",
        )
        .bind(consumer)
        .bind(&wanted)
        .bind(records::outcome_text(claim_as))
        .bind(component)
        .fetch_all(&mut self.connection)
        .await?;
        let mut found: HashMap<String, Claim> = fresh
            .into_iter()
            .map(|id| (id, Claim::Fresh { attempt: 1 }))
            .collect();
        if !found.is_empty() {
            let attempts: Vec<(String, i64)> = sqlx::query_as(
                "SELECT message_id, max(attempt) FROM hapax_attempts \
                 WHERE consumer = ?1 AND message_id IN (SELECT value ->> 0 FROM json_each(?2)) GROUP BY message_id",
            )
            .bind(consumer)
            .bind(&wanted)
            .fetch_all(&mut self.connection)
            .await?;
            for (id, last) in attempts {
                let Some(claim @ Claim::Fresh { .. }) = found.get_mut(&id) else {
                    continue;
                };
                *claim = Claim::Fresh {
                    attempt: u32::try_from(last).unwrap_or(0) + 1,
                };
                if claim_as == ClaimAs::Done {
                    sqlx::query(
                        "DELETE FROM hapax_attempts WHERE consumer = ?1 AND message_id = ?2",
                    )
                    .bind(consumer)
                    .bind(&id)
                    .execute(&mut self.connection)
                    .await?;
                }
            }
        }
        if found.len() < requests.len() {
            let settled: Vec<(String, Vec<u8>, String, bool)> = sqlx::query_as(
                "SELECT message_id, payload_hash, outcome, EXISTS ( \
                     SELECT 1 FROM hapax_attempts AS attempt \
                     WHERE attempt.consumer = ?1 AND attempt.message_id = claim.message_id \
                 ) \
                 FROM hapax_processed_messages AS claim \
                 WHERE consumer = ?1 AND message_id IN (SELECT value ->> 0 FROM json_each(?2))",
            )
            .bind(consumer)
            .bind(&wanted)
            .fetch_all(&mut self.connection)
            .await?;
            for (id, hash, outcome, tried) in settled {
                if found.contains_key(&id) {
                    continue;
                }
                let Some(request) = requests.iter().find(|request| request.id.as_str() == id)
                else {
                    continue;
                };
                let claim = records::settled_claim(request, &hash, &outcome);
                if tried {
                    // A failure that was recorded after another host's claim counts no more.
                    sqlx::query(
                        "DELETE FROM hapax_attempts WHERE consumer = ?1 AND message_id = ?2",
                    )
                    .bind(consumer)
                    .bind(&id)
                    .execute(&mut self.connection)
                    .await?;
                }
                found.insert(id, claim);
            }
        }
        Ok(requests
            .iter()
            .filter_map(|request| found.remove(request.id.as_str()))
            .collect())
    }
}
