//! `move` and `unmove`: a range is another replica's for a while, by an order like a pause or a drain.

use inspect::{Explanation, KeyReport};
use serde_json::Value;
use steering::{Order, Target, closest, lift};

use crate::{
    reach::Trouble,
    steer::{Fleet, Given, Running, Steered, order, running},
};

/// A range by its number; `None` for what is to be an object.
///
/// # Errors
/// In words: it begins as a number and is none.
pub fn range(words: &[String]) -> Result<Option<u16>, String> {
    let [one] = words else { return Ok(None) };
    match one.parse() {
        Ok(range) => Ok(Some(range)),
        Err(_) if one.starts_with(|c: char| c.is_ascii_digit() || c == '-') => Err(format!(
            "{one:?} is no range: give its number, or an object as KIND/NAME"
        )),
        Err(_) => Ok(None),
    }
}

/// The range of an object's own keys.
///
/// # Errors
/// In words: it has none, or several.
pub fn range_of(explanation: &Explanation) -> Result<u16, String> {
    let object = explanation.object.as_ref();
    let name = object.map_or("", |object| &*object.name);
    let is_own = |key: &&KeyReport| key.via.is_empty() && key.key == name;
    let mut ranges: Vec<u16> = explanation
        .keys
        .iter()
        .filter(is_own)
        .map(|key| key.range)
        .collect();
    ranges.sort_unstable();
    ranges.dedup();
    match &ranges[..] {
        [range] => Ok(*range),
        [] => Err(format!(
            "no controller has a key for {name}: give the number of a range, as `kubectl manifold explain` shows it"
        )),
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            let several = several.join(", ");
            Err(format!(
                "the keys of {name} are in the ranges {several}: give one of these numbers"
            ))
        }
    }
}

/// Whether a range can be moved to a replica.
fn check(range: u16, to: &str, running: &[Running], ranges: u16) -> Result<(), String> {
    if range >= ranges && ranges > 0 {
        return Err(format!(
            "there is no range {range}: the fleet's are 0 to {}",
            ranges - 1
        ));
    }
    let takes: Vec<&str> = running
        .iter()
        .filter(|one| one.takes)
        .map(|one| &*one.name)
        .collect();
    if takes.contains(&to) {
        return Ok(());
    }
    Err(
        match (
            running.iter().find(|one| one.name == to),
            closest(to, takes.iter().copied()),
        ) {
            (Some(_), _) => format!(
                "{to} takes no ranges now: give one that does, as {}",
                takes.join(", ")
            ),
            (None, Some(like)) => format!("there is no replica {to:?}: did you mean {like:?}?"),
            (None, None) if takes.is_empty() => {
                "the fleet has no ready replica: give --fleet-name and --fleet-namespace".to_owned()
            }
            (None, None) => format!("there is no replica {to:?}; there are {}", takes.join(", ")),
        },
    )
}

/// How many ranges a fleet has, by its replica Leases; 0 where none says so.
fn ranges(list: &Value) -> u16 {
    let all = list["items"].as_array().into_iter().flatten();
    let said = |lease: &Value| {
        let holder = lease["spec"]["holderIdentity"].as_str()?;
        let ranges = lease["metadata"]["annotations"]["manifold.dev/ranges"].as_str()?;
        ranges.parse().ok().filter(|_| !holder.is_empty())
    };
    all.filter_map(said).max().unwrap_or(0)
}

/// Who owns a range, by its Lease.
fn owner(list: &Value, range: u16) -> Option<String> {
    let mut all = list["items"].as_array().into_iter().flatten();
    let is_its = |lease: &&Value| {
        let name = lease["metadata"]["name"].as_str().unwrap_or_default();
        let number = name.rsplit_once("-range-").map(|(_, number)| number);
        number.and_then(|number| number.parse().ok()) == Some(range)
    };
    let holder = all.find(is_its)?["spec"]["holderIdentity"].as_str()?;
    Some(holder.rsplit_once('_')?.0.to_owned())
}

impl Fleet {
    /// Has a replica own a range until the order ends.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn move_range(
        &self,
        range: u16,
        to: &str,
        given: &Given,
    ) -> Result<Steered, Trouble> {
        let list = self.leases("replica").await?;
        check(range, to, &running(&list), ranges(&list))?;
        let target = Target::Range(range);
        let owner = owner(&self.leases("range").await?, range);
        let (edit, after, now) = self
            .place(given, |found| {
                // One that is moved already has the home that it had.
                let before = found.orders.in_force(found.now);
                let before = before.get(&target).and_then(|order| order.home.clone());
                Ok(Order {
                    to: Some(to.to_owned()),
                    home: before.or_else(|| owner.clone()),
                    ..order(&target, found.now)
                })
            })
            .await?;
        let mut steered = self.steered(&target, !edit.is_empty(), &after, now);
        let held = after.in_force(now);
        if let Some(order) = held.get(&target) {
            let words = order.in_words();
            steered.say(format!("range {range} is {to}'s {words}"));
        }
        Ok(steered)
    }

    /// Has a range go home.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn unmove(&self, range: u16) -> Result<Steered, Trouble> {
        let target = Target::Range(range);
        let (edit, after, now) = self.edit(|found| Ok(lift(&found.orders, &target))).await?;
        let mut steered = self.steered(&target, !edit.is_empty(), &after, now);
        steered.say(match edit.is_empty() {
            true => format!("range {range} is not moved"),
            false => format!("range {range} goes home"),
        });
        Ok(steered)
    }
}

#[cfg(test)]
mod tests {
    use inspect::ObjectReport;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_range_is_given_by_number_or_by_object() {
        let of = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            range(&words)
        };
        assert_eq!(of(&["17"]), Ok(Some(17)));
        assert_eq!(of(&["deployment/web"]), Ok(None));
        assert_eq!(of(&["deployment", "web"]), Ok(None));
        for wrong in ["-1", "70000", "1x"] {
            let why = of(&[wrong]).unwrap_err();
            assert!(why.contains("is no range"), "{wrong}: {why}");
        }
    }

    #[test]
    fn an_object_has_the_range_of_its_own_keys() {
        let key = |key: &str, via: &str, range| KeyReport {
            key: key.to_owned(),
            via: via.to_owned(),
            range,
            ..KeyReport::default()
        };
        let explanation = |keys| Explanation {
            object: Some(ObjectReport {
                name: "shop/web".to_owned(),
                ..ObjectReport::default()
            }),
            keys,
            ..Explanation::default()
        };
        let own = vec![
            key("shop/web", "", 7),
            key("shop/web", "", 7),
            key("shop", "", 9),
            key("shop/web", "services/web", 8),
        ];
        assert_eq!(range_of(&explanation(own)), Ok(7));
        let why = range_of(&explanation(vec![key("shop", "", 9)])).unwrap_err();
        assert!(
            why.contains("no controller has a key for shop/web"),
            "{why}"
        );
        let two = vec![key("shop/web", "", 9), key("shop/web", "", 3)];
        let why = range_of(&explanation(two)).unwrap_err();
        assert!(why.contains("in the ranges 3, 9"), "{why}");
    }

    #[test]
    fn who_can_be_given_a_range() {
        let lease = |name: &str, ready: bool| {
            json!({
                "metadata": {
                    "name": format!("manifold-replica-{name}"),
                    "annotations": {"manifold.dev/ready": ready.to_string(), "manifold.dev/ranges": "16"},
                },
                "spec": {"holderIdentity": format!("{name}_1")},
            })
        };
        let list = json!({"items": [lease("manifold-0", true), lease("manifold-1", false)]});
        assert_eq!(ranges(&list), 16);
        assert_eq!(ranges(&json!({"items": []})), 0);
        let leases = json!({"items": [
            {"metadata": {"name": "manifold-range-003"}, "spec": {"holderIdentity": "manifold-0_1"}},
            {"metadata": {"name": "manifold-range-004"}, "spec": {"holderIdentity": ""}},
        ]});
        assert_eq!(owner(&leases, 3).as_deref(), Some("manifold-0"));
        assert_eq!((owner(&leases, 4), owner(&leases, 5)), (None, None));
        let replicas = running(&list);
        assert_eq!(check(3, "manifold-0", &replicas, 16), Ok(()));
        for (range, to, part) in [
            (16, "manifold-0", "the fleet's are 0 to 15"),
            (
                3,
                "manifold-1",
                "takes no ranges now: give one that does, as manifold-0",
            ),
            (3, "manifold-00", "did you mean \"manifold-0\"?"),
            (3, "zzz", "there are manifold-0"),
        ] {
            let why = check(range, to, &replicas, 16).unwrap_err();
            assert!(why.contains(part), "{to}: {why}");
        }
        let why = check(3, "a", &[], 0).unwrap_err();
        assert!(why.contains("no ready replica"), "{why}");
    }
}
