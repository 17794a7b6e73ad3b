//! How much is in work at once, so that messages are not slowed down by those who ask.
//!
//! **Invariant**: work on the database runs in a task of its own, to its end, also when nobody waits for it any more: no query is dropped
//! halfway. It has a session of its own, and rests longer than it worked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::ApiError;
use crate::exit::CommandError;

/// Requests of the API in work at once; others wait.
const API_REQUESTS_MAX: usize = 64;
/// And those for health and metrics, which are answered from memory.
const OTHER_REQUESTS_MAX: usize = 16;
/// How long a request waits for its turn.
const TURN_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long it waits for a session.
const SESSION_WAIT_MAX: Duration = Duration::from_secs(10);
/// Work rests for this many times what it took, before the next of its sort begins.
const REST: u32 = 19;
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(2);

/// A sort of work on the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Looks something up.
    Read,
    /// Changes something.
    Change,
    /// May take minutes: pruning, and compiling components.
    Long,
    /// Takes a component, and compiles it.
    Deployment,
}

impl Work {
    /// How long the answer is waited for; the work itself goes on.
    fn answer_max(self) -> Duration {
        match self {
            Self::Read | Self::Change => Duration::from_secs(45),
            Self::Long | Self::Deployment => super::routes::LONG_TIME - Duration::from_secs(15),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Read => "too many requests that read the database",
            Self::Change => "too many requests that change something",
            Self::Long => "requests that take long",
            Self::Deployment => "other deployments",
        }
    }
}

/// The bounds of one admin address.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    api: Arc<Semaphore>,
    others: Arc<Semaphore>,
    reads: Arc<Semaphore>,
    changes: Arc<Semaphore>,
    long: Arc<Semaphore>,
    deployments: Arc<Semaphore>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            api: Arc::new(Semaphore::new(API_REQUESTS_MAX)),
            others: Arc::new(Semaphore::new(OTHER_REQUESTS_MAX)),
            reads: Arc::new(Semaphore::new(2)),
            changes: Arc::new(Semaphore::new(1)),
            long: Arc::new(Semaphore::new(1)),
            deployments: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Bounds {
    /// Waits for the turn of a request.
    pub(super) async fn turn(&self, path: &str) -> Result<OwnedSemaphorePermit, ApiError> {
        let (room, what) = if path.starts_with("/api/") {
            (&self.api, "too many requests")
        } else {
            (&self.others, "too many requests for health and metrics")
        };
        permit(room, TURN_WAIT_MAX, what).await
    }

    /// Does `work` when it is its turn, and answers with its result.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        sort: Work,
        work: impl Future<Output = Result<T, CommandError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let permit = self.session(sort).await?;
        self.work_with(permit, sort, work).await
    }

    /// As `work`, for those who have waited for their turn already.
    pub(super) async fn work_with<T: Send + 'static, E: Into<ApiError> + Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        sort: Work,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (done, is_done) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            let began = Instant::now();
            // An error means that nobody waits any more.
            let _ = done.send(work.await);
            rest(began.elapsed(), permit).await;
        });
        match tokio::time::timeout(sort.answer_max(), is_done).await {
            Ok(Ok(result)) => result.map_err(Into::into),
            // It panicked.
            Ok(Err(_)) => Err(ApiError::bug()),
            Err(_) => Err(ApiError::new(
                StatusCode::GATEWAY_TIMEOUT,
                "timeout",
                format!("it is not done after {:?}, and goes on", sort.answer_max()),
                Some("look with `GET` what has become of it"),
            )),
        }
    }

    /// Waits for the right to a session.
    pub(super) async fn session(&self, sort: Work) -> Result<OwnedSemaphorePermit, ApiError> {
        let room = match sort {
            Work::Read => &self.reads,
            Work::Change => &self.changes,
            Work::Long => &self.long,
            Work::Deployment => &self.deployments,
        };
        permit(room, SESSION_WAIT_MAX, sort.as_str()).await
    }
}

/// Gives the right to a session back after a rest.
pub(super) async fn rest(took: Duration, permit: OwnedSemaphorePermit) {
    tokio::time::sleep((took * REST).min(REST_MAX)).await;
    drop(permit);
}

async fn permit(
    room: &Arc<Semaphore>,
    time: Duration,
    what: &str,
) -> Result<OwnedSemaphorePermit, ApiError> {
    match tokio::time::timeout(time, Arc::clone(room).acquire_owned()).await {
        Ok(Ok(permit)) => Ok(permit),
        // Nobody closes it; in time there was no room.
        Ok(Err(_)) | Err(_) => Err(ApiError::busy(what)),
    }
}
