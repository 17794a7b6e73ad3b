//! Processor time, out of `/proc`: of what ran and ended, and of the database server with all its sessions.

use std::fs;

use anyhow::Context as _;

/// Seconds of processor time until now.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cpu {
    /// Of all programs that this one started and that have ended: hapax, the consumers written by hand.
    pub(super) ended: f64,
    /// Of the database server, its ended sessions and its open ones.
    pub(super) database: f64,
}

impl Cpu {
    /// Reads both; `server` is the process that the sessions are children of.
    pub(super) fn now(server: u32) -> anyhow::Result<Self> {
        let own = Stat::read("self")?;
        let mut database = Stat::read(&server.to_string())?.all();
        for entry in fs::read_dir("/proc").context("cannot read `/proc`")? {
            let name = entry.context("cannot read `/proc`")?.file_name();
            let Some(pid) = name.to_str().filter(|name| name.parse::<u32>().is_ok()) else {
                continue;
            };
            // A process may have ended in between; then its time is with its parent.
            if let Ok(stat) = Stat::read(pid)
                && stat.parent == server
            {
                database += stat.all();
            }
        }
        Ok(Self {
            ended: own.children / TICKS_A_SECOND,
            database: database / TICKS_A_SECOND,
        })
    }

    /// Returns what went since `before`.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            ended: self.ended - before.ended,
            database: self.database - before.database,
        }
    }
}

/// `USER_HZ`, by which `/proc` counts: 100 on every architecture that Linux and hapax run on.
const TICKS_A_SECOND: f64 = 100.0;

/// What a process used, in clock ticks.
#[derive(Debug, PartialEq)]
struct Stat {
    parent: u32,
    own: f64,
    /// Of its children that it has waited for, and theirs.
    children: f64,
}

impl Stat {
    fn read(pid: &str) -> anyhow::Result<Self> {
        let file = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read `{file}`"))?;
        Self::parse(&text).with_context(|| format!("`{file}` is not as proc(5) says"))
    }

    /// The program's name, in parentheses, may have any characters; the numbers come after it.
    fn parse(text: &str) -> Option<Self> {
        let (_, rest) = text.rsplit_once(") ")?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // proc(5) counts from 1, and the state, the first of the rest, is number 3.
        let ticks = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        Some(Self {
            parent: fields.get(1)?.parse().ok()?,
            own: ticks(14)? + ticks(15)?,
            children: ticks(16)? + ticks(17)?,
        })
    }

    fn all(&self) -> f64 {
        self.own + self.children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_stand_behind_any_name() {
        let text = "7 (a) b) S 3 7 7 0 -1 4194560 1 2 3 4 10 20 300 400 20 0 1 0 5 6 7";
        assert_eq!(
            Stat::parse(text),
            Some(Stat {
                parent: 3,
                own: 30.0,
                children: 700.0
            })
        );
        assert_eq!(Stat::parse("7 (a"), None);
    }

    #[test]
    fn a_child_that_has_ended_counts() {
        let before = Cpu::now(std::process::id()).unwrap();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let ended = std::process::Command::new("sh")
            .args(["-c", busy])
            .status()
            .unwrap();
        assert!(ended.success());
        let used = Cpu::now(std::process::id()).unwrap().since(before);
        assert!(used.ended > 0.0, "{used:?}");
    }
}
