//! Names on the command line: pure.

/// An object as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// As given: `deploy`, `Deployment`, `deployments.apps`.
    pub kind: String,
    /// Its name.
    pub name: String,
}

/// Reads `KIND/NAME` or `KIND NAME`.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub fn named(words: &[String]) -> Result<Named, String> {
    let (kind, name) = match words {
        [one] => one
            .split_once('/')
            .ok_or_else(|| format!("{one:?} has no name: give KIND/NAME, as in deployment/web"))?,
        [kind, name] if !kind.contains('/') && !name.contains('/') => (&**kind, &**name),
        _ => return Err("give one object as KIND/NAME, as in deployment/web".to_owned()),
    };
    if kind.is_empty() || name.is_empty() || name.contains('/') {
        return Err(format!(
            "{:?} names no object: give KIND/NAME, as in deployment/web, and its namespace with -n",
            words.join(" ")
        ));
    }
    Ok(Named {
        kind: kind.to_owned(),
        name: name.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_as_in_kubectl() {
        for (words, expected) in [
            (&["deploy/web"][..], Some(("deploy", "web"))),
            (&["deploy", "web"], Some(("deploy", "web"))),
            (&["deployments.apps/web"], Some(("deployments.apps", "web"))),
            (&["web"], None),
            (&["deploy/"], None),
            (&["/web"], None),
            (&["deploy/shop/web"], None),
            (&["deploy/web", "api"], None),
            (&[], None),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let found = named(&words).ok();
            let found = found.as_ref().map(|one| (&*one.kind, &*one.name));
            assert_eq!(found, expected, "{words:?}");
        }
    }
}
