//! What is shown of handlers and their deployments, and which of them a rollback means.

use std::time::Duration;

use super::{DIGEST_DIGITS_MIN, Deployments, of_store};
use crate::admin::{
    HandlerHistory, HandlersList, HistoryLine, ListedHandler, ListedHost, Refusal, Why,
};
use crate::config::ComponentPlace;
use crate::store::{Deployment, SeenHostHandler, WantedState, instant_to_text};

/// A host that said nothing for longer is taken for gone.
const HOST_GONE_AFTER: Duration = Duration::from_secs(15);
/// The last year that is shown.
const YEAR_MAX: i64 = 294_275;

impl Deployments {
    pub(super) async fn list(&self) -> Result<HandlersList, Refusal> {
        let mut connection = self.connect().await?;
        let states = connection.wanted_states().await;
        let states = states.map_err(|error| of_store(&error))?;
        let hosts = connection.host_handlers().await;
        let hosts = hosts.map_err(|error| of_store(&error))?;
        let config = self.supervisor.config();
        let handlers = config
            .handlers
            .values()
            .map(|handler| {
                let none = WantedState::default();
                let state = states.iter().find(|state| state.handler == handler.name);
                let state = state.unwrap_or(&none);
                let (owner, file) = match &handler.component {
                    ComponentPlace::Store => ("store", None),
                    ComponentPlace::File(path) => ("file", Some(path.display().to_string())),
                };
                ListedHandler {
                    name: handler.name.clone(),
                    consumer: handler.consumer.clone(),
                    owner: owner.to_owned(),
                    file,
                    deployment: state.active.map(|(number, _)| number),
                    digest: state.active.map(|(_, digest)| digest.to_string()),
                    paused: state.is_paused,
                    generation: state.generation,
                    hosts: hosts
                        .iter()
                        .filter(|seen| {
                            seen.row.handler == handler.name && seen.age <= HOST_GONE_AFTER
                        })
                        .map(listed_host)
                        .collect(),
                }
            })
            .collect();
        Ok(HandlersList {
            host: self.process.clone(),
            handlers,
        })
    }

    pub(super) async fn history(&self, name: &str) -> Result<HandlerHistory, Refusal> {
        let handler = self.handler(name)?;
        let mut connection = self.connect().await?;
        let deployments = connection.deployments(&handler.name).await;
        let deployments = deployments.map_err(|error| of_store(&error))?;
        Ok(HandlerHistory {
            handler: handler.name,
            deployments: deployments.iter().map(history_line).collect(),
        })
    }
}

fn listed_host(seen: &SeenHostHandler) -> ListedHost {
    ListedHost {
        host: seen.host.clone(),
        state: seen.row.state.clone(),
        digest: seen.row.digest.map(|digest| digest.to_string()),
        generation: seen.row.generation,
        error: seen.row.error.clone(),
        seen_ms: u64::try_from(seen.age.as_millis()).unwrap_or(u64::MAX),
    }
}

fn history_line(one: &Deployment) -> HistoryLine {
    HistoryLine {
        number: one.number,
        digest: one.digest.to_string(),
        bytes: one.size_bytes,
        contract: one.contract.clone(),
        // Written by this host or another one of a release that may know more.
        producers: serde_json::from_str(&one.producers).unwrap_or_default(),
        deployed_at: one
            .deployed_at
            .and_then(|at| instant_to_text(at, YEAR_MAX).ok()),
        deployed_by: one.deployed_by.clone(),
        migrations: one.migrations.clone(),
        back_to: one.back_to,
        active: one.is_active,
    }
}

fn none(problem: String, hint: &str) -> Refusal {
    Refusal::new(Why::Refused, problem, hint.to_owned())
}

/// Returns the newest deployment whose digest begins with `digits`.
pub(super) fn with_digest<'a>(
    history: &'a [Deployment],
    digits: &str,
) -> Result<&'a Deployment, Refusal> {
    const HINT: &str = "`hapax handlers history NAME` shows the digests";
    let digits = digits.to_ascii_lowercase();
    if digits.len() < DIGEST_DIGITS_MIN || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Refusal::new(
            Why::Malformed,
            format!("`{}` is not a digest", digits.escape_debug()),
            format!("write its {DIGEST_DIGITS_MIN} first digits or more; {HINT}"),
        ));
    }
    let mut found = history
        .iter()
        .filter(|one| one.digest.to_string().starts_with(&digits));
    let newest = found
        .next()
        .ok_or_else(|| none(format!("no component `{digits}` was deployed to it"), HINT))?;
    match found.find(|other| other.digest != newest.digest) {
        None => Ok(newest),
        Some(_) => Err(none(
            format!("several components begin with `{digits}`"),
            "write more digits",
        )),
    }
}

/// Returns the deployment before the active one with another component. What a rollback went back from does not come again: going back
/// twice goes back two.
pub(super) fn before_active(history: &[Deployment]) -> Result<&Deployment, Refusal> {
    const HINT: &str = "name a digest; `hapax handlers history NAME` shows them";
    let Some(active) = history.iter().find(|one| one.is_active) else {
        // After a removal there is none; what was there is the newest.
        return history
            .first()
            .ok_or_else(|| none("nothing was deployed to it".into(), HINT));
    };
    let from = active.back_to.unwrap_or(active.number);
    let before = history
        .iter()
        .find(|one| one.number < from && one.digest != active.digest)
        .ok_or_else(|| {
            none(
                "there is no deployment of another component before it".into(),
                HINT,
            )
        })?;
    // Where that was a rollback, it counts as the one that it went back to.
    let origin = before
        .back_to
        .and_then(|number| history.iter().find(|one| one.number == number));
    Ok(origin.unwrap_or(before))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::ComponentDigest;

    fn one(number: u64, content: &str, back_to: Option<u64>) -> Deployment {
        Deployment {
            number,
            digest: ComponentDigest::of(content.as_bytes()),
            size_bytes: 1,
            contract: "0.1.0".into(),
            producers: "[]".into(),
            deployed_at: None,
            deployed_by: "a@b".into(),
            migrations: Vec::new(),
            back_to,
            is_active: false,
        }
    }

    fn back(mut history: Vec<Deployment>, active: u64) -> Option<u64> {
        history.reverse();
        for line in &mut history {
            line.is_active = line.number == active;
        }
        before_active(&history).ok().map(|one| one.number)
    }

    #[test]
    fn going_back_goes_further_each_time() {
        let plain = vec![one(1, "a", None), one(2, "b", None), one(3, "c", None)];
        assert_eq!(back(plain.clone(), 3), Some(2));
        let once = [plain.clone(), vec![one(4, "b", Some(2))]].concat();
        assert_eq!(back(once.clone(), 4), Some(1));
        let twice = [once.clone(), vec![one(5, "a", Some(1))]].concat();
        assert_eq!(back(twice, 5), None);
        // What a rollback left behind is not what ran before the next deployment.
        let again = [once, vec![one(5, "d", None)]].concat();
        assert_eq!(back(again.clone(), 5), Some(2));
        let and_back = [again, vec![one(6, "b", Some(2))]].concat();
        assert_eq!(back(and_back, 6), Some(1));
        assert_eq!(back(plain, 0), Some(3));
        assert_eq!(back(Vec::new(), 0), None);
    }

    #[test]
    fn a_digest_is_found_by_its_first_digits() {
        let history = [one(3, "a", Some(1)), one(2, "b", None), one(1, "a", None)];
        let digits = history[0].digest.to_string();
        let found = |digits: &str| with_digest(&history, digits).map(|one| one.number);
        assert_eq!(found(&digits), Ok(3));
        assert_eq!(found(&digits[..8].to_uppercase()), Ok(3));
        assert_eq!(found(&digits[..7]).unwrap_err().why, Why::Malformed);
        assert_eq!(found("zzzzzzzz").unwrap_err().why, Why::Malformed);
        assert_eq!(found("0000000000").unwrap_err().why, Why::Refused);
    }
}
