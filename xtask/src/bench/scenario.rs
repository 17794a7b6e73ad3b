//! What is measured: one load on one pair of store and source, with one setting of hapax.
//!
//! **Invariant**: a scenario that others are compared with comes before them.

use super::database::StoreKind;
use super::messages::{Keys, Load};

/// Where messages come from, and where their effects go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    PgJetstream,
    PgQueue,
    SqliteQueue,
}

impl Place {
    fn as_str(self) -> &'static str {
        match self {
            Self::PgJetstream => "pg-jetstream",
            Self::PgQueue => "pg-queue",
            Self::SqliteQueue => "sqlite-queue",
        }
    }

    pub(super) fn store(self) -> StoreKind {
        match self {
            Self::PgJetstream | Self::PgQueue => StoreKind::Postgres,
            Self::SqliteQueue => StoreKind::Sqlite,
        }
    }

    /// Whether messages stand in a table of the store.
    pub(super) fn is_queue(self) -> bool {
        self != Self::PgJetstream
    }
}

/// What is done for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Work {
    /// One `execute`.
    Execute,
    /// A `query`, a decision, two `execute`s.
    ReadWrite,
    /// One `execute` for all messages of a batch.
    Batch,
}

/// Claims of earlier messages.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Claims {
    pub(super) count: u32,
    /// Half of them are older than the window.
    pub(super) half_is_old: bool,
}

/// How hapax runs, beside its defaults.
#[derive(Clone, Debug, Default)]
pub(super) struct Setting {
    /// Lines of the handler's table.
    pub(super) handler: String,
    /// Every statement is awaited.
    pub(super) is_awaited: bool,
    /// Handlers on the stream beside the first one, each with a table of its own.
    pub(super) more_handlers: usize,
    /// Processes beside the first one.
    pub(super) more_hosts: usize,
    /// Claims that are there before.
    pub(super) claims: Claims,
    /// All messages were processed before, and come again.
    pub(super) again: bool,
    /// The handler's statements run as `ROLE`.
    pub(super) role: bool,
    /// Beside a handler of so many messages that never end by themselves.
    pub(super) loops: u32,
    /// So many ask at the admin address at once.
    pub(super) asked: u32,
    /// With the build to compare with.
    pub(super) is_baseline: bool,
}

/// What a scenario is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// The consumers written by hand and the ceilings, on the same messages.
    ByHand,
    /// Another scenario, of this name.
    With(String),
    /// The consumer written by hand, one message at a time: what counts is how long each takes.
    OneAtATime,
}

/// One line of the table.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) work: Work,
    pub(super) load: Load,
    pub(super) setting: Setting,
    pub(super) compared: Compared,
    /// Not run unless it is named.
    pub(super) on_request: bool,
}

/// Few enough accounts that messages in work meet on them.
pub(super) const USUAL: Load = Load {
    keys: Keys::Uniform(1_000),
    rejects: 0,
};
/// What most others are compared with.
const FIRST: &str = "pg-jetstream/execute";
/// A loop is stopped after 200 ms; meanwhile no more than so many other messages are processed.
const MESSAGES_A_LOOP: u32 = 400;
/// Batch sizes, lanes and sizes of the claims table that are drawn in the plot.
pub(super) const BATCH_SIZES: [u32; 6] = [1, 10, 50, 100, 200, 500];
pub(super) const LANES: [u32; 4] = [1, 2, 4, 8];
pub(super) const ROWS: [u32; 4] = [0, 100_000, 300_000, 1_000_000];

fn keys(keys: Keys) -> Load {
    Load { keys, ..USUAL }
}

fn rejects(of_a_thousand: u32) -> Load {
    Load {
        rejects: of_a_thousand,
        ..USUAL
    }
}

fn handler(lines: impl Into<String>) -> Setting {
    Setting {
        handler: lines.into(),
        ..Setting::default()
    }
}

fn by_hand(place: Place, name: &str, work: Work, load: Load, setting: Setting) -> Scenario {
    Scenario {
        name: format!("{}/{name}", place.as_str()),
        place,
        work,
        load,
        setting,
        compared: Compared::ByHand,
        on_request: false,
    }
}

fn with(place: Place, name: &str, base: &str, load: Load, setting: Setting) -> Scenario {
    Scenario {
        compared: Compared::With(base.to_owned()),
        ..by_hand(place, name, Work::Execute, load, setting)
    }
}

fn on_request(scenario: Scenario) -> Scenario {
    Scenario {
        on_request: true,
        ..scenario
    }
}

fn full(count: u32, half_is_old: bool, more_hosts: usize) -> Setting {
    Setting {
        claims: Claims { count, half_is_old },
        more_hosts,
        ..handler("dedup = \"14d\"")
    }
}

/// Returns every scenario. `claims` is how many a full table holds, `messages` how many are sent.
pub(super) fn all(claims: u32, messages: u32) -> Vec<Scenario> {
    let mut all = Vec::new();
    for place in [Place::PgJetstream, Place::PgQueue, Place::SqliteQueue] {
        let one = |name, work, setting| by_hand(place, name, work, USUAL, setting);
        all.push(one("execute", Work::Execute, Setting::default()));
        if place.store() == StoreKind::Postgres {
            let awaited = Setting {
                is_awaited: true,
                ..Setting::default()
            };
            all.push(one("execute-awaited", Work::Execute, awaited));
        }
        all.push(one("read-write", Work::ReadWrite, Setting::default()));
        // As many as its statement serves well.
        all.push(one(
            "batch-handler",
            Work::Batch,
            handler("batch = { max = 500 }"),
        ));
        let again = Setting {
            again: true,
            ..Setting::default()
        };
        all.push(one("duplicates", Work::Execute, again));
    }
    let place = Place::PgJetstream;
    for (name, load) in [
        ("execute-100k", keys(Keys::Uniform(100_000))),
        ("execute-zipf", keys(Keys::Zipf(100_000))),
        ("execute-hot", keys(Keys::OneHot)),
    ] {
        all.push(by_hand(
            place,
            name,
            Work::Execute,
            load,
            Setting::default(),
        ));
    }
    all.push(Scenario {
        compared: Compared::OneAtATime,
        ..by_hand(
            place,
            "one-at-a-time",
            Work::Execute,
            USUAL,
            Setting::default(),
        )
    });
    let first = |name: &str, load, setting| with(place, name, FIRST, load, setting);
    all.push(first("rejects-0.1", rejects(1), Setting::default()));
    all.push(first("rejects-1", rejects(10), Setting::default()));
    all.push(on_request(first(
        "rejects-5",
        rejects(50),
        Setting::default(),
    )));
    all.push(first(
        "handlers-4",
        USUAL,
        Setting {
            more_handlers: 3,
            ..Setting::default()
        },
    ));
    all.push(first(
        "hosts-2",
        USUAL,
        Setting {
            more_hosts: 1,
            ..Setting::default()
        },
    ));
    all.push(first("claims", USUAL, full(claims, false, 0)));
    all.push(with(
        Place::SqliteQueue,
        "claims",
        "sqlite-queue/execute",
        USUAL,
        full(claims, false, 0),
    ));
    all.extend(others(claims, messages).into_iter().map(on_request));
    all.extend(drawn().into_iter().map(on_request));
    all
}

/// What is measured when it is asked for: what the guarantees and the doors cost.
fn others(claims: u32, messages: u32) -> Vec<Scenario> {
    let place = Place::PgJetstream;
    let like = |name: &str, base: &str, setting| {
        let base = format!("{}/{base}", place.as_str());
        with(place, name, &base, USUAL, setting)
    };
    let role = |lines: &str| Setting {
        role: true,
        ..handler(lines)
    };
    let baseline = |lines: &str| Setting {
        is_baseline: true,
        ..handler(lines)
    };
    let single = "batch = { max = 1 }";
    vec![
        like("claims-pruned", "claims", full(claims, true, 0)),
        like("claims-hosts-4", "execute", full(claims, false, 3)),
        like(
            "claims-hosts-4-pruned",
            "claims-hosts-4",
            full(claims, true, 3),
        ),
        with(
            Place::SqliteQueue,
            "claims-pruned",
            "sqlite-queue/claims",
            USUAL,
            full(claims, true, 0),
        ),
        like("single", "execute", handler(single)),
        like("role", "execute", role("")),
        like("role-single", "single", role(single)),
        like(
            "loops",
            "execute",
            Setting {
                loops: (messages / MESSAGES_A_LOOP).max(10),
                ..Setting::default()
            },
        ),
        like(
            "asked-1000",
            "execute",
            Setting {
                asked: 1_000,
                ..Setting::default()
            },
        ),
        like("other-build", "execute", baseline("")),
        like("other-build-single", "single", baseline(single)),
    ]
}

/// What the plot shows.
fn drawn() -> Vec<Scenario> {
    let first = |name: String, setting| with(Place::PgJetstream, &name, FIRST, USUAL, setting);
    let mut drawn = Vec::new();
    for size in BATCH_SIZES {
        let setting = handler(format!("batch = {{ max = {size} }}"));
        drawn.push(first(format!("batch-max-{size}"), setting));
    }
    for lanes in LANES {
        drawn.push(first(
            format!("lanes-{lanes}"),
            handler(format!("lanes = {lanes}")),
        ));
    }
    for rows in ROWS {
        drawn.push(first(format!("rows-{rows}"), full(rows, false, 0)));
    }
    drawn
}

/// Returns the names, each on a line, with those that run only on request marked so.
pub(super) fn names(all: &[Scenario]) -> String {
    all.iter()
        .map(|one| {
            let note = if one.on_request { " (on request)" } else { "" };
            format!("{}{note}\n", one.name)
        })
        .collect()
}

/// True if the plot shows the scenario.
pub(super) fn is_drawn(scenario: &Scenario) -> bool {
    drawn().iter().any(|drawn| drawn.name == scenario.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_once_and_each_base_comes_before() {
        let all = all(1, 1_000);
        for (index, scenario) in all.iter().enumerate() {
            let before: Vec<&str> = all[..index].iter().map(|one| one.name.as_str()).collect();
            assert!(!before.contains(&&*scenario.name), "{}", scenario.name);
            if let Compared::With(base) = &scenario.compared {
                assert!(before.contains(&&**base), "{}", scenario.name);
            }
        }
    }
}
