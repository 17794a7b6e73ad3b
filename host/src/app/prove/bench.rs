//! Runs messages through the handler in a database that is made for the run, and breaks the run where a plan says so.
//!
//! **Invariant**: the store, the claims, the guard, the handler's room and the pipeline are those of a host. Only the source is made
//! here, so that a plan decides what is delivered when, and waits are left out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::project::Project;
use super::snapshot::{self, HELD, Snapshot};
use crate::app::prepare::migrate_handler;
use crate::app::run::{checked_runtime, open_cache};
use crate::app::supervisor::room_for;
use crate::app::{check, connect_and_migrate, own_session};
use crate::config::{ComponentPlace, HandlerConfig, Late};
use crate::exit::{CommandError, Exit};
use crate::handler::{Break, Handler, How, Place, Runtime, Watch, WatchedRun};
use crate::pipeline::{ByHand, HandlerContext, NotDone, Suspects};
use crate::source::{self, Answer, BoxFuture, Delivery, SourceError};
use crate::store::{Scratch, Store, StoreError, StoreKind, Table};

/// How much longer than a call may take a delivery may take, before the database counts as silent.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// What is delivered, and where it is broken.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// Batches of messages, each by its place in the project.
    pub(super) batches: Vec<Vec<usize>>,
    /// In their order, for each message.
    pub(super) breaks: Vec<PlannedBreak>,
    /// One failed run more is charged than the handler's own.
    pub(super) charges: bool,
}

/// Where the run of a message is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlannedBreak {
    pub(super) message: usize,
    pub(super) at: BreakAt,
}

/// The place, and what happens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BreakAt {
    /// It fails before the handler is called, and is charged.
    Charged,
    /// The transaction is rolled back at the host call with this number, from 1.
    RolledBack(usize),
    /// The transaction is rolled back when the handler has returned.
    RolledBackAtEnd,
    /// The host dies when the handler has returned, before the commit.
    DiedBeforeCommit,
    /// The host dies after the commit, before the source hears of it.
    DiedAfterCommit,
}

/// What came of a plan.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) snapshot: Snapshot,
    /// In their order.
    pub(super) runs: Vec<WatchedRun>,
    /// How many deliveries there were.
    pub(super) deliveries: u64,
    /// How many of the breaks took place.
    pub(super) broken: u64,
}

/// Compiles the handler's file.
async fn load(runtime: &Runtime, project: &Project) -> Result<Handler, CommandError> {
    let (handler, targets) = (&project.handler, &project.config.targets);
    let ComponentPlace::File(path) = &handler.component else {
        return Err(CommandError::new(
            Exit::Configuration,
            format!(
                "handler `{}`: its component is in the store, and a test runs a file",
                handler.name
            ),
            Some("write `component = \"FILE\"` into the `hapax.toml` of the test"),
        ));
    };
    let loaded = check::load(runtime, handler, path, targets).await;
    loaded.map_err(|error| CommandError::component(&handler.name, &error))
}

/// All that runs need.
pub(super) struct Bench {
    pub(super) kind: StoreKind,
    pub(super) tables: Vec<Table>,
    config: HandlerConfig,
    handler: Handler,
    watch: Arc<Watch>,
    scratch: Scratch,
    suspects: Arc<Suspects>,
    /// How many runs there were.
    pub(super) runs: u64,
}

impl Bench {
    /// Compiles the handler and makes the database ready that each run begins with.
    pub(super) async fn make(project: &Project, scratch: Scratch) -> Result<Self, MakeError> {
        let watch = Arc::new(Watch::default());
        let made = async {
            let runtime =
                checked_runtime(&room_for([&project.handler]), open_cache(&project.config)).await?;
            let handler = load(&runtime, project).await?;
            let original = scratch.original();
            let failed = |error| CommandError::store("the database of the test", &error);
            let mut connection = connect_and_migrate(&original, "test")
                .await
                .map_err(failed)?;
            migrate_handler(&mut connection, original.kind(), &project.handler).await?;
            let tables = connection.catalogue().await.map_err(failed)?;
            Ok((handler, original.kind(), tables))
        };
        let (handler, kind, tables) = match made.await {
            Ok(made) => made,
            Err(error) => return Err(MakeError { error, scratch }),
        };
        let mut config = project.handler.clone();
        // Messages are as old as the file says, and nobody waits for a retry here.
        config.late = Late::Run;
        config.retry.backoff_min = Duration::ZERO;
        config.retry.backoff_max = Duration::ZERO;
        Ok(Self {
            kind,
            tables,
            config,
            handler: handler.watched_by(Arc::clone(&watch)),
            watch,
            scratch,
            suspects: Arc::new(Suspects::new("test")),
            runs: 0,
        })
    }

    /// True if the handler takes the messages of a transaction in one call.
    pub(super) fn takes_batches(&self) -> bool {
        self.handler.takes_batches()
    }

    /// Gives the databases back, to be removed.
    pub(super) fn into_scratch(self) -> Scratch {
        self.scratch
    }

    /// Runs a plan in a fresh database.
    ///
    /// # Errors
    /// What kept it from its end: the database, mostly.
    pub(super) async fn run(
        &mut self,
        project: &Project,
        plan: &Plan,
    ) -> Result<Ran, CommandError> {
        let failed = |error: StoreError| CommandError::store("the database of the test", &error);
        let store = Arc::new(self.scratch.copy().await.map_err(failed)?);
        self.runs += 1;
        let mut run = Run::new(self, project, plan, Arc::clone(&store));
        let ended = run.take_all().await;
        let (runs, deliveries, held) = (std::mem::take(&mut run.runs), run.deliveries, run.held);
        let left = self.watch.disarm().len() + run.dying.len();
        let broken = run.planned.saturating_sub(left) as u64;
        ended?;
        let connection = store.connect(&own_session("test")).await.map_err(failed)?;
        let mut snapshot = snapshot::read(connection, &self.tables, &self.config.consumer)
            .await
            .map_err(failed)?;
        snapshot.tables.insert(
            HELD.to_owned(),
            held.into_iter()
                .filter_map(|index| project.messages.get(index))
                .map(|message| snapshot::row([("id", message.shown().into())]))
                .collect(),
        );
        Ok(Ran {
            snapshot,
            runs,
            deliveries,
            broken,
        })
    }
}

/// Why there is no bench, and what is to be removed.
pub(super) struct MakeError {
    pub(super) error: CommandError,
    pub(super) scratch: Scratch,
}

/// One run of a plan.
struct Run<'a> {
    bench: &'a Bench,
    project: &'a Project,
    store: Arc<Store>,
    attempts_more: u32,
    queue: VecDeque<Vec<usize>>,
    /// How many breaks can take place.
    planned: usize,
    /// Messages whose next answer is the last thing that its host does.
    dying: BTreeSet<usize>,
    held: BTreeSet<usize>,
    runs: Vec<WatchedRun>,
    deliveries: u64,
}

impl<'a> Run<'a> {
    fn new(bench: &'a Bench, project: &'a Project, plan: &Plan, store: Arc<Store>) -> Self {
        let mut dying = BTreeSet::new();
        let mut breaks = Vec::new();
        for planned in &plan.breaks {
            let (at, how) = match planned.at {
                BreakAt::Charged => (Place::Begin, How::Charge),
                BreakAt::RolledBack(number) => (Place::Call(number), How::RollBack),
                BreakAt::RolledBackAtEnd => (Place::End, How::RollBack),
                BreakAt::DiedBeforeCommit => (Place::End, How::Die),
                BreakAt::DiedAfterCommit => {
                    dying.insert(planned.message);
                    continue;
                }
            };
            if let Some(id) = project
                .messages
                .get(planned.message)
                .and_then(|message| message.id.clone())
            {
                breaks.push(Break {
                    message: id,
                    at,
                    how,
                });
            }
        }
        bench.watch.disarm();
        bench.watch.take_runs();
        let planned = breaks.len() + dying.len();
        bench.watch.arm(breaks);
        Self {
            bench,
            project,
            store,
            attempts_more: u32::from(plan.charges),
            queue: plan.batches.iter().cloned().collect(),
            planned,
            dying,
            held: BTreeSet::new(),
            runs: Vec::new(),
            deliveries: 0,
        }
    }

    /// A host's own: made anew after each death.
    fn lane(&self) -> ByHand {
        let mut config = self.bench.config.clone();
        config.retry.attempts += self.attempts_more;
        ByHand::new(Arc::new(HandlerContext::new(
            config,
            self.bench.handler.clone(),
            Arc::clone(&self.store),
            Arc::clone(&self.bench.suspects),
        )))
    }

    async fn take_all(&mut self) -> Result<(), CommandError> {
        let watch = Arc::clone(&self.bench.watch);
        let patience = self.bench.config.limits.time + SILENCE_MAX;
        let mut lane = self.lane();
        while let Some(batch) = self.queue.pop_front() {
            let deliveries: Vec<Delivery> = batch
                .iter()
                .filter_map(|index| self.delivery(*index))
                .collect();
            self.deliveries += deliveries.len() as u64;
            let taken = tokio::select! {
                biased;
                taken = tokio::time::timeout(patience, Box::pin(lane.take(deliveries))) => Some(taken),
                // What is dropped here is what a host loses that dies.
                () = watch.died() => None,
            };
            let runs = watch.take_runs();
            let has_run = !runs.is_empty();
            self.runs.extend(runs);
            match taken {
                None => {
                    lane = self.lane();
                    for index in &batch {
                        self.dying.remove(index);
                    }
                    self.queue.push_front(batch);
                }
                Some(Ok(not_done)) => self.again(&batch, not_done, has_run),
                Some(Err(_)) => {
                    return Err(CommandError::new(
                        Exit::Failed,
                        format!("a delivery was not done within {patience:?}"),
                        Some("look whether the database answers"),
                    ));
                }
            }
        }
        Ok(())
    }

    /// Puts what is not done where it comes again: with `order_by` before all others, else behind them.
    fn again(&mut self, batch: &[usize], not_done: NotDone, has_run: bool) {
        let mut indexes: Vec<usize> = not_done
            .retries
            .iter()
            .chain(&not_done.behind)
            .filter_map(|delivery| usize::try_from(delivery.place.number).ok())
            .collect();
        if self.bench.config.order.is_none() {
            self.queue
                .extend(indexes.into_iter().map(|index| vec![index]));
            return;
        }
        indexes.sort_by_key(|index| batch.iter().position(|other| other == index));
        if !has_run && batch.len() == 1 {
            // Nothing that could come would let it run.
            self.held.extend(indexes);
            return;
        }
        for index in indexes.into_iter().rev() {
            self.queue.push_front(vec![index]);
        }
    }

    fn delivery(&self, index: usize) -> Option<Delivery> {
        let message = self.project.messages.get(index)?;
        let answer = Answered {
            dies: self
                .dying
                .contains(&index)
                .then(|| Arc::clone(&self.bench.watch)),
        };
        let place = source::Place {
            generation: 0,
            number: index as u64,
        };
        let incoming = (*message.incoming).clone();
        Some(Delivery::new(incoming, 1, 1, None, place, Box::new(answer)))
    }
}

/// The means to answer for a delivery: nobody has to hear it.
struct Answered {
    /// The host dies before it has answered.
    dies: Option<Arc<Watch>>,
}

impl Answered {
    fn answer(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        Box::pin(async move {
            if let Some(watch) = self.dies {
                watch.die().await;
            }
            Ok(())
        })
    }
}

impl Answer for Answered {
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        self.answer()
    }

    fn term(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        self.answer()
    }

    fn nak(self: Box<Self>, _delay: Duration) -> BoxFuture<'static, Result<(), SourceError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn let_go(self: Box<Self>) {}
}

/// Returns how many host calls the run of each message had that came to its end, the most of them.
pub(super) fn calls_of(project: &Project, runs: &[WatchedRun]) -> Vec<usize> {
    let mut most: BTreeMap<&str, usize> = BTreeMap::new();
    for run in runs {
        let calls = most.entry(run.message.as_str()).or_default();
        *calls = run.calls.len().max(*calls);
    }
    project
        .messages
        .iter()
        .map(|message| {
            let id = message.id.as_ref().map(|id| id.as_str());
            id.and_then(|id| most.get(id)).copied().unwrap_or(0)
        })
        .collect()
}
