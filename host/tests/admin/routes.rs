//! `docs/admin.md` says what there is.

use std::collections::BTreeSet;
use std::path::Path;

#[test]
fn every_route_is_explained() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/admin.md");
    let page = std::fs::read_to_string(page).unwrap();
    let explained: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|route| route.contains(" /"))
        .map(str::to_owned)
        .collect();
    let routes: BTreeSet<String> = hapax::admin::routes()
        .map(|route| format!("{} {}", route.method.to_uppercase(), route.path))
        .collect();
    assert_eq!(explained, routes);
}
