//! Deployments on PostgreSQL.

use std::time::Duration;

use sqlx::Row as _;

use super::PostgresSession;
use crate::message::ComponentDigest;
use crate::store::deployments::{
    Deploy, Deployed, Deployment, DeploymentSession, HOST_ROWS_KEPT_SECONDS, HostHandler,
    NewComponent, SeenHostHandler, StateRow, WantedState, deployment_of, digest_of, no_deployment,
    signed, unsigned,
};
use crate::store::text::instant_from_microseconds;
use crate::store::{Session as _, StoreError};

/// What a handler's state was before a change, under its lock.
struct Locked {
    deployment: Option<i64>,
    component: Option<i32>,
    is_paused: bool,
    generation: i64,
}

impl PostgresSession {
    /// Locks the handler's state, made if need be: changes come one after the other.
    async fn lock_state(&mut self, handler: &str) -> Result<Locked, StoreError> {
        sqlx::query(
            "INSERT INTO hapax.handler_states (handler) VALUES ($1) ON CONFLICT (handler) DO NOTHING",
        )
        .bind(handler)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        // A joined row would be the one of before the wait for the lock.
        let row = sqlx::query(
            "SELECT deployment, paused, generation FROM hapax.handler_states WHERE handler = $1 FOR UPDATE",
        )
        .bind(handler)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let read = |error: sqlx::Error| StoreError::Unusable(error.to_string());
        let deployment: Option<i64> = row.try_get(0).map_err(read)?;
        let component = match deployment {
            None => None,
            Some(number) => self.component_of(handler, number).await?,
        };
        Ok(Locked {
            deployment,
            component,
            is_paused: row.try_get(1).map_err(read)?,
            generation: row.try_get(2).map_err(read)?,
        })
    }

    async fn component_of(
        &mut self,
        handler: &str,
        number: i64,
    ) -> Result<Option<i32>, StoreError> {
        sqlx::query_scalar(
            "SELECT component FROM hapax.deployments WHERE handler = $1 AND number = $2",
        )
        .bind(handler)
        .bind(number)
        .fetch_optional(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn change_state(
        &mut self,
        handler: &str,
        deployment: Option<i64>,
        paused: bool,
        by: &str,
    ) -> Result<u64, StoreError> {
        let generation: i64 = sqlx::query_scalar(
            "UPDATE hapax.handler_states SET deployment = $2, paused = $3, generation = generation + 1, \
                 changed_at = now(), changed_by = $4 \
             WHERE handler = $1 RETURNING generation",
        )
        .bind(handler)
        .bind(deployment)
        .bind(paused)
        .bind(by)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(unsigned(generation))
    }

    async fn keep_component(&mut self, component: &NewComponent<'_>) -> Result<i32, StoreError> {
        // A handler may have recorded the digest alone. The bytes are sent at most once.
        let kept: Option<i32> = sqlx::query_scalar(
            "SELECT id FROM hapax.components WHERE digest = $1 AND bytes IS NOT NULL",
        )
        .bind(&component.digest.0[..])
        .fetch_optional(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        if let Some(id) = kept {
            return Ok(id);
        }
        sqlx::query_scalar(
            "INSERT INTO hapax.components (digest, size_bytes, contract, producers, bytes) \
             VALUES ($1, $2, $3, $4::json, $5) \
             ON CONFLICT (digest) DO UPDATE SET size_bytes = excluded.size_bytes, contract = excluded.contract, \
                 producers = excluded.producers, bytes = excluded.bytes \
             RETURNING id",
        )
        .bind(&component.digest.0[..])
        .bind(signed(component.bytes.len() as u64))
        .bind(component.contract)
        .bind(component.producers)
        .bind(component.bytes)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))
    }

    async fn digest_of_component(&mut self, id: i32) -> Result<ComponentDigest, StoreError> {
        let bytes: Vec<u8> =
            sqlx::query_scalar("SELECT digest FROM hapax.components WHERE id = $1")
                .bind(id)
                .fetch_one(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        digest_of(bytes)
    }

    async fn deploy_in_tx(
        &mut self,
        handler: &str,
        what: &Deploy<'_>,
        by: &str,
        migrations: &[String],
    ) -> Result<Deployed, StoreError> {
        let before = self.lock_state(handler).await?;
        let (component, back_to) = match what {
            Deploy::New(component) => (self.keep_component(component).await?, None),
            Deploy::BackTo(number) => match self.component_of(handler, signed(*number)).await? {
                Some(component) => (component, Some(signed(*number))),
                None => return Err(no_deployment(handler, *number)),
            },
        };
        let digest = self.digest_of_component(component).await?;
        if let Some(number) = before.deployment
            && before.component == Some(component)
        {
            return Ok(Deployed {
                number: unsigned(number),
                generation: unsigned(before.generation),
                digest,
                is_new: false,
            });
        }
        let number: i64 = sqlx::query_scalar(
            "INSERT INTO hapax.deployments (handler, number, component, deployed_by, migrations, back_to) \
             SELECT $1, coalesce(max(number), 0) + 1, $2, $3, $4::json, $5 FROM hapax.deployments WHERE handler = $1 \
             RETURNING number",
        )
        .bind(handler)
        .bind(component)
        .bind(by)
        .bind(serde_json::json!(migrations).to_string())
        .bind(back_to)
        .fetch_one(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let generation = self
            .change_state(handler, Some(number), before.is_paused, by)
            .await?;
        Ok(Deployed {
            number: unsigned(number),
            generation,
            digest,
            is_new: true,
        })
    }

    async fn withdraw_in_tx(&mut self, handler: &str, by: &str) -> Result<Option<u64>, StoreError> {
        let before = self.lock_state(handler).await?;
        if before.deployment.is_none() {
            return Ok(None);
        }
        self.change_state(handler, None, before.is_paused, by)
            .await
            .map(Some)
    }

    async fn set_paused_in_tx(
        &mut self,
        handler: &str,
        paused: bool,
        by: &str,
    ) -> Result<(u64, bool), StoreError> {
        let before = self.lock_state(handler).await?;
        if before.is_paused == paused {
            return Ok((unsigned(before.generation), false));
        }
        let generation = self
            .change_state(handler, before.deployment, paused, by)
            .await?;
        Ok((generation, true))
    }

    /// Ends a transaction of the host's own as its work ended.
    async fn end_own<T>(&mut self, done: Result<T, StoreError>) -> Result<T, StoreError> {
        match done {
            Ok(value) => {
                self.commit_own().await?;
                Ok(value)
            }
            Err(error) => self.abandon(error).await,
        }
    }
}

impl DeploymentSession for PostgresSession {
    async fn deploy(
        &mut self,
        handler: &str,
        what: &Deploy<'_>,
        by: &str,
        migrations: &[String],
    ) -> Result<Deployed, StoreError> {
        self.begin().await?;
        let done = self.deploy_in_tx(handler, what, by, migrations).await;
        self.end_own(done).await
    }

    async fn withdraw(&mut self, handler: &str, by: &str) -> Result<Option<u64>, StoreError> {
        self.begin().await?;
        let done = self.withdraw_in_tx(handler, by).await;
        self.end_own(done).await
    }

    async fn set_paused(
        &mut self,
        handler: &str,
        paused: bool,
        by: &str,
    ) -> Result<(u64, bool), StoreError> {
        self.begin().await?;
        let done = self.set_paused_in_tx(handler, paused, by).await;
        self.end_own(done).await
    }

    async fn wanted_states(&mut self) -> Result<Vec<WantedState>, StoreError> {
        let rows: Vec<StateRow> = sqlx::query_as(
            "SELECT state.handler, state.deployment, component.digest, state.paused, state.generation \
             FROM hapax.handler_states AS state \
             LEFT JOIN hapax.deployments AS deployment \
                 ON deployment.handler = state.handler AND deployment.number = state.deployment \
             LEFT JOIN hapax.components AS component ON component.id = deployment.component \
             ORDER BY state.handler",
        )
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.into_iter().map(WantedState::of).collect()
    }

    async fn deployments(&mut self, handler: &str) -> Result<Vec<Deployment>, StoreError> {
        let rows = sqlx::query(
            "SELECT deployment.number, component.digest, component.size_bytes, component.contract, \
                 component.producers::text, deployment.deployed_by, deployment.migrations::text, deployment.back_to, \
                 coalesce(state.deployment = deployment.number, false), \
                 (extract(epoch FROM deployment.deployed_at) * 1000000)::bigint \
             FROM hapax.deployments AS deployment \
             JOIN hapax.components AS component ON component.id = deployment.component \
             LEFT JOIN hapax.handler_states AS state ON state.handler = deployment.handler \
             WHERE deployment.handler = $1 ORDER BY deployment.number DESC",
        )
        .bind(handler)
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        let mut deployments = Vec::with_capacity(rows.len());
        for row in rows {
            let read = |error: sqlx::Error| StoreError::Unusable(error.to_string());
            let at: i64 = row.try_get(9).map_err(read)?;
            let line = (
                row.try_get(0).map_err(read)?,
                row.try_get(1).map_err(read)?,
                row.try_get(2).map_err(read)?,
                row.try_get(3).map_err(read)?,
                row.try_get(4).map_err(read)?,
                row.try_get(5).map_err(read)?,
                row.try_get(6).map_err(read)?,
                row.try_get(7).map_err(read)?,
                row.try_get(8).map_err(read)?,
            );
            deployments.push(deployment_of(line, Some(instant_from_microseconds(at)))?);
        }
        Ok(deployments)
    }

    async fn component_bytes(
        &mut self,
        digest: ComponentDigest,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let found: Option<Option<Vec<u8>>> =
            sqlx::query_scalar("SELECT bytes FROM hapax.components WHERE digest = $1")
                .bind(&digest.0[..])
                .fetch_optional(&mut self.connection)
                .await
                .map_err(|error| self.host_error(&error))?;
        Ok(found.flatten())
    }

    async fn report_host(&mut self, host: &str, rows: &[HostHandler]) -> Result<(), StoreError> {
        let column = |read: fn(&HostHandler) -> String| rows.iter().map(read).collect::<Vec<_>>();
        let digests: Vec<Option<Vec<u8>>> = rows
            .iter()
            .map(|row| row.digest.map(|digest| digest.0.to_vec()))
            .collect();
        let generations: Vec<i64> = rows.iter().map(|row| signed(row.generation)).collect();
        let errors: Vec<Option<&str>> = rows.iter().map(|row| row.error.as_deref()).collect();
        sqlx::query(
            "WITH gone AS (DELETE FROM hapax.host_handlers WHERE host = $1 AND handler <> ALL ($2)) \
             INSERT INTO hapax.host_handlers (host, handler, state, digest, generation, error) \
             SELECT $1, * FROM unnest($2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::text[]) \
             ON CONFLICT (host, handler) DO UPDATE SET state = excluded.state, digest = excluded.digest, \
                 generation = excluded.generation, error = excluded.error, seen_at = now()",
        )
        .bind(host)
        .bind(column(|row| row.handler.clone()))
        .bind(column(|row| row.state.clone()))
        .bind(digests)
        .bind(generations)
        .bind(errors)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn forget_host(&mut self, host: &str) -> Result<(), StoreError> {
        sqlx::query(
            "DELETE FROM hapax.host_handlers WHERE host = $1 OR seen_at < now() - make_interval(secs => $2)",
        )
        .bind(host)
        .bind(HOST_ROWS_KEPT_SECONDS as f64)
        .execute(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        Ok(())
    }

    async fn host_handlers(&mut self) -> Result<Vec<SeenHostHandler>, StoreError> {
        type Row = (
            String,
            String,
            String,
            Option<Vec<u8>>,
            i64,
            Option<String>,
            i64,
        );
        let rows: Vec<Row> = sqlx::query_as(
            "SELECT host, handler, state, digest, generation, error, \
                 greatest(0, extract(epoch FROM clock_timestamp() - seen_at) * 1000)::bigint \
             FROM hapax.host_handlers ORDER BY handler, host",
        )
        .fetch_all(&mut self.connection)
        .await
        .map_err(|error| self.host_error(&error))?;
        rows.into_iter()
            .map(|(host, handler, state, digest, generation, error, age)| {
                Ok(SeenHostHandler {
                    host,
                    row: HostHandler {
                        handler,
                        state,
                        digest: digest.map(digest_of).transpose()?,
                        generation: unsigned(generation),
                        error,
                    },
                    age: Duration::from_millis(unsigned(age)),
                })
            })
            .collect()
    }
}
