//! A handler's configured source and the queue of what hapax carries for it, as one source.
//!
//! **Invariant**: what is carried takes part of what is in hand, so that it can't keep the configured source waiting; and it has
//! every second turn, so that it is not kept waiting itself.
//! **Invariant**: a side that can't be reached pauses by itself; the other goes on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant as Moment;

use super::{Answer, BoxFuture, Delivery, Source, SourceError};
use crate::health::Part;
use crate::metrics::InHand;
use crate::news::News;
use crate::text::{one_line, split_hint};

/// The part of a handler's deliveries in hand that may be carried ones.
const CARRIED_PART: usize = 4;
/// The pause after a side could not be reached.
const SIDE_PAUSE: Duration = Duration::from_millis(500);

/// Two sources as one.
pub struct Merged {
    handler: String,
    main: Side,
    carried: Side,
    /// How many carried deliveries more may be in hand.
    room: Arc<Semaphore>,
    /// Which side is looked at first.
    carried_first: bool,
    is_closed: bool,
    in_hand: InHand,
}

struct Side {
    source: Box<dyn Source>,
    paused_until: Option<Moment>,
    news: News,
}

impl Side {
    fn new(source: Box<dyn Source>) -> Self {
        Self {
            source,
            paused_until: None,
            news: News::default(),
        }
    }

    /// As `Source::next`, after the pause.
    async fn next(&mut self, max: usize) -> Result<Vec<Delivery>, SourceError> {
        if let Some(until) = self.paused_until {
            tokio::time::sleep_until(until).await;
            self.paused_until = None;
        }
        self.source.next(max).await
    }
}

enum Came {
    Main(Result<Vec<Delivery>, SourceError>),
    Carried(Result<Vec<Delivery>, SourceError>),
}

impl Merged {
    /// Puts the two together for a handler that has at most `in_hand_max` deliveries in hand.
    pub fn new(
        handler: &str,
        main: Box<dyn Source>,
        carried: Box<dyn Source>,
        in_hand_max: usize,
    ) -> Self {
        let room = (in_hand_max / CARRIED_PART).clamp(1, Semaphore::MAX_PERMITS);
        Self {
            handler: handler.to_owned(),
            main: Side::new(main),
            carried: Side::new(carried),
            room: Arc::new(Semaphore::new(room)),
            carried_first: true,
            is_closed: false,
            in_hand: InHand::of(handler),
        }
    }

    async fn came(&mut self, max: usize) -> Came {
        let Self {
            main,
            carried,
            room,
            ..
        } = self;
        let carried = async {
            // Given back at once: only this task takes permits, so as many are there when the deliveries come.
            let Ok(permit) = room.acquire().await else {
                return std::future::pending().await;
            };
            drop(permit);
            carried.next(max.min(room.available_permits())).await
        };
        // Dropping either `next` loses nothing: what came is kept for its next call.
        if self.carried_first {
            tokio::select! {
                biased;
                came = carried => Came::Carried(came),
                came = main.next(max) => Came::Main(came),
            }
        } else {
            tokio::select! {
                biased;
                came = main.next(max) => Came::Main(came),
                came = carried => Came::Carried(came),
            }
        }
    }

    /// Counts carried deliveries until they are answered or dropped.
    fn counted(&self, deliveries: Vec<Delivery>) -> Vec<Delivery> {
        deliveries
            .into_iter()
            .map(|delivery| {
                // There is one for each; a delivery without would only not be counted.
                let permit = Arc::clone(&self.room).try_acquire_owned().ok();
                delivery.answered_through(|answer| {
                    Box::new(Counted {
                        answer,
                        _permit: permit,
                    })
                })
            })
            .collect()
    }
}

impl Merged {
    /// Counts what is handed over as in hand.
    fn in_hand(&self, deliveries: Vec<Delivery>) -> Vec<Delivery> {
        let counted = deliveries
            .into_iter()
            .map(|delivery| delivery.counted_as(self.in_hand.one_more()));
        counted.collect()
    }
}

impl Source for Merged {
    fn next(&mut self, max: usize) -> BoxFuture<'_, Result<Vec<Delivery>, SourceError>> {
        Box::pin(async move {
            loop {
                if self.is_closed {
                    return Err(SourceError::Unusable("the source was closed".into()));
                }
                match self.came(max).await {
                    Came::Main(Ok(deliveries)) => {
                        self.carried_first = true;
                        if self.main.news.is_over() {
                            tracing::info!(handler = %self.handler, "the source delivers again");
                        }
                        return Ok(self.in_hand(deliveries));
                    }
                    Came::Carried(Ok(deliveries)) => {
                        self.carried_first = false;
                        let deliveries = self.counted(deliveries);
                        return Ok(self.in_hand(deliveries));
                    }
                    Came::Main(Err(error)) => {
                        let handler = &self.handler;
                        match &error {
                            SourceError::Unavailable(why) if self.main.news.is_news(why) => {
                                let (why, hint) = split_hint(why);
                                tracing::warn!(%handler, why = %one_line(why), hint, "the source cannot be reached");
                            }
                            SourceError::Unusable(why) if self.main.news.is_news(why) => {
                                let (why, hint) = split_hint(why);
                                tracing::error!(%handler, why = %one_line(why), hint, "the source cannot be used");
                            }
                            SourceError::Unavailable(_) | SourceError::Unusable(_) => {}
                        }
                        self.main.paused_until = Some(Moment::now() + SIDE_PAUSE);
                    }
                    Came::Carried(Err(error)) => {
                        // The lanes tell of a database that can't be reached.
                        let (handler, why) = (&self.handler, one_line(&error.to_string()));
                        tracing::debug!(%handler, %why, "what is carried cannot be read");
                        self.carried.paused_until = Some(Moment::now() + SIDE_PAUSE);
                    }
                }
            }
        })
    }

    fn backlog(&mut self) -> BoxFuture<'_, Result<u64, SourceError>> {
        Box::pin(async {
            let carried = self.carried.source.backlog().await?;
            Ok(carried + self.main.source.backlog().await?)
        })
    }

    /// The queue of what is carried reports through its own.
    fn report_to(&mut self, part: Part) {
        self.main.source.report_to(part);
    }

    fn stop(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.main.source.stop().await;
            self.carried.source.stop().await;
        })
    }

    fn close(&mut self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.is_closed = true;
            self.main.source.close().await;
            self.carried.source.close().await;
        })
    }
}

/// The means to answer for a carried delivery; gives its room back with the answer, or when it is dropped.
struct Counted {
    answer: Box<dyn Answer>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Answer for Counted {
    fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        self.answer.ack()
    }

    fn term(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
        self.answer.term()
    }

    fn nak(self: Box<Self>, delay: Duration) -> BoxFuture<'static, Result<(), SourceError>> {
        self.answer.nak(delay)
    }

    fn let_go(self: Box<Self>) {
        self.answer.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Incoming, Position};
    use crate::source::Place;

    /// Has a delivery whenever it is asked.
    struct Endless(&'static str);

    impl Source for Endless {
        fn next(&mut self, _max: usize) -> BoxFuture<'_, Result<Vec<Delivery>, SourceError>> {
            let incoming = Incoming {
                subject: self.0.into(),
                headers: Vec::new(),
                content_type: None,
                payload: Default::default(),
                published_at: None,
                position: Position("1".into()),
                queue_id: None,
            };
            let delivery = Delivery::new(incoming, 1, 1, None, Place::default(), Box::new(Silent));
            Box::pin(std::future::ready(Ok(vec![delivery])))
        }

        fn backlog(&mut self) -> BoxFuture<'_, Result<u64, SourceError>> {
            Box::pin(std::future::ready(Ok(1)))
        }
    }

    struct Silent;

    impl Answer for Silent {
        fn ack(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn term(self: Box<Self>) -> BoxFuture<'static, Result<(), SourceError>> {
            self.ack()
        }

        fn nak(self: Box<Self>, _: Duration) -> BoxFuture<'static, Result<(), SourceError>> {
            self.ack()
        }

        fn let_go(self: Box<Self>) {}
    }

    fn merged(in_hand_max: usize) -> Merged {
        Merged::new(
            "h",
            Box::new(Endless("main")),
            Box::new(Endless("carried")),
            in_hand_max,
        )
    }

    #[tokio::test]
    async fn while_both_have_more_each_side_has_every_second_turn() {
        let mut source = merged(1_000);
        let mut came = Vec::new();
        for _ in 0..6 {
            for delivery in source.next(1).await.unwrap() {
                came.push(delivery.incoming.subject.clone());
            }
        }
        let turn = ["carried", "main"];
        assert_eq!(came, [turn, turn, turn].concat());
    }

    #[tokio::test]
    async fn what_is_carried_takes_part_of_the_hand_until_it_is_answered() {
        let mut source = merged(2 * CARRIED_PART);
        let mut held = Vec::new();
        for _ in 0..10 {
            held.extend(source.next(1).await.unwrap());
        }
        let is_carried = |delivery: &Delivery| delivery.incoming.subject == "carried";
        assert_eq!(held.iter().filter(|one| is_carried(one)).count(), 2);
        held.retain(|delivery| !is_carried(delivery));
        assert!(is_carried(&source.next(1).await.unwrap()[0]));
    }
}
