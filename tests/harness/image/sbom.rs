//! The software bill of materials, as CycloneDX 1.6: the crates that are linked into the program, with their
//! versions, licences, checksums and what each needs.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::{Value, json};

/// The package that the program is of.
const ROOT: &str = "node";

/// From the output of `cargo metadata` for one target, and Cargo.lock.
pub(super) fn of(metadata: &Value, lock: &str, created: &str) -> Result<Value> {
    let checksums = checksums(lock);
    let packages: BTreeMap<&str, &Value> = list(metadata, "/packages")
        .iter()
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = list(metadata, "/resolve/nodes")
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let members: BTreeSet<&str> = list(metadata, "/workspace_members")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let root = members
        .iter()
        .find(|id| {
            packages
                .get(*id)
                .is_some_and(|package| package["name"] == ROOT)
        })
        .with_context(|| format!("no package {ROOT} in the workspace"))?;

    let mut needs: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut open = vec![*root];
    while let Some(id) = open.pop() {
        if needs.contains_key(id) {
            continue;
        }
        // What runs in the compiler is not in the program, and so nothing that it needs.
        let linked = |id: &&str| packages.get(id).is_some_and(|package| !is_macro(package));
        let direct: BTreeSet<&str> = nodes
            .get(id)
            .map(|node| normal(node))
            .unwrap_or_default()
            .into_iter()
            .filter(linked)
            .collect();
        open.extend(&direct);
        needs.insert(id, direct);
    }

    let component = |id: &str| -> Result<Value> {
        let package = packages.get(id).with_context(|| format!("package {id}"))?;
        let (name, version) = (word(package, "name")?, word(package, "version")?);
        let mut component = json!({
            "type": "library",
            "bom-ref": reference(package)?,
            "name": name,
            "version": version,
        });
        if let Some(licence) = package["license"].as_str() {
            // `/` is how crates of old wrote `OR`.
            component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
        }
        if !members.contains(id) {
            component["purl"] = json!(reference(package)?);
        }
        if let Some(checksum) = checksums.get(&(name, version)) {
            component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
        }
        Ok(component)
    };
    let others = needs.keys().filter(|id| *id != root);
    let mut components = others.map(|id| component(id)).collect::<Result<Vec<_>>>()?;
    components.sort_by_key(|one| one["bom-ref"].to_string());
    let mut program = component(root)?;
    program["type"] = json!("application");
    program["name"] = json!("manifold");
    let mut dependencies = Vec::new();
    for (id, direct) in &needs {
        let of = |id: &str| reference(packages[id]);
        let direct = direct.iter().map(|id| of(id)).collect::<Result<Vec<_>>>()?;
        dependencies.push(json!({"ref": of(id)?, "dependsOn": direct}));
    }
    dependencies.sort_by_key(|one| one["ref"].to_string());
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": created, "component": program},
        "components": components,
        "dependencies": dependencies,
    }))
}

fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

fn word<'a>(package: &'a Value, field: &str) -> Result<&'a str> {
    package[field]
        .as_str()
        .with_context(|| format!("a package without {field}"))
}

fn reference(package: &Value) -> Result<String> {
    let (name, version) = (word(package, "name")?, word(package, "version")?);
    Ok(format!("pkg:cargo/{name}@{version}"))
}

fn is_macro(package: &Value) -> bool {
    list(package, "/targets")
        .iter()
        .any(|target| list(target, "/kind").contains(&json!("proc-macro")))
}

/// Those that a package needs to run, neither to be built nor to be tested.
fn normal(node: &Value) -> Vec<&str> {
    let of_kind = |dependency: &&Value| {
        list(dependency, "/dep_kinds")
            .iter()
            .any(|kind| kind["kind"].is_null())
    };
    let found = list(node, "/deps").iter().filter(of_kind);
    found.filter_map(|one| one["pkg"].as_str()).collect()
}

/// Of Cargo.lock: name and version to checksum.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    let entries = lock.split("[[package]]").skip(1);
    entries
        .filter_map(|entry| {
            let field = |name: &str| {
                let mut lines = entry.lines();
                lines.find_map(|line| {
                    line.strip_prefix(name)?
                        .strip_prefix(" = \"")?
                        .strip_suffix('"')
                })
            };
            Some(((field("name")?, field("version")?), field("checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"node\"\nversion = \"0.1.0\"\n\n[[package]]\nname = \"a\"\n\
                        version = \"1.0.0\"\nsource = \"registry\"\nchecksum = \"00ff\"\ndependencies = [\n \"b\",\n]\n";

    fn package(name: &str, version: &str, kind: &str) -> Value {
        json!({
            "id": name, "name": name, "version": version, "license": "MIT/Apache-2.0",
            "targets": [{"kind": [kind]}],
        })
    }

    fn metadata() -> Value {
        let needs = |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        json!({
            "workspace_members": ["node", "tests"],
            "packages": [
                package("node", "0.1.0", "lib"), package("tests", "0.1.0", "lib"),
                package("a", "1.0.0", "lib"), package("b", "2.0.0", "lib"),
                package("macro", "1.0.0", "proc-macro"), package("of-macro", "1.0.0", "lib"),
                package("build", "1.0.0", "lib"), package("dev", "1.0.0", "lib"),
            ],
            "resolve": {"nodes": [
                {"id": "node", "deps": [
                    needs("a", Value::Null), needs("macro", Value::Null), needs("build", json!("build")),
                    needs("dev", json!("dev")),
                ]},
                {"id": "tests", "deps": [needs("dev", Value::Null)]},
                {"id": "a", "deps": [needs("b", Value::Null)]},
                {"id": "macro", "deps": [needs("of-macro", Value::Null)]},
            ]},
        })
    }

    #[test]
    fn only_what_is_linked_into_the_program_is_listed() {
        let bill = of(&metadata(), LOCK, "1970-01-01T00:00:00Z").unwrap();
        let names: Vec<&str> = list(&bill, "/components")
            .iter()
            .filter_map(|one| one["name"].as_str())
            .collect();
        assert_eq!(names, ["a", "b"]);
        let program = &bill["metadata"]["component"];
        assert_eq!(
            (&program["name"], &program["version"]),
            (&json!("manifold"), &json!("0.1.0"))
        );
        assert!(program.get("purl").is_none(), "{program}");
    }

    #[test]
    fn a_component_has_its_licence_and_its_checksum() {
        let bill = of(&metadata(), LOCK, "1970-01-01T00:00:00Z").unwrap();
        assert_eq!(
            bill["components"][0],
            json!({
                "type": "library",
                "bom-ref": "pkg:cargo/a@1.0.0",
                "purl": "pkg:cargo/a@1.0.0",
                "name": "a",
                "version": "1.0.0",
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
                "hashes": [{"alg": "SHA-256", "content": "00ff"}],
            })
        );
        assert_eq!(
            bill["dependencies"][0],
            json!({"ref": "pkg:cargo/a@1.0.0", "dependsOn": ["pkg:cargo/b@2.0.0"]})
        );
    }

    #[test]
    fn a_workspace_without_the_program_is_refused() {
        let error = of(&json!({}), LOCK, "").unwrap_err();
        assert!(error.to_string().contains("no package node"), "{error}");
    }
}
