//! How requests reach whoever runs the handlers: as values, so that nothing is decided in this room.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use futures_util::future::BoxFuture;

/// What is asked of whoever runs the handlers.
#[derive(Clone, Debug)]
pub enum HandlersRequest {
    /// All handlers, as every host has them.
    List,
    /// A handler's deployments.
    History {
        /// As the configuration names it.
        handler: String,
    },
    /// A change for every host.
    Change {
        /// As the configuration names it.
        handler: String,
        /// What is to change.
        change: Change,
        /// Who asks for it.
        by: String,
    },
}

/// What is to change on every host.
#[derive(Clone, Debug)]
pub enum Change {
    /// Another component.
    Deploy {
        /// The whole file.
        component: Bytes,
        /// Files and their texts, if the component brings any.
        migrations: Option<Vec<(String, String)>>,
    },
    /// The component of an earlier deployment: the newest with this digest or start of one, or the one before the active.
    Rollback {
        /// Hexadecimal digits.
        digest: Option<String>,
    },
    /// Messages wait.
    Pause,
    /// They run again.
    Resume,
    /// No component: messages wait until another one is deployed.
    Remove,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What sort of reason it is.
    pub why: Why,
    /// For people: what is wrong.
    pub problem: String,
    /// For people: what to do.
    pub hint: Option<String>,
}

/// The sorts of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// What is asked can't be meant.
    Malformed,
    /// There is no such handler.
    NotThere,
    /// It could be done, but not as things stand.
    Refused,
    /// The component or one of its migrations can't be used.
    Unusable,
    /// The store, or this host, can't answer now.
    Unavailable,
    /// A mistake in hapax.
    Bug,
}

impl Refusal {
    /// Makes one.
    pub fn new(why: Why, problem: impl fmt::Display, hint: impl Into<Option<String>>) -> Self {
        Self {
            why,
            problem: problem.to_string(),
            hint: hint.into(),
        }
    }
}

/// Answers a request, as JSON.
pub type Answer = Result<serde_json::Value, Refusal>;
type Answering = dyn Fn(HandlersRequest) -> BoxFuture<'static, Answer> + Send + Sync;

/// Where requests go. The address is open before the handlers are there; until then requests are refused as unavailable. Cheap to clone.
#[derive(Clone, Default)]
pub struct HandlersDoor(Arc<OnceLock<Box<Answering>>>);

impl HandlersDoor {
    /// From now on `answer` answers; the first call counts.
    pub fn open(
        &self,
        answer: impl Fn(HandlersRequest) -> BoxFuture<'static, Answer> + Send + Sync + 'static,
    ) {
        let _ = self.0.set(Box::new(answer));
    }

    /// Hands a request over.
    pub(in crate::admin) async fn ask(self, request: HandlersRequest) -> Answer {
        match self.0.get() {
            Some(answer) => answer(request).await,
            None => Err(Refusal::new(
                Why::Unavailable,
                "this host is still starting",
                "ask again when `/readyz` says that it is ready".to_owned(),
            )),
        }
    }
}

impl fmt::Debug for HandlersDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlersDoor")
            .field("is_open", &self.0.get().is_some())
            .finish()
    }
}
