//! Which of many equal log lines are worth writing.

use std::time::{Duration, Instant};

/// How often an unchanged reason is told.
const TOLD_EVERY: Duration = Duration::from_secs(30);

/// Something that lasts, and what was last told of it.
#[derive(Debug, Default)]
pub(crate) struct News(Option<(Instant, String)>);

impl News {
    /// True if `why` is news: the first reason, another one, or one that was told a while ago.
    pub(crate) fn is_news(&mut self, why: &str) -> bool {
        if let Some((told, before)) = &self.0
            && before == why
            && told.elapsed() < TOLD_EVERY
        {
            return false;
        }
        self.0 = Some((Instant::now(), why.to_owned()));
        true
    }

    /// Ends it. True if there was something to end.
    pub(crate) fn is_over(&mut self) -> bool {
        self.0.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_when_it_begins_and_when_it_changes() {
        let mut news = News::default();
        assert!(!news.is_over());
        assert!(news.is_news("refused"));
        assert!(!news.is_news("refused"));
        assert!(news.is_news("starting up"));
        assert!(news.is_news("refused"));
        if let Some((told, _)) = &mut news.0 {
            *told = told.checked_sub(TOLD_EVERY).unwrap();
        }
        assert!(news.is_news("refused"));
        assert!(news.is_over());
        assert!(news.is_news("refused"));
    }
}
