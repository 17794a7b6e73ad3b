//! The pipelines that run: how many, and whether one has died.
//!
//! **Invariant**: who counts as running is told apart from who has ended by a guard, so that a panic counts, too.

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::pipeline::{self, HandlerContext, Stop};
use crate::source::Source;

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    running: usize,
    has_died: bool,
    is_draining: bool,
}

/// Knows of every pipeline of the process whether it runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Running(watch::Sender<Count>);

/// Counts as running until it is dropped.
#[derive(Debug)]
pub(super) struct Guard {
    count: watch::Sender<Count>,
    has_died: bool,
}

impl Guard {
    /// What it stands for did not end as it should.
    fn died(&mut self) {
        self.has_died = true;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a pipeline died");
        }
        self.count.send_modify(|count| {
            count.running -= 1;
            count.has_died |= self.has_died || std::thread::panicking();
        });
    }
}

/// One handler's pipeline.
#[derive(Debug)]
pub(super) struct Pipeline {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Pipeline {
    /// Tells it to take no more.
    pub(super) fn drain(&self) {
        let _ = self.stop.send(true);
    }

    /// Waits until what it had in hand is finished or given back.
    pub(super) async fn ended(self) {
        // A panic is counted by its guard.
        let _ = self.task.await;
    }
}

impl Running {
    /// Returns a guard for one more.
    pub(super) fn one_more(&self) -> Guard {
        self.0.send_modify(|count| count.running += 1);
        Guard {
            count: self.0.clone(),
            has_died: false,
        }
    }

    /// Starts a pipeline.
    pub(super) fn start(
        &self,
        handler: Arc<HandlerContext>,
        source: Box<dyn Source>,
        when: Stop,
    ) -> Pipeline {
        let (stop, stopped) = watch::channel(false);
        let mut guard = self.one_more();
        let task = tokio::spawn(async move {
            // As a whole, or only its number would move in here, and the guard be dropped at once.
            if pipeline::run(handler, source, when, stopped).await.is_err() {
                guard.died();
            }
        });
        Pipeline { stop, task }
    }

    /// Says that no pipeline follows those that end from now on.
    pub(super) fn draining(&self) {
        self.0.send_modify(|count| count.is_draining = true);
    }

    /// Waits until one has died.
    pub(super) async fn death(&self) {
        // The sender is here.
        let _ = self.0.subscribe().wait_for(|count| count.has_died).await;
    }

    /// Waits until none runs and none follows; `until_idle` says that those that end by themselves are followed by none.
    pub(super) async fn end(&self, until_idle: bool) {
        let _ = self
            .0
            .subscribe()
            .wait_for(|count| count.running == 0 && (until_idle || count.is_draining))
            .await;
    }

    /// True if one has died.
    pub(super) fn has_died(&self) -> bool {
        self.0.borrow().has_died
    }
}
