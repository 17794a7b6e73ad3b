//! What differs between two configurations, as far as it is not a handler's own table.

use crate::config::{Config, HandlerConfig, SourceKind};

/// Returns the keys whose new values take a restart of the process.
pub(super) fn restart_keys(old: &Config, new: &Config) -> Vec<String> {
    let mut keys = Vec::new();
    if old.store != new.store {
        keys.push("store".to_owned());
    }
    for (name, source) in &old.sources {
        if new.sources.get(name).is_some_and(|now| now != source) {
            keys.push(format!("sources.{name}"));
        }
    }
    for (name, target) in &old.targets {
        if new.targets.get(name) != Some(target) {
            keys.push(format!("targets.{name}"));
        }
    }
    for name in new.targets.keys() {
        if !old.targets.contains_key(name) {
            keys.push(format!("targets.{name}"));
        }
    }
    if old.outbox != new.outbox {
        keys.push("outbox".to_owned());
    }
    if old.shutdown_grace != new.shutdown_grace {
        keys.push("shutdown_grace".to_owned());
    }
    if old.admin != new.admin {
        keys.push("admin".to_owned());
    }
    if old.cache != new.cache {
        keys.push("cache".to_owned());
    }
    keys
}

/// Returns what `handler` of the configuration `new` needs that is not in force before a restart, if there is something.
pub(super) fn waits_for(
    handler: &HandlerConfig,
    in_force: &Config,
    new: &Config,
) -> Option<String> {
    let source = format!("sources.{}", handler.source);
    if in_force.sources.get(&handler.source) != new.sources.get(&handler.source) {
        return Some(source);
    }
    let target = handler.target.as_ref()?;
    (in_force.targets.get(target) != new.targets.get(target)).then(|| format!("targets.{target}"))
}

/// True if the two can't run side by side: they share their claims, or a queue's rows.
pub(super) fn collide(one: &HandlerConfig, other: &HandlerConfig, config: &Config) -> bool {
    let is_queue = config
        .sources
        .get(&one.source)
        .is_some_and(|source| source.kind == SourceKind::Queue);
    one.consumer == other.consumer || (is_queue && one.source == other.source)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = r#"
        shutdown_grace = "5s"
        [store]
        url = "sqlite:a.db"
        [sources.one]
        kind = "queue"
        [sources.two]
        kind = "jetstream"
        url = "nats://127.0.0.1:1"
        stream = "S"
        [targets.out]
        kind = "queue"
        queue = "one"
        [handlers.h]
        component = "h.wasm"
        source = "two"
        start = "all"
        message_id = ["header:Message-Id"]
        target = "out"
    "#;

    fn config(text: &str) -> Config {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hapax.toml");
        std::fs::write(&file, text).unwrap();
        let mut config = Config::load(&file, []).unwrap();
        // Each has a folder of its own.
        config.store.url = config
            .store
            .url
            .replace(&folder.path().display().to_string(), "");
        config
    }

    #[test]
    fn what_takes_a_restart_is_named() {
        let before = config(BEFORE);
        for (from, to, keys) in [
            ("a.db", "b.db", &["store"][..]),
            ("127.0.0.1:1", "127.0.0.1:2", &["sources.two"]),
            ("5s", "6s", &["shutdown_grace"]),
            (
                "[targets.out]",
                "[targets.out2]\nkind = \"queue\"\nqueue = \"one\"\n[targets.out]",
                &["targets.out2"],
            ),
            ("component = \"h.wasm\"", "component = \"i.wasm\"", &[]),
            (
                "[sources.one]",
                "[sources.three]\nkind = \"queue\"\n[sources.one]",
                &[],
            ),
            (
                "[store]",
                "[cache]\ndirectory = \"off\"\n[store]",
                &["cache"],
            ),
            (
                "[store]",
                "[admin]\nlisten = \"127.0.0.1:0\"\n[store]",
                &["admin"],
            ),
        ] {
            let after = config(&BEFORE.replace(from, to));
            assert_eq!(restart_keys(&before, &after), keys, "{to}");
        }
    }

    #[test]
    fn a_handler_waits_for_what_takes_a_restart() {
        let before = config(BEFORE);
        let after = config(&BEFORE.replace("127.0.0.1:1", "127.0.0.1:2"));
        let handler = &after.handlers["h"];
        assert_eq!(
            waits_for(handler, &before, &after),
            Some("sources.two".into())
        );
        let after = config(&BEFORE.replace("start = \"all\"", "start = \"all\"\nlanes = 1"));
        assert_eq!(waits_for(&after.handlers["h"], &before, &after), None);
    }
}
