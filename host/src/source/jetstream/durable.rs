//! The durable pull consumer: made if it is missing, checked if it is there.

use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, PriorityPolicy};
use async_nats::jetstream::stream::{self, StorageType};
use serde_json::json;

use super::connect::{Link, covers};
use super::{JetStreamOptions, Start};
use crate::source::SourceError;

/// What the server uses when a durable names no ack wait.
const ACK_WAIT_SERVER_DEFAULT: Duration = Duration::from_secs(30);
/// What the server uses when a durable names no priority timeout.
const PRIORITY_TIMEOUT_SERVER_DEFAULT: Duration = Duration::from_secs(120);
/// The priority group through which one host at a time is served.
pub(super) const GROUP: &str = "hapax";
/// How many deliveries a new durable lets be unanswered, over all hosts together, at least.
const MAX_ACK_PENDING_MIN: usize = 1000;
/// How many hosts with full hands a new durable has room for.
const HOSTS_EXPECTED: usize = 16;

/// A stream and its durable, as they were found or made.
#[derive(Clone, Debug)]
pub(super) struct Opened {
    /// Goes before the sequence number in a position: the stream's name and creation time.
    pub(super) position_prefix: String,
    /// After this long without an answer or a sign of progress the server delivers again.
    pub(super) ack_wait: Duration,
    /// The most that one pull may ask for.
    pub(super) batch_max: usize,
    /// The longest that one pull may wait.
    pub(super) expires_max: Duration,
    /// How long a host stays the one that is served when it asks for nothing.
    pub(super) priority_timeout: Duration,
    /// When the durable was made, in nanoseconds: one that was made anew counts from 1 again.
    pub(super) made: i128,
    /// How it differs from the options, a sentence each.
    pub(super) drift: Vec<String>,
    /// For how long a message may come again.
    pub(super) reach: Reach,
}

/// For how long a stream can deliver a message again, or take it a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// How long the stream keeps a message; `None` for ever.
    pub max_age: Option<Duration>,
    /// After this long without an answer the server delivers again.
    pub ack_wait: Duration,
    /// For this long the stream drops a second message with the same `Nats-Msg-Id`.
    pub duplicate_window: Duration,
}

/// Finds or makes the stream and the durable. `before` is what was found earlier in this process.
///
/// # Errors
/// `Unusable` if the durable would lose messages, or is gone and cannot be made anew without losing some.
pub(super) async fn open(
    link: &Link,
    options: &JetStreamOptions,
    before: Option<&Opened>,
) -> Result<Opened, SourceError> {
    let stream = link
        .stream(&options.stream, &options.subjects, options.create)
        .await?;
    let position_prefix = position_prefix(&options.stream, &stream);
    let mut drift = stream_drift(options, &stream);
    let info = match info(link, options).await? {
        Some(info) => info,
        None => {
            if let Some(before) = before {
                // On the same stream `new` would now skip what was published since the durable went away.
                if options.start == Start::New && before.position_prefix == position_prefix {
                    return Err(SourceError::Unusable(format!(
                        "durable `{}` of stream `{}` was deleted while it was in use, and starting at new messages \
                         would skip some\nhint: set `start` to a time before it was deleted, and start again",
                        options.consumer, options.stream
                    )));
                }
                tracing::warn!(
                    stream = %options.stream,
                    consumer = %options.consumer,
                    "the durable is gone; making it anew"
                );
            }
            create(link, options).await?
        }
    };
    check(options, &info)?;
    drift.extend(durable_drift(options, &info));
    let config = &info.config;
    let named = match config.ack_wait {
        Duration::ZERO => ACK_WAIT_SERVER_DEFAULT,
        ack_wait => ack_wait,
    };
    let ack_wait = config.backoff.iter().copied().fold(named, Duration::min);
    let max_age = stream.config.max_age;
    Ok(Opened {
        made: info.created.unix_timestamp_nanos(),
        reach: Reach {
            max_age: (max_age > Duration::ZERO).then_some(max_age),
            ack_wait,
            duplicate_window: stream.config.duplicate_window,
        },
        position_prefix,
        ack_wait,
        batch_max: usize::try_from(config.max_batch)
            .ok()
            .filter(|max| *max > 0)
            .unwrap_or(usize::MAX),
        expires_max: match config.max_expires {
            Duration::ZERO => Duration::MAX,
            expires => expires,
        },
        priority_timeout: match config.priority_timeout {
            Duration::ZERO => PRIORITY_TIMEOUT_SERVER_DEFAULT,
            timeout => timeout,
        },
        drift,
    })
}

/// Returns what the server knows of the durable, `None` if it does not exist.
pub(super) async fn info(
    link: &Link,
    options: &JetStreamOptions,
) -> Result<Option<consumer::Info>, SourceError> {
    let subject = format!("CONSUMER.INFO.{}.{}", options.stream, options.consumer);
    match link.ask::<consumer::Info>(&subject, &json!({})).await? {
        Ok(info) => Ok(Some(info)),
        Err(error)
            if matches!(
                error.error_code(),
                ErrorCode::CONSUMER_NOT_FOUND | ErrorCode::STREAM_NOT_FOUND
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(link.refused(&format!("durable `{}`", options.consumer), &error)),
    }
}

/// Returns how many messages are not delivered yet, or delivered and not answered.
pub(super) fn backlog_of(info: &consumer::Info) -> u64 {
    info.num_pending.saturating_add(info.num_ack_pending as u64)
}

/// Returns how many messages a durable that does not exist yet would have before it.
pub(super) async fn backlog_before_start(
    link: &Link,
    options: &JetStreamOptions,
) -> Result<u64, SourceError> {
    match link.stream_info(&options.stream).await? {
        None if options.create => return Ok(0),
        None => {
            // Says what is missing, in the same words as `open`.
            link.stream(&options.stream, &options.subjects, false)
                .await?;
        }
        Some(info) if options.start == Start::All && options.subjects.is_empty() => {
            return Ok(info.state.messages);
        }
        Some(_) => {}
    }
    match options.start {
        Start::New => Ok(0),
        Start::All => {
            let mut count = 0_u64;
            // The server counts for each subject; filters of one consumer never overlap.
            for filter in &options.subjects {
                let mut offset = 0_usize;
                loop {
                    let subject = format!("STREAM.INFO.{}", options.stream);
                    let body = json!({ "subjects_filter": filter, "offset": offset });
                    let info = match link.ask::<SubjectCounts>(&subject, &body).await? {
                        Ok(info) => info,
                        Err(error) => {
                            return Err(
                                link.refused(&format!("stream `{}`", options.stream), &error)
                            );
                        }
                    };
                    let page = info.state.subjects.unwrap_or_default();
                    offset += page.len();
                    count = page.values().fold(count, |sum, n| sum.saturating_add(*n));
                    if page.is_empty() || offset >= info.total.unwrap_or(0) {
                        break;
                    }
                }
            }
            Ok(count)
        }
        Start::Time(_) => Err(SourceError::Unavailable(format!(
            "the backlog is not known before durable `{}` is made by `hapax run`",
            options.consumer
        ))),
    }
}

#[derive(serde::Deserialize)]
struct SubjectCounts {
    state: SubjectCountsState,
    total: Option<usize>,
}

#[derive(serde::Deserialize)]
struct SubjectCountsState {
    subjects: Option<std::collections::HashMap<String, u64>>,
}

/// The creation time is part of it, since a stream that is made anew counts from 1 again. To the nanosecond: within
/// one second it can be deleted and made anew.
pub(super) fn position_prefix(name: &str, stream: &stream::Info) -> String {
    format!(
        "{name}@{}.{:09}",
        stream.created.unix_timestamp(),
        stream.created.nanosecond()
    )
}

/// Returns where a durable of these options begins.
fn deliver_policy(options: &JetStreamOptions) -> Result<DeliverPolicy, SourceError> {
    Ok(match options.start {
        Start::All => DeliverPolicy::All,
        Start::New => DeliverPolicy::New,
        Start::Time(instant) => {
            let nanoseconds =
                i128::from(instant.seconds) * 1_000_000_000 + i128::from(instant.nanoseconds);
            let start_time = async_nats::datetime::from_nanos(nanoseconds).map_err(|_| {
                SourceError::Unusable(format!(
                    "`start` of consumer `{}` is out of range",
                    options.consumer
                ))
            })?;
            DeliverPolicy::ByStartTime { start_time }
        }
    })
}

async fn create(link: &Link, options: &JetStreamOptions) -> Result<consumer::Info, SourceError> {
    let config = new_config(options)?;
    let refusal = match ask_for(link, options, &config).await? {
        Ok(info) => return Ok(info),
        Err(error) => error,
    };
    // Another host may have been faster: what counts is what is there now.
    match info(link, options).await? {
        Some(info) => Ok(info),
        None => Err(link.refused(
            &format!(
                "creating durable `{}` on stream `{}`",
                options.consumer, options.stream
            ),
            &refusal,
        )),
    }
}

/// Asks the server to make the durable; its refusal is `Err` inside.
pub(super) async fn ask_for(
    link: &Link,
    options: &JetStreamOptions,
    config: &consumer::Config,
) -> Result<Result<consumer::Info, async_nats::jetstream::Error>, SourceError> {
    let subject = format!("CONSUMER.CREATE.{}.{}", options.stream, options.consumer);
    let body = json!({ "stream_name": options.stream, "config": config, "action": "create" });
    link.ask::<consumer::Info>(&subject, &body).await
}

/// Returns what a new durable is made from.
pub(super) fn new_config(options: &JetStreamOptions) -> Result<consumer::Config, SourceError> {
    let deliver_policy = deliver_policy(options)?;
    let max_ack_pending = MAX_ACK_PENDING_MIN.max(options.in_hand_max * HOSTS_EXPECTED);
    let mut config = consumer::Config {
        name: Some(options.consumer.clone()),
        durable_name: Some(options.consumer.clone()),
        deliver_policy,
        ack_policy: AckPolicy::Explicit,
        ack_wait: options.ack_wait,
        max_deliver: -1,
        max_ack_pending: i64::try_from(max_ack_pending).unwrap_or(i64::MAX),
        filter_subjects: options.subjects.clone(),
        ..consumer::Config::default()
    };
    if options.in_order {
        config.priority_policy = PriorityPolicy::PinnedClient;
        config.priority_groups = vec![GROUP.to_owned()];
        // What a dead host had in hand takes as long to come again.
        config.priority_timeout = options.ack_wait;
    }
    Ok(config)
}

/// Refuses a durable with which messages would be lost or damaged.
pub(super) fn check(options: &JetStreamOptions, info: &consumer::Info) -> Result<(), SourceError> {
    let config = &info.config;
    let problem = if config.deliver_subject.is_some() {
        "is a push consumer, and hapax pulls".to_owned()
    } else if config.ack_policy != AckPolicy::Explicit {
        let policy = match config.ack_policy {
            AckPolicy::None => "none",
            AckPolicy::All => "all",
            _ => "another",
        };
        format!(
            "has the ack policy `{policy}`, with which messages that were not processed count as done"
        )
    } else if config.max_deliver > 0 {
        format!(
            "has max_deliver = {}, after which the server drops a message that was not processed",
            config.max_deliver
        )
    } else if config.headers_only {
        "delivers headers without payloads (headers_only)".to_owned()
    } else if options.in_order {
        return check_group(options, config);
    } else if !config.priority_groups.is_empty() {
        "has priority groups, which hapax uses only with `order_by`".to_owned()
    } else {
        return Ok(());
    };
    Err(SourceError::Unusable(format!(
        "durable `{}` of stream `{}` {problem}\nhint: change it to a pull consumer with explicit acks and max_deliver \
         -1, or name another with `consumer`",
        options.consumer, options.stream
    )))
}

/// Refuses a durable that serves several hosts at a time: no order can be kept then.
fn check_group(options: &JetStreamOptions, config: &consumer::Config) -> Result<(), SourceError> {
    if config.priority_policy == PriorityPolicy::PinnedClient && config.priority_groups == [GROUP] {
        return Ok(());
    }
    Err(SourceError::Unusable(format!(
        "durable `{}` of stream `{}` serves several hosts at a time, so `order_by` can't be kept: it lacks the priority group \
         `{GROUP}` with the policy `pinned_client` (nats-server 2.11 or newer)\nhint: stop all hosts, and give it this group; or \
         delete it when nothing waits for it: it is made anew with the next start",
        options.consumer, options.stream
    )))
}

fn stream_drift(options: &JetStreamOptions, stream: &stream::Info) -> Vec<String> {
    let subjects = &stream.config.subjects;
    let mut drift = Vec::new();
    for wanted in &options.subjects {
        // Mirrors and pure aggregates have no subjects of their own.
        let takes = subjects
            .iter()
            .any(|subject| covers(subject, wanted) || covers(wanted, subject));
        if !takes && !subjects.is_empty() {
            drift.push(format!(
                "stream `{}` does not take `{wanted}`: its subjects are {}",
                options.stream,
                quoted(subjects)
            ));
        }
    }
    if stream.config.storage == StorageType::Memory {
        drift.push(format!(
            "stream `{}` is kept in memory: a restart of the server loses what was not processed yet",
            options.stream
        ));
    }
    drift
}

/// Says how a durable that can be used differs from the options.
fn durable_drift(options: &JetStreamOptions, info: &consumer::Info) -> Vec<String> {
    let config = &info.config;
    let name = &options.consumer;
    let mut drift = Vec::new();
    let mut filters = config.filter_subjects.clone();
    if !config.filter_subject.is_empty() {
        filters.push(config.filter_subject.clone());
    }
    let mut wanted = options.subjects.clone();
    filters.sort();
    wanted.sort();
    wanted.dedup();
    if filters != wanted {
        drift.push(format!(
            "durable `{name}` has the filter {}, the configuration {}",
            quoted(&filters),
            quoted(&wanted)
        ));
    }
    if config.ack_wait != Duration::ZERO && config.ack_wait != options.ack_wait {
        drift.push(format!(
            "durable `{name}` has the ack wait {:?}, the configuration {:?}",
            config.ack_wait, options.ack_wait
        ));
    }
    let begins = |policy: &DeliverPolicy| match policy {
        DeliverPolicy::All => "the first message".to_owned(),
        DeliverPolicy::New => "new messages".to_owned(),
        DeliverPolicy::ByStartTime { start_time } => format!("messages of {start_time}"),
        DeliverPolicy::ByStartSequence { start_sequence } => format!("sequence {start_sequence}"),
        DeliverPolicy::Last | DeliverPolicy::LastPerSubject => "the last message".to_owned(),
    };
    // Once something was delivered it does not count any more where it began. The stream's sequence says nothing of that: a durable that
    // begins at new messages counts those before it as delivered.
    if info.delivered.consumer_sequence == 0
        && let Ok(wanted) = deliver_policy(options)
        && begins(&wanted) != begins(&config.deliver_policy)
    {
        drift.push(format!(
            "durable `{name}` begins at {}, the configuration at {}",
            begins(&config.deliver_policy),
            begins(&wanted)
        ));
    }
    if config.max_ack_pending > 0
        && usize::try_from(config.max_ack_pending).is_ok_and(|max| max < options.in_hand_max)
    {
        drift.push(format!(
            "durable `{name}` has max_ack_pending = {}, fewer than the {} that one host may have in hand",
            config.max_ack_pending, options.in_hand_max
        ));
    }
    if config.inactive_threshold != Duration::ZERO {
        drift.push(format!(
            "durable `{name}` is deleted when nobody uses it for {:?}",
            config.inactive_threshold
        ));
    }
    if config.memory_storage {
        drift.push(format!(
            "durable `{name}` is kept in memory: after a restart of the server it begins again"
        ));
    }
    drift
}

fn quoted(subjects: &[String]) -> String {
    if subjects.is_empty() {
        return "none".to_owned();
    }
    let quoted: Vec<String> = subjects
        .iter()
        .map(|subject| format!("`{subject}`"))
        .collect();
    quoted.join(", ")
}
