//! What a role can reach on PostgreSQL.

use super::PostgresSession;
use crate::store::StoreError;
use crate::store::guard::EXTENSIONS;
use crate::store::reach::{Outlives, Reach, ReachedTable};

/// `$1` is the role, `$2` true if hapax's own tables count.
const TABLES: &str = "
    SELECT name, rights FROM (
        SELECT format('%I.%I', n.nspname, c.relname) AS name, ARRAY(
            SELECT r.right FROM (VALUES ('SELECT', true), ('INSERT', true), ('UPDATE', true), ('DELETE', false), ('TRUNCATE', false))
                AS r (\"right\", of_columns)
            WHERE has_table_privilege($1, c.oid, r.right)
                OR r.of_columns AND has_any_column_privilege($1, c.oid, CASE WHEN r.of_columns THEN r.right ELSE 'SELECT' END)
        ) AS rights
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
            AND n.nspname !~ '^pg_(toast|temp)' AND (n.nspname <> 'hapax' OR $2) AND has_schema_privilege($1, n.oid, 'USAGE')
    ) AS t WHERE rights <> '{}' ORDER BY name";

/// `$1` is the role, `$2` the extensions that reach outside. A column each: kind, name, why.
const OUTLIVES: &str = "
    WITH own AS (
        SELECT c.oid, c.relkind, c.relpersistence, format('%I.%I', n.nspname, c.relname) AS name,
            has_table_privilege($1, c.oid, 'INSERT, UPDATE, DELETE') OR has_any_column_privilege($1, c.oid, 'INSERT, UPDATE') AS writes
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'hapax')
            AND n.nspname !~ '^pg_(toast|temp)' AND has_schema_privilege($1, n.oid, 'USAGE')
            AND (has_table_privilege($1, c.oid, 'SELECT, INSERT, UPDATE, DELETE')
                OR has_any_column_privilege($1, c.oid, 'SELECT, INSERT, UPDATE'))
    ), functions AS (
        SELECT p.oid, format('%I.%I', n.nspname, p.proname) AS name, n.oid AS schema, n.nspname, p.prorettype, e.extname,
            CASE WHEN e.extname = ANY ($2) THEN 'reaches outside of the database'
                WHEN p.prosecdef THEN format('SECURITY DEFINER: runs with the rights of %I', a.rolname)
                WHEN p.provolatile = 'v' AND NOT l.lanpltrusted THEN format('volatile, and written in %s, which can do anything', l.lanname)
            END AS why
        FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
        JOIN pg_catalog.pg_language l ON l.oid = p.prolang JOIN pg_catalog.pg_roles a ON a.oid = p.proowner
        LEFT JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
            AND d.refclassid = 'pg_catalog.pg_extension'::regclass
        LEFT JOIN pg_catalog.pg_extension e ON e.oid = d.refobjid
        WHERE n.nspname <> 'information_schema' AND (n.nspname <> 'pg_catalog' OR p.oid >= 16384)
    )
    SELECT kind, name, why FROM (
        SELECT 1 AS place, 'function' AS kind, f.name, f.why FROM functions f
        WHERE f.why IS NOT NULL AND f.extname IS NULL AND f.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)
            AND has_function_privilege($1, f.oid, 'EXECUTE') AND has_schema_privilege($1, f.schema, 'USAGE')
        UNION ALL
        SELECT 2, 'extension', f.extname::text, format('%s functions in its care: %s', count(*), min(f.why)) FROM functions f
        WHERE f.why IS NOT NULL AND f.extname IS NOT NULL AND f.extname <> 'plpgsql' AND has_function_privilege($1, f.oid, 'EXECUTE')
            AND f.prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype, 'language_handler'::regtype, 'fdw_handler'::regtype)
        GROUP BY f.extname
        UNION ALL
        SELECT 3, 'trigger', format('%s on %s', t.tgname, o.name), format('calls %s: %s', f.name, f.why)
        FROM pg_catalog.pg_trigger t JOIN own o ON o.oid = t.tgrelid AND o.writes JOIN functions f ON f.oid = t.tgfoid
        WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND f.why IS NOT NULL
        UNION ALL
        SELECT 4, 'rule', format('%s on %s', r.rulename, o.name), 'does more or something else than the statement says'
        FROM pg_catalog.pg_rewrite r JOIN own o ON o.oid = r.ev_class AND o.writes WHERE r.ev_type <> '1' AND r.ev_enabled <> 'D'
        UNION ALL
        SELECT 5, 'foreign table', o.name, 'its rows live elsewhere, and may stay there after a rollback' FROM own o WHERE o.relkind = 'f'
        UNION ALL
        SELECT 6, 'unlogged table', o.name, 'is empty after a crash of the server, though the messages stay processed'
        FROM own o WHERE o.relpersistence = 'u' AND o.writes
        UNION ALL
        SELECT 7, 'event trigger', e.evtname::text, format('runs on %s', e.evtevent) FROM pg_catalog.pg_event_trigger e
        WHERE e.evtenabled <> 'D'
    ) AS found ORDER BY place, name";

impl PostgresSession {
    pub(in crate::store) async fn reach(
        &mut self,
        role: Option<&str>,
    ) -> Result<Reach, StoreError> {
        let found = self.try_reach(role).await;
        found.map_err(|error| self.host_error(&error))
    }

    async fn try_reach(&mut self, role: Option<&str>) -> Result<Reach, sqlx::Error> {
        let (name, is_superuser): (String, bool) = sqlx::query_as(
            "SELECT rolname::text, rolsuper FROM pg_catalog.pg_roles WHERE rolname = coalesce($1, session_user::text)",
        )
        .bind(role)
        .fetch_one(&mut self.connection)
        .await?;
        let tables: Vec<(String, Vec<String>)> = sqlx::query_as(TABLES)
            .bind(&name)
            .bind(role.is_some())
            .fetch_all(&mut self.connection)
            .await?;
        let outlives: Vec<(String, String, String)> = sqlx::query_as(OUTLIVES)
            .bind(&name)
            .bind(EXTENSIONS)
            .fetch_all(&mut self.connection)
            .await?;
        Ok(Reach {
            role: name,
            is_superuser,
            tables: tables
                .into_iter()
                .map(|(name, rights)| ReachedTable { name, rights })
                .collect(),
            outlives: outlives
                .into_iter()
                .map(|(kind, name, why)| Outlives { kind, name, why })
                .collect(),
        })
    }
}
