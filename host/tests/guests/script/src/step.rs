//! The steps as they are written in the payload.

use std::collections::BTreeMap;

use hapax_guest::Instant;
use serde::Deserialize;

use crate::tagged::Tagged;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Script {
    pub(crate) steps: Vec<Step>,
}

/// One step: exactly one action, and what goes with it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Step {
    // Actions that can fail.
    pub(crate) execute: Option<String>,
    pub(crate) execute_many: Option<String>,
    pub(crate) query: Option<String>,
    pub(crate) cursor: Option<String>,
    pub(crate) open_cursor: Option<OpenCursor>,
    pub(crate) fetch_cursor: Option<String>,
    pub(crate) count_cursor: Option<String>,
    pub(crate) drop_cursor: Option<String>,
    pub(crate) sum_cursor: Option<String>,
    pub(crate) savepoint: Option<SavepointEnd>,
    pub(crate) begin_savepoint: Option<String>,
    pub(crate) release_savepoint: Option<String>,
    pub(crate) roll_back_savepoint: Option<String>,
    pub(crate) drop_savepoint: Option<String>,
    pub(crate) publish: Option<Publish>,
    pub(crate) config: Option<String>,
    pub(crate) config_names: Option<bool>,
    // Other actions.
    pub(crate) log: Option<Log>,
    pub(crate) record_message: Option<Record>,
    pub(crate) reject: Option<Text>,
    pub(crate) retry: Option<Retry>,
    pub(crate) panic: Option<Text>,
    pub(crate) unreachable: Option<bool>,
    pub(crate) r#loop: Option<bool>,
    pub(crate) recurse: Option<bool>,
    pub(crate) busy: Option<u64>,
    pub(crate) alloc: Option<u64>,
    pub(crate) repeat: Option<u64>,
    pub(crate) if_attempt_below: Option<u32>,
    pub(crate) if_config: Option<String>,

    // What goes with them.
    pub(crate) params: Vec<Tagged>,
    pub(crate) rows: Vec<Vec<Tagged>>,
    pub(crate) fetch: Option<u32>,
    pub(crate) fetches: Option<u64>,
    pub(crate) steps: Vec<Step>,
    pub(crate) expect_count: Option<u64>,
    pub(crate) expect_counts: Option<Vec<u64>>,
    pub(crate) expect_rows: Option<Vec<Vec<Tagged>>>,
    pub(crate) expect_columns: Option<Vec<String>>,
    pub(crate) expect_text: Option<String>,
    pub(crate) expect_error: Option<String>,
    pub(crate) swallow: bool,
    pub(crate) on_error: OnError,
    pub(crate) record: Option<Record>,
}

/// What a step does.
pub(crate) enum Action<'a> {
    Execute(&'a str),
    ExecuteMany(&'a str),
    Query(&'a str),
    Cursor(&'a str),
    OpenCursor(&'a OpenCursor),
    FetchCursor(&'a str),
    CountCursor(&'a str),
    DropCursor(&'a str),
    SumCursor(&'a str),
    Savepoint(SavepointEnd),
    BeginSavepoint(&'a str),
    ReleaseSavepoint(&'a str),
    RollBackSavepoint(&'a str),
    DropSavepoint(&'a str),
    Publish(&'a Publish),
    Config(&'a str),
    ConfigNames,
    Log(&'a Log),
    RecordMessage(&'a Record),
    Reject(&'a Text),
    Retry(&'a Retry),
    Panic(&'a Text),
    Unreachable,
    Loop,
    Recurse,
    Busy(u64),
    Alloc(u64),
    Repeat(u64),
    IfAttemptBelow(u32),
    IfConfig(&'a str),
}

impl Step {
    /// Returns the step's action, or `None` if it has none or more than one.
    pub(crate) fn action(&self) -> Option<Action<'_>> {
        let yes = |flag: Option<bool>| flag.filter(|flag| *flag);
        let mut actions = [
            self.execute.as_deref().map(Action::Execute),
            self.execute_many.as_deref().map(Action::ExecuteMany),
            self.query.as_deref().map(Action::Query),
            self.cursor.as_deref().map(Action::Cursor),
            self.open_cursor.as_ref().map(Action::OpenCursor),
            self.fetch_cursor.as_deref().map(Action::FetchCursor),
            self.count_cursor.as_deref().map(Action::CountCursor),
            self.drop_cursor.as_deref().map(Action::DropCursor),
            self.sum_cursor.as_deref().map(Action::SumCursor),
            self.savepoint.map(Action::Savepoint),
            self.begin_savepoint.as_deref().map(Action::BeginSavepoint),
            self.release_savepoint
                .as_deref()
                .map(Action::ReleaseSavepoint),
            self.roll_back_savepoint
                .as_deref()
                .map(Action::RollBackSavepoint),
            self.drop_savepoint.as_deref().map(Action::DropSavepoint),
            self.publish.as_ref().map(Action::Publish),
            self.config.as_deref().map(Action::Config),
            yes(self.config_names).map(|_| Action::ConfigNames),
            self.log.as_ref().map(Action::Log),
            self.record_message.as_ref().map(Action::RecordMessage),
            self.reject.as_ref().map(Action::Reject),
            self.retry.as_ref().map(Action::Retry),
            self.panic.as_ref().map(Action::Panic),
            yes(self.unreachable).map(|_| Action::Unreachable),
            yes(self.r#loop).map(|_| Action::Loop),
            yes(self.recurse).map(|_| Action::Recurse),
            self.busy.map(Action::Busy),
            self.alloc.map(Action::Alloc),
            self.repeat.map(Action::Repeat),
            self.if_attempt_below.map(Action::IfAttemptBelow),
            self.if_config.as_deref().map(Action::IfConfig),
        ]
        .into_iter()
        .flatten();
        let first = actions.next();
        if actions.next().is_some() {
            return None;
        }
        first
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OnError {
    #[default]
    Retry,
    Reject,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SavepointEnd {
    Release,
    Rollback,
    /// Dropped while open: the host rolls back to it.
    Drop,
    /// Never dropped, as a language without scoped destruction may do.
    Leak,
    /// The steps are the work of the SDK's closure form: kept if they succeed, undone if one of them ends the handler.
    Closure,
}

/// Where a result goes: a row of a table with the columns `key` and `value`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    pub(crate) table: String,
    pub(crate) key: String,
}

/// A cursor to keep under a name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenCursor {
    pub(crate) name: String,
    pub(crate) statement: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Publish {
    pub(crate) target: Option<String>,
    pub(crate) subject: String,
    pub(crate) key: Option<String>,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) content_type: Option<String>,
    pub(crate) payload: Text,
    pub(crate) payload_hex: Option<String>,
    pub(crate) not_before: Option<Moment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Moment {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

impl From<Moment> for Instant {
    fn from(moment: Moment) -> Self {
        Self {
            seconds: moment.seconds,
            nanoseconds: moment.nanoseconds,
        }
    }
}

impl From<Instant> for Moment {
    fn from(instant: Instant) -> Self {
        Self {
            seconds: instant.seconds,
            nanoseconds: instant.nanoseconds,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Log {
    #[serde(default)]
    pub(crate) level: Level,
    pub(crate) message: Text,
    #[serde(default)]
    pub(crate) fields: BTreeMap<String, String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Level {
    Trace,
    Debug,
    #[default]
    Info,
    Warn,
    Error,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retry {
    pub(crate) reason: Text,
    pub(crate) delay_ms: Option<u64>,
}

/// A text as it is, or one repeated: `"x"` or `{"repeat": "x", "times": 1000000}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Text(pub(crate) String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Repeated {
    repeat: String,
    times: usize,
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(text)),
            other => {
                let repeated: Repeated =
                    serde_json::from_value(other).map_err(serde::de::Error::custom)?;
                Ok(Self(repeated.repeat.repeat(repeated.times)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_read_and_typing_errors_are_not() {
        let script: Script = serde_json::from_str(
            r#"{"steps": [
                {"execute": "INSERT INTO t VALUES ($1)", "params": [{"int64": 5}], "expect_count": 1},
                {"savepoint": "rollback", "steps": [{"loop": true}]},
                {"reject": {"repeat": "ab", "times": 2}}
            ]}"#,
        )
        .unwrap();
        assert_eq!(script.steps[0].expect_count, Some(1));
        assert_eq!(script.steps[1].savepoint, Some(SavepointEnd::Rollback));
        assert_eq!(script.steps[2].reject, Some(Text("abab".to_owned())));
        assert!(serde_json::from_str::<Script>(r#"{"steps": [{"exekute": "x"}]}"#).is_err());
        let two: Step = serde_json::from_str(r#"{"busy": 1, "alloc": 1}"#).unwrap();
        assert!(two.action().is_none());
        assert!(Step::default().action().is_none());
    }
}
