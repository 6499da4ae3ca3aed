use crate::registry;

/// Renew with `UPDATE_GENERATED=1 cargo test -p node generated`.
#[test]
fn generated_files_are_fresh() {
    let registry = registry::all();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let readme = format!("{root}/controllers/README.md");
    let document = std::fs::read_to_string(&readme).unwrap();
    let table = controllers_kit::readme::table(&registry);
    let files = [
        (
            readme,
            controllers_kit::readme::fill(&document, &table).unwrap(),
        ),
        (
            format!("{root}/deploy/rbac/controllers.yaml"),
            controllers_kit::rbac::manifest(&registry),
        ),
    ];
    for (path, wanted) in files {
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        }
        assert!(
            std::fs::read_to_string(&path).unwrap() == wanted,
            "{path} is stale: UPDATE_GENERATED=1 cargo test -p node generated"
        );
    }
}
