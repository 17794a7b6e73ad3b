//! `hapax rewind`: a handler reads its stream again from an earlier message.
//!
//! **Invariant**: never further back than claims reach, unless that is what is wanted.

use serde::Serialize;

use super::reconcile::{self, Trouble};
use super::{connect_and_migrate, handler_named, jetstream_options, open_store};
use crate::config::{Config, Dedup, HandlerConfig, Late, SourceKind};
use crate::exit::{Cause, CommandError, Exit};
use crate::message::Instant;
use crate::source::jetstream::{Acknowledged, RewindPlan, RewindTo, Rewinder};
use crate::store::{Connection, instant_to_text};
use crate::text::span;

/// A rewind that was looked up and may be done.
pub struct Rewind {
    rewinder: Rewinder,
    handler: HandlerConfig,
    acknowledged: Acknowledged,
    connection: Connection,
    plan: RewindPlan,
    told: RewindTold,
}

/// What a rewind does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RewindTold {
    /// The handler.
    pub handler: String,
    /// Where its durable will begin.
    pub sequence: u64,
    /// How many messages it will read from there on.
    pub messages: u64,
    /// When the first of them was published.
    pub first_published_at: Option<String>,
    /// What is to be expected of it besides, a sentence each.
    pub warnings: Vec<String>,
}

impl Rewind {
    /// Looks up what it would do.
    ///
    /// # Errors
    /// A source that keeps nothing; a place that is not there; one that lies before the window, unless `force` is set.
    pub async fn look_up(
        config: &Config,
        name: &str,
        to: RewindTo,
        force: bool,
    ) -> Result<Self, CommandError> {
        let handler = handler_named(config, name)?;
        let stream = match config
            .sources
            .get(&handler.source)
            .map(|source| &source.kind)
        {
            Some(SourceKind::JetStream(stream)) => stream,
            _ => {
                return Err(CommandError::new(
                    Exit::CommandLine,
                    format!(
                        "handler `{name}` can't be rewound: source `{}` is a queue, which keeps no message that is done",
                        handler.source
                    ),
                    Some(
                        "its rows are in the same database as the effects, so a restore brings both back; `hapax dead-letters \
                         replay` runs dead letters again",
                    ),
                ));
            }
        };
        let failed = |error| CommandError::source(&handler.source, &error);
        let options = jetstream_options(stream, handler);
        let rewinder = Rewinder::connect(&options).await.map_err(failed)?;
        let plan = rewinder.plan(to).await.map_err(failed)?;
        let acknowledged = Acknowledged::connect(&options).await.map_err(failed)?;
        let store = open_store(config)?;
        let mut connection = connect_and_migrate(&store, "rewind")
            .await
            .map_err(|error| CommandError::store("cannot read the store", &error))?;
        let shown = plan
            .first_published_at
            .and_then(|at| instant_to_text(at, 9_999).ok());
        let mut warnings = reach(&mut connection, handler, &plan, shown.as_deref(), force).await?;
        let before = plan.sequence.saturating_sub(1);
        let lost = reconcile::unreconciled(&mut connection, handler, &acknowledged, before)
            .await
            .map_err(|trouble| failed_at(handler, &trouble))?;
        if let Some(lost) = lost {
            warnings.push(format!(
                "{} messages before it have no effect in this database either, from number {} on: they stay without one",
                lost.messages, lost.first_sequence
            ));
        }
        Ok(Self {
            rewinder,
            handler: handler.clone(),
            acknowledged,
            connection,
            told: RewindTold {
                handler: name.to_owned(),
                sequence: plan.sequence,
                messages: plan.messages,
                first_published_at: shown,
                warnings,
            },
            plan,
        })
    }

    /// Returns what it does.
    pub fn told(&self) -> &RewindTold {
        &self.told
    }

    /// Does it.
    ///
    /// # Errors
    /// If it could not be finished; then it is to be done again.
    pub async fn apply(&mut self) -> Result<(), CommandError> {
        const AGAIN: &str =
            "the durable may be gone or stand elsewhere: run the same command again to finish it";
        self.rewinder
            .rewind(self.plan.sequence)
            .await
            .map_err(|error| CommandError::source(&self.handler.source, &error).after(AGAIN))?;
        reconcile::begin_at(
            &mut self.connection,
            &self.handler,
            &self.acknowledged,
            self.plan.sequence,
        )
        .await
        .map_err(|trouble| failed_at(&self.handler, &trouble).after(AGAIN))
    }
}

fn failed_at(handler: &HandlerConfig, trouble: &Trouble) -> CommandError {
    match trouble {
        Trouble::Source(error) => CommandError::source(&handler.source, error),
        Trouble::Store(error) => CommandError::store("cannot read the store", error),
    }
}

/// Refuses what claims don't cover. Returns what is to be expected if it is forced.
async fn reach(
    connection: &mut Connection,
    handler: &HandlerConfig,
    plan: &RewindPlan,
    first: Option<&str>,
    force: bool,
) -> Result<Vec<String>, CommandError> {
    let name = &handler.name;
    let (Some(first_at), Some(first)) = (plan.first_published_at, first) else {
        return Ok(Vec::new());
    };
    let problem = match handler.dedup {
        Dedup::Claims => return Ok(Vec::new()),
        Dedup::Off => format!(
            "with `dedup = \"off\"` each of the {} messages that it reads again takes effect again",
            plan.messages
        ),
        Dedup::Window(window) => {
            let now = connection
                .now()
                .await
                .map_err(|error| CommandError::store("cannot read the store", &error))?;
            let edge = now.before(window);
            if (first_at.seconds, first_at.nanoseconds) >= (edge.seconds, edge.nanoseconds) {
                return Ok(Vec::new());
            }
            let fate = match handler.late {
                Late::Park => "becomes a dead letter of class `too-old`",
                Late::Run => "takes effect again (`late = \"run\"`)",
            };
            format!(
                "message {} was published at {first}, and claims are kept for {}: what is older and has no claim any more {fate}",
                plan.sequence,
                span(window)
            )
        }
    };
    if force {
        return Ok(vec![problem]);
    }
    Err(CommandError::new(
        Exit::Failed,
        format!("handler `{name}` is not rewound: {problem}"),
        Some("rewind to a later message, or say `--force`"),
    )
    .because(Cause::Refused))
}

/// Reads a place in a stream: a message's number, or a time.
///
/// # Errors
/// How either is written.
pub fn place(text: &str) -> Result<RewindTo, String> {
    if let Ok(sequence) = text.parse() {
        return Ok(RewindTo::Sequence(sequence));
    }
    match time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339) {
        Ok(time) => Ok(RewindTo::Time(Instant {
            seconds: time.unix_timestamp(),
            nanoseconds: time.nanosecond(),
        })),
        Err(_) => Err("write a message's number, or a time such as `2026-01-31T00:00:00Z`".into()),
    }
}
