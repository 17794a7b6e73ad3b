//! `hapax check`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use super::{ConfigFile, count, print, print_json, size};
use crate::app::{self, CheckedDatabase, CheckedHandler};
use crate::exit::CommandError;
use crate::text::one_line;

/// Checks, and prints what was found; warnings go to standard error.
pub(super) async fn check(
    config: &ConfigFile,
    database: bool,
    json: bool,
) -> Result<(), CommandError> {
    let loaded = config.load()?;
    let checked = app::check(&loaded).await?;
    let reached = if database {
        Some(app::check_database(&loaded).await?)
    } else {
        None
    };
    if json {
        let mut object = serde_json::json!({ "handlers": checked });
        if let Some(reached) = &reached {
            object["database"] = serde_json::json!(reached);
        }
        return print_json(&object);
    }
    let mut text = checked_text(&config.config, &checked);
    for reached in reached.iter().flatten() {
        text.push_str(&reached_text(reached));
    }
    print(&text)?;
    let mut warnings = String::new();
    for handler in &checked {
        if !handler.differs.is_empty() {
            let _ = writeln!(
                warnings,
                "warning: handler `{}` is said to be replayable, but texts of `{}` look like SQL with {}\nhint: take times and numbers \
                 from the message, or leave `replayable` out",
                handler.name,
                handler.component,
                handler.differs.join(", "),
            );
        }
    }
    for reached in reached.iter().flatten() {
        if reached.reach.is_superuser {
            let _ = writeln!(
                warnings,
                "warning: handler `{}` runs its SQL as the superuser `{}`, whom no privilege holds back\nhint: connect as a login of \
                 hapax's own, or set `role` in the handler's table",
                reached.handler, reached.reach.role,
            );
        }
    }
    if checked.is_empty() {
        let _ = writeln!(
            warnings,
            "warning: without a handler there is nothing to run\nhint: {}",
            app::NO_HANDLERS_HINT
        );
    }
    if !warnings.is_empty() {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), warnings.as_bytes());
    }
    Ok(())
}

fn reached_text(checked: &CheckedDatabase) -> String {
    let reach = &checked.reach;
    let mut text = format!("handler `{}` in the database", checked.handler);
    if !reach.role.is_empty() {
        let _ = write!(text, ", as `{}`", one_line(&reach.role));
    }
    text.push('\n');
    if reach.tables.is_empty() {
        text.push_str("  may touch  no table\n");
    }
    for (index, table) in reach.tables.iter().enumerate() {
        let label = if index == 0 { "may touch" } else { "" };
        let _ = writeln!(
            text,
            "  {label:<9}  {}: {}",
            one_line(&table.name),
            table.rights.join(", ")
        );
    }
    for (index, found) in reach.outlives.iter().enumerate() {
        let label = if index == 0 { "beware" } else { "" };
        let _ = writeln!(
            text,
            "  {label:<9}  {} {}: {}",
            found.kind,
            one_line(&found.name),
            one_line(&found.why)
        );
    }
    text
}

fn component_text(handler: &CheckedHandler) -> String {
    let (Some(digest), Some(contract), Some(bytes)) =
        (&handler.digest, &handler.contract, handler.bytes)
    else {
        return "from the store: `hapax handlers list` shows which".to_owned();
    };
    let imports = if handler.imports.is_empty() {
        "none".to_owned()
    } else {
        handler.imports.join(", ")
    };
    let world = match handler.world.map(|world| world.as_str()) {
        Some("batch-handler") => " of batches",
        _ => "",
    };
    format!(
        "{} ({bytes} bytes, contract {contract}{world}, sha256 {})\n  imports    {imports}",
        handler.component,
        digest.get(..12).unwrap_or(digest)
    )
}

fn checked_text(file: &Path, handlers: &[CheckedHandler]) -> String {
    let mut text = String::new();
    for handler in handlers {
        text.push_str(&format!(
            "handler `{}`\n  component  {}\n{}  source     {} ({})\n  \
             consumer   {}\n  message id {}\n{}  limits     memory {}, cpu {:?}, time {:?}, rows {},\n             \
             statements {}, result {}, call {}, table {}, savepoints {}, cursors {}, outbox {}, log {}\n  lanes      {}\n  \
             batch      up to {}, {:?} at the most\n  \
             retry      {}, {:?}..{:?} between them\n  migrations {}\n{}{}",
            handler.name,
            component_text(handler),
            match &handler.targets {
                None => String::new(),
                Some(targets) if targets.is_empty() => {
                    "  targets    none: what it publishes stays in the outbox until there is a table `[targets.NAME]`\n".to_owned()
                }
                Some(targets) => format!("  targets    {}\n", targets.join(", ")),
            },
            handler.source,
            handler.source_kind,
            handler.consumer,
            handler.message_id.join(", "),
            match (&handler.order_by, handler.on_dead) {
                (Some(by), Some(on_dead)) =>
                    format!("  order      by {by}; after a dead letter {on_dead}\n"),
                _ => String::new(),
            },
            size(handler.limits.memory_bytes),
            Duration::from_millis(handler.limits.cpu_ms),
            Duration::from_millis(handler.limits.time_ms),
            handler.limits.rows,
            handler.limits.statements,
            size(handler.limits.result_bytes),
            size(handler.limits.call_bytes),
            handler.limits.table_elements,
            handler.limits.savepoints,
            handler.limits.cursors,
            handler.limits.outbox,
            size(handler.limits.log_bytes),
            handler.lanes,
            count(handler.batch.max as u64, "message"),
            Duration::from_millis(handler.batch.max_hold_ms),
            count(handler.retry.attempts.into(), "attempt"),
            Duration::from_millis(handler.retry.backoff_min_ms),
            Duration::from_millis(handler.retry.backoff_max_ms),
            handler.migrations,
            handler
                .role
                .as_ref()
                .map_or_else(String::new, |role| format!("  role       {role}\n")),
            if handler.allow_ddl {
                "  tables     may be made and dropped by its SQL\n"
            } else {
                ""
            },
        ));
    }
    text.push_str(&format!(
        "`{}` is valid: {}\n",
        file.display(),
        count(handlers.len() as u64, "handler")
    ));
    text
}
