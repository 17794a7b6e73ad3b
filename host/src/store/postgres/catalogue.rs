//! The handlers' tables on a server.

use super::PostgresSession;
use crate::store::StoreError;
use crate::store::catalogue::{Filled, Table, TableColumn, quoted};

/// A column each: schema, table, column, type, default, is it an identity, is it of the primary key, what it refers to.
const COLUMNS: &str = "
    SELECT n.nspname::text, c.relname::text, a.attname::text, format_type(a.atttypid, a.atttypmod), pg_get_expr(d.adbin, d.adrelid),
        a.attidentity <> '', EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey)),
        (SELECT r.relname::text FROM pg_catalog.pg_constraint f JOIN pg_catalog.pg_class r ON r.oid = f.confrelid
            WHERE f.conrelid = c.oid AND f.contype = 'f' AND f.conkey = ARRAY[a.attnum] LIMIT 1),
        (SELECT t.attname::text FROM pg_catalog.pg_constraint f JOIN pg_catalog.pg_attribute t
            ON t.attrelid = f.confrelid AND f.confkey = ARRAY[t.attnum]
            WHERE f.conrelid = c.oid AND f.contype = 'f' AND f.conkey = ARRAY[a.attnum] LIMIT 1)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum AND a.attgenerated = ''
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'hapax')
        AND n.nspname !~ '^pg_'
    ORDER BY n.nspname, c.relname, a.attnum";

type Row = (
    String,
    String,
    String,
    String,
    Option<String>,
    bool,
    bool,
    Option<String>,
    Option<String>,
);

impl PostgresSession {
    pub(in crate::store) async fn catalogue(&mut self) -> Result<Vec<Table>, StoreError> {
        let rows: Result<Vec<Row>, sqlx::Error> = sqlx::query_as(COLUMNS)
            .persistent(false)
            .fetch_all(&mut self.connection)
            .await;
        let rows = rows.map_err(|error| self.host_error(&error))?;
        let mut tables: Vec<Table> = Vec::new();
        for (schema, table, name, type_name, default, is_identity, is_key, to_table, to_column) in
            rows
        {
            let column = TableColumn {
                name,
                type_name,
                is_key,
                filled: match default {
                    _ if is_identity => Some(Filled::Number),
                    Some(default) if default.starts_with("nextval(") => Some(Filled::Number),
                    default => default.map(Filled::Default),
                },
                refers_to: to_table.zip(to_column),
            };
            let in_statements = format!("{}.{}", quoted(&schema), quoted(&table));
            match tables.last_mut() {
                Some(last) if last.quoted == in_statements => last.columns.push(column),
                _ => tables.push(Table {
                    name: match schema.as_str() {
                        "public" => table,
                        _ => format!("{schema}.{table}"),
                    },
                    quoted: in_statements,
                    columns: vec![column],
                }),
            }
        }
        Ok(tables)
    }
}
