//! Which scenarios are run.

use anyhow::bail;

use super::scenario::{Compared, Scenario};

/// Leaves the scenarios of which one pattern of `only` says the name, and those that they are compared with; without patterns those that are
/// not on request. A `*` stands for any text.
///
/// # Errors
/// A pattern without a scenario.
pub(super) fn select(all: &mut Vec<Scenario>, only: &[String]) -> anyhow::Result<()> {
    if let Some(pattern) = only
        .iter()
        .find(|pattern| !all.iter().any(|one| fits(pattern, &one.name)))
    {
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        bail!(
            "no scenario is called `{pattern}`; there are {}",
            names.join(", ")
        );
    }
    let mut wanted: Vec<String> = all
        .iter()
        .filter(|one| match only {
            [] => !one.on_request,
            _ => only.iter().any(|pattern| fits(pattern, &one.name)),
        })
        .map(|one| one.name.clone())
        .collect();
    // A scenario comes after the one that it is compared with, so one way back finds those of those, too.
    for scenario in all.iter().rev() {
        if let Compared::With(base) = &scenario.compared
            && wanted.contains(&scenario.name)
        {
            wanted.push(base.clone());
        }
    }
    all.retain(|one| wanted.contains(&one.name));
    Ok(())
}

/// Whether `name` is what `pattern` says.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices()
                .map(|(at, _)| at)
                .chain([rest.len()])
                .any(|at| fits(after, &rest[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenario::all;
    use super::*;

    fn selected(only: &[&str]) -> Vec<String> {
        let only: Vec<String> = only.iter().map(|&text| text.to_owned()).collect();
        let mut all = all(1_000, 1_000);
        select(&mut all, &only).unwrap();
        all.into_iter().map(|one| one.name).collect()
    }

    #[test]
    fn the_issues_names_are_run_without_asking() {
        let names = selected(&[]);
        for name in [
            "pg-jetstream/execute",
            "pg-jetstream/execute-awaited",
            "pg-jetstream/read-write",
            "pg-jetstream/batch-handler",
            "pg-jetstream/duplicates",
            "pg-queue/execute",
            "sqlite-queue/execute",
        ] {
            assert!(names.iter().any(|one| one == name), "{name}");
        }
        assert!(!names.iter().any(|one| one.contains("batch-max")));
    }

    #[test]
    fn those_that_are_compared_with_come_along() {
        assert_eq!(
            selected(&["*/claims-pruned"]),
            [
                "pg-jetstream/execute",
                "sqlite-queue/execute",
                "pg-jetstream/claims",
                "sqlite-queue/claims",
                "pg-jetstream/claims-pruned",
                "sqlite-queue/claims-pruned",
            ]
        );
        assert_eq!(
            selected(&["pg-queue/execute", "pg-queue/execute"]),
            ["pg-queue/execute"]
        );
    }

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(fits("pg-*/exec*", "pg-queue/execute"));
        assert!(fits("*", "") && fits("a*", "a") && fits("*-hot", "execute-hot"));
        assert!(!fits("pg-*", "sqlite-queue/execute") && !fits("a", "ab"));
        let err = select(&mut all(1, 1), &["nothing*".to_owned()]).unwrap_err();
        assert!(err.to_string().contains("pg-jetstream/execute"), "{err}");
    }
}
