//! Where rows of the outbox go.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{TargetConfig, TargetKind};
use crate::message::Header;
use crate::news::News;
use crate::source::jetstream::{Access, NewMessage, PublishFailure, SubjectPublisher};
use crate::store::OutboxMessage;
use crate::text::one_line;

/// The pause after a target could not be reached.
const PAUSE: Duration = Duration::from_secs(1);
/// What carries the content type, as CloudEvents' binding of NATS says.
const CONTENT_TYPE: &str = "Content-Type";
/// The header that the row's id goes into; a handler's own one gives way.
const MESSAGE_ID: &str = "Nats-Msg-Id";

/// A configured target.
pub(super) struct Target {
    name: String,
    kind: Kind,
    state: Mutex<State>,
}

enum Kind {
    Queue {
        queue: String,
    },
    JetStream {
        url: String,
        access: Box<Access>,
        publisher: Option<Box<SubjectPublisher>>,
    },
}

#[derive(Default)]
struct State {
    paused_until: Option<Instant>,
    news: News,
}

/// What became of a row.
pub(super) enum Sent {
    /// Confirmed.
    Published,
    /// To be put into this queue with the mark.
    Queue(String),
    /// The target can't be reached; that is no fault of the row's.
    Unavailable,
    /// The target did not store it, and may do so later.
    Failed(String),
    /// It never can.
    Refused(String),
}

impl Target {
    pub(super) fn new(name: &str, config: &TargetConfig) -> Self {
        Self {
            name: name.to_owned(),
            kind: match &config.kind {
                TargetKind::Queue { queue } => Kind::Queue {
                    queue: queue.clone(),
                },
                TargetKind::JetStream { url, access } => Kind::JetStream {
                    url: url.clone(),
                    access: access.clone(),
                    publisher: None,
                },
            },
            state: Mutex::default(),
        }
    }

    /// Returns its name in the configuration.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns what holds its messages, as traces call it.
    pub(super) fn system(&self) -> &'static str {
        match self.kind {
            Kind::Queue { .. } => "hapax",
            Kind::JetStream { .. } => "nats",
        }
    }

    /// True if rows can be sent to it now.
    pub(super) fn is_open(&self) -> bool {
        match &self.kind {
            Kind::Queue { .. } => true,
            Kind::JetStream { publisher, .. } => {
                publisher
                    .as_ref()
                    .is_some_and(|publisher| publisher.is_connected())
                    && self
                        .lock()
                        .paused_until
                        .is_none_or(|until| until <= Instant::now())
            }
        }
    }

    /// Connects, unless it has done so or tried a moment ago. A connection that is lost later is made again by itself.
    pub(super) async fn connect(&mut self) {
        let Kind::JetStream {
            url,
            access,
            publisher,
        } = &mut self.kind
        else {
            return;
        };
        let state = self
            .state
            .get_mut()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        match publisher {
            Some(publisher) if publisher.is_connected() => {
                if state
                    .paused_until
                    .is_some_and(|until| until <= Instant::now())
                {
                    state.paused_until = None;
                }
                if state.paused_until.is_none() && state.news.is_over() {
                    tracing::info!(target_name = %self.name, "the target can be reached again");
                }
                return;
            }
            Some(_) => {
                if state.news.is_news("the connection is lost") {
                    tracing::warn!(target_name = %self.name, why = "the connection is lost", "the target is away");
                }
                return;
            }
            None => {}
        }
        if state
            .paused_until
            .is_some_and(|until| until > Instant::now())
        {
            return;
        }
        match SubjectPublisher::connect(url, access, "hapax relay").await {
            Ok(connected) => {
                *publisher = Some(Box::new(connected));
                state.paused_until = None;
                if state.news.is_over() {
                    tracing::info!(target_name = %self.name, "the target can be reached again");
                }
            }
            Err(error) => {
                state.paused_until = Some(Instant::now() + PAUSE);
                let why = one_line(&error.to_string());
                if state.news.is_news(&why) {
                    tracing::warn!(target_name = %self.name, %why, "the target is away");
                }
            }
        }
    }

    /// Sends a row and waits for the confirmation.
    pub(super) async fn send(&self, message: OutboxMessage) -> Sent {
        let publisher = match &self.kind {
            Kind::Queue { queue } => return Sent::Queue(queue.clone()),
            Kind::JetStream { publisher, .. } => publisher,
        };
        let (Some(publisher), true) = (publisher, self.is_open()) else {
            return Sent::Unavailable;
        };
        let mut headers = message.headers;
        headers.retain(|header| !header.name.eq_ignore_ascii_case(MESSAGE_ID));
        if let Some(content_type) = message.content_type
            && !headers
                .iter()
                .any(|header| header.name.eq_ignore_ascii_case(CONTENT_TYPE))
        {
            headers.push(Header {
                name: CONTENT_TYPE.to_owned(),
                value: content_type.into(),
            });
        }
        let sent = publisher
            .publish(NewMessage {
                id: Some(message.id),
                subject: message.subject,
                headers,
                payload: message.payload,
            })
            .await;
        match sent {
            Ok(_) => Sent::Published,
            Err(PublishFailure::Unavailable(why)) => {
                let mut state = self.lock();
                state.paused_until = Some(Instant::now() + PAUSE);
                if state.news.is_news(&why) {
                    tracing::warn!(target_name = %self.name, why = %one_line(&why), "the target is away");
                }
                Sent::Unavailable
            }
            Err(PublishFailure::NotStored(why)) => Sent::Failed(why),
            Err(PublishFailure::Refused(why)) => Sent::Refused(why),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics with the lock held, and each change is whole.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
