//! A plan of placement: which member is to own which range, where equal numbers of ranges are unequal work.
//!
//! A plan is a wish. It takes the place of what [`crate::place`] would choose and of nothing else: who owns a
//! range is changed by the same compare-and-swap, behind the same fences, by the same handoff or takeover.
//! So a plan that is old, malformed or malicious costs moves at worst.

use std::{cmp::Reverse, collections::BTreeSet, fmt};

use crate::{
    REPLICAS_MAX,
    lease::Version,
    placement::{keep_within_quota, place_the_rest, place_within},
    ring::Ring,
};

/// How a plan's text begins; a build that writes another form begins it otherwise.
const FORM: &str = "v1";

/// The members that a plan names, one character for each.
const INDEXES: &[u8; REPLICAS_MAX] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Which member is to own which range.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Plan {
    members: Vec<String>,
    /// For each range an index into the members.
    owners: Vec<u16>,
}

/// A text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAPlan {
    /// It has another form.
    #[error(
        "a plan is {FORM:?}, names of members with commas between them, and a character for each range"
    )]
    Form,
    /// Nobody, too many, or one of them twice.
    #[error("a plan names 1 to {REPLICAS_MAX} different members")]
    Members,
    /// It is one for another number of ranges.
    #[error("it is a plan for {0} ranges")]
    Ranges(usize),
    /// It gives a range to somebody whom it does not name.
    #[error("it gives range {0} to nobody that it names")]
    Nobody(usize),
}

impl Plan {
    /// The plan that gives the ranges to these members, each by its index.
    ///
    /// # Errors
    /// Where it can't be one.
    pub fn new(members: Vec<String>, owners: Vec<u16>) -> Result<Self, NotAPlan> {
        let different: BTreeSet<&String> = members.iter().collect();
        let fits = !members.iter().any(String::is_empty) && different.len() == members.len();
        if members.is_empty() || members.len() > REPLICAS_MAX || !fits {
            return Err(NotAPlan::Members);
        }
        let nobody = |owner: &u16| usize::from(*owner) >= members.len();
        match owners.iter().position(nobody) {
            Some(range) => Err(NotAPlan::Nobody(range)),
            None => Ok(Self { members, owners }),
        }
    }

    /// From what [`Display`](fmt::Display) wrote, for a fleet with this number of ranges.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str, ranges: u16) -> Result<Self, NotAPlan> {
        let mut parts = text.split(' ');
        let (Some(FORM), Some(members), Some(owners), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(NotAPlan::Form);
        };
        let members = members.split(',').map(str::to_owned).collect();
        if owners.len() != usize::from(ranges) {
            return Err(NotAPlan::Ranges(owners.len()));
        }
        let index = |(range, character): (usize, u8)| {
            let index = INDEXES.iter().position(|known| *known == character);
            let index = index.and_then(|index| u16::try_from(index).ok());
            index.ok_or(NotAPlan::Nobody(range))
        };
        let owners: Result<Vec<u16>, NotAPlan> = owners.bytes().enumerate().map(index).collect();
        Self::new(members, owners?)
    }

    /// Whom it names.
    pub fn members(&self) -> &[String] {
        &self.members
    }

    /// How many ranges it gives to each member whom it names.
    fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.members.len()];
        for owner in &self.owners {
            counts[usize::from(*owner)] += 1;
        }
        counts
    }

    /// Whether no member has more than one range more than another: then the plan says nothing that would not
    /// stay so without it.
    pub(crate) fn is_even(&self) -> bool {
        let counts = self.counts();
        let (least, most) = (counts.iter().min(), counts.iter().max());
        least
            .zip(most)
            .is_none_or(|(least, most)| most - least <= 1)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let index = |owner: &u16| char::from(INDEXES[usize::from(*owner) % INDEXES.len()]);
        let owners: String = self.owners.iter().map(index).collect();
        write!(f, "{FORM} {} {owners}", self.members.join(","))
    }
}

/// The Lease that has the fleet's plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PlanLease {
    /// The version seen.
    pub version: Version,
    /// Counts the plans of the fleet; for people.
    pub number: u64,
    /// The plan as written there; empty for none.
    pub text: String,
    /// Who wrote it; for people.
    pub planner: String,
}

/// For each range the index of the member that is to own it by the plan; empty without members.
///
/// Where the plan names exactly the members that there are, that is what it says. A member whom it names and
/// who is gone leaves its ranges to the others, in ring preference, and one that has come gets a share: then
/// each member has as many ranges as the plan gives it, in proportion; a newcomer counts as the mean. `most`
/// is as in [`crate::place_within`].
pub fn place_planned(ring: &Ring, plan: &Plan, most: &[Option<u16>]) -> Vec<u16> {
    let members = ring.members();
    let index = |name: &String| members.binary_search(name).ok();
    let places: Vec<Option<u16>> = plan
        .members
        .iter()
        .map(|name| index(name).and_then(|at| u16::try_from(at).ok()))
        .collect();
    let wanted: Vec<Option<u16>> = plan
        .owners
        .iter()
        .map(|owner| places[usize::from(*owner)])
        .collect();
    let known = places.iter().flatten().count();
    if wanted.len() != usize::from(ring.ranges()) || known == 0 {
        return place_within(ring, &vec![None; usize::from(ring.ranges())], most);
    }
    let is_bounded = most.iter().any(Option::is_some);
    if known == members.len() && !is_bounded && wanted.iter().all(Option::is_some) {
        return wanted.into_iter().flatten().collect();
    }
    let mean = (wanted.len() / plan.members.len()).max(1);
    let mut weights = vec![mean; members.len()];
    for (place, count) in places.iter().zip(plan.counts()) {
        if let Some(place) = place {
            weights[usize::from(*place)] = count;
        }
    }
    let quota = quotas(&weights, wanted.len(), most);
    let kept = keep_within_quota(ring, &wanted, &quota);
    place_the_rest(ring, kept, &quota)
}

/// Shares of the ranges in proportion to the weights, none of them empty while there are enough, and none
/// above its bound while others can take the rest.
fn quotas(weights: &[usize], ranges: usize, most: &[Option<u16>]) -> Vec<usize> {
    let bound = |member: usize| most.get(member).copied().flatten().map(usize::from);
    let mut quota: Vec<Option<usize>> = vec![None; weights.len()];
    loop {
        let free: Vec<usize> = (0..weights.len())
            .filter(|member| quota[*member].is_none())
            .collect();
        let taken: usize = quota.iter().flatten().sum();
        let shares = share_out(&free, weights, ranges.saturating_sub(taken));
        if free.is_empty() || taken > ranges {
            // Theirs are all that there are: nobody's bound counts.
            let all: Vec<usize> = (0..weights.len()).collect();
            return share_out(&all, weights, ranges);
        }
        let over = free.iter().zip(&shares);
        let over: Vec<(usize, usize)> = over
            .filter_map(|(member, share)| Some((*member, bound(*member)?, *share)))
            .filter(|(_, bound, share)| bound < share)
            .map(|(member, bound, _)| (member, bound))
            .collect();
        if over.is_empty() {
            for (member, share) in free.into_iter().zip(shares) {
                quota[member] = Some(share);
            }
            return quota.into_iter().map(Option::unwrap_or_default).collect();
        }
        for (member, bound) in over {
            quota[member] = Some(bound);
        }
    }
}

/// One for each, the rest in proportion to the weights, by largest remainders.
fn share_out(members: &[usize], weights: &[usize], ranges: usize) -> Vec<usize> {
    if members.is_empty() {
        return Vec::new();
    }
    let one = usize::from(ranges >= members.len());
    let left = ranges - one * members.len();
    // Where nobody has more than one, all are alike.
    let all: usize = members
        .iter()
        .map(|member| weights[*member].saturating_sub(1))
        .sum();
    let weight = |member: &usize| match all {
        0 => 1,
        _ => weights[*member].saturating_sub(1),
    };
    let all = if all == 0 { members.len() } else { all };
    let mut shares: Vec<usize> = members
        .iter()
        .map(|member| one + left * weight(member) / all)
        .collect();
    let mut by_remainder: Vec<usize> = (0..members.len()).collect();
    by_remainder.sort_by_key(|at| (Reverse(left * weight(&members[*at]) % all), *at));
    let given: usize = shares.iter().sum();
    for at in by_remainder.into_iter().take(ranges - given) {
        shares[at] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ring(names: &[&str], ranges: u16) -> Ring {
        Ring::new(names.iter().copied(), ranges)
    }

    fn plan(members: &[&str], owners: &[u16]) -> Plan {
        let members = members.iter().map(|name| (*name).to_owned()).collect();
        Plan::new(members, owners.to_vec()).unwrap()
    }

    fn counts(placed: &[u16], members: usize) -> Vec<usize> {
        let mut counts = vec![0; members];
        for member in placed {
            counts[usize::from(*member)] += 1;
        }
        counts
    }

    #[test]
    fn a_plan_survives_its_text() {
        let plan = plan(&["a", "b-1", "c.x"], &[0, 1, 2, 1]);
        assert_eq!(plan.to_string(), "v1 a,b-1,c.x ABCB");
        assert_eq!(Plan::parse(&plan.to_string(), 4), Ok(plan));
    }

    #[test]
    fn what_is_no_plan_is_refused() {
        use NotAPlan::{Form, Members, Nobody, Ranges};
        let many = vec!["x"; 65].join(",");
        for (text, why) in [
            ("", Form),
            ("v2 a AAAA", Form),
            ("v1 a AAAA more", Form),
            ("v1 a", Form),
            ("v1  AAAA", Members),
            ("v1 a,a AAAA", Members),
            ("v1 a,,b AAAA", Members),
            (&format!("v1 {many} AAAA"), Members),
            ("v1 a AAA", Ranges(3)),
            ("v1 a,b AABC", Nobody(3)),
            ("v1 a,b A?AA", Nobody(1)),
        ] {
            assert_eq!(Plan::parse(text, 4), Err(why), "{text:?}");
        }
    }

    #[test]
    fn where_the_members_are_those_of_the_plan_it_is_followed_to_the_letter() {
        let plan = plan(&["c", "a", "b"], &[0, 0, 0, 1, 1, 2, 0, 0]);
        let placed = place_planned(&ring(&["a", "b", "c"], 8), &plan, &[]);
        assert_eq!(placed, [2, 2, 2, 0, 0, 1, 2, 2]);
    }

    #[test]
    fn ranges_of_a_member_that_is_gone_fall_back_and_the_others_stay() {
        let owners: Vec<u16> = (0..64)
            .map(|range| if range == 9 { 0 } else { 1 + range % 2 })
            .collect();
        let plan = plan(&["a", "b", "c"], &owners);
        let placed = place_planned(&ring(&["a", "b"], 64), &plan, &[]);
        for (range, owner) in owners.iter().enumerate().filter(|(_, owner)| **owner < 2) {
            assert_eq!(placed[range], *owner, "range {range}");
        }
        let counts = counts(&placed, 2);
        assert!(counts[0] <= 3, "who had little gets little: {counts:?}");
    }

    #[test]
    fn one_that_has_come_gets_its_share_and_comes_back_to_what_it_had() {
        let owners: Vec<u16> = (0..64)
            .map(|range| if range == 9 { 0 } else { 1 + range % 2 })
            .collect();
        let plan = plan(&["a", "b", "c"], &owners);
        let four = place_planned(&ring(&["a", "b", "c", "d"], 64), &plan, &[]);
        let counts = counts(&four, 4);
        assert_eq!(counts.iter().sum::<usize>(), 64);
        assert!(counts[3] >= 15 && counts[0] == 1, "{counts:?}");
        let moved = four.iter().zip(&owners).filter(|(one, other)| one != other);
        assert_eq!(moved.count(), counts[3], "only the newcomer gets any");
        let back = place_planned(&ring(&["a", "b", "c"], 64), &plan, &[]);
        assert_eq!(back, owners);
    }

    #[test]
    fn a_plan_of_strangers_is_as_none() {
        let plan = plan(&["x", "y"], &[0, 1, 0, 1]);
        let ring = ring(&["a", "b"], 4);
        assert_eq!(
            place_planned(&ring, &plan, &[]),
            place_within(&ring, &[None; 4], &[])
        );
        assert!(place_planned(&Ring::new(Vec::<String>::new(), 4), &plan, &[]).is_empty());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whatever a plan says, each range has a member, nobody is above its bound while others can take the
        /// rest, and ranges of members that stay move no more than they must.
        #[test]
        fn any_plan_gives_each_range_to_one_member(
            members in 1_usize..8,
            named in 1_usize..8,
            ranges in prop::sample::select(vec![1_u16, 2, 4, 16, 64]),
            seed in prop::collection::vec(any::<u16>(), 64),
            most in prop::collection::vec(prop::option::weighted(0.2, 1_u16..20), 8),
        ) {
            let ring = Ring::new((0..members).map(|at| format!("r{at}")), ranges);
            let names = (0..named).map(|at| format!("r{}", at * 2)).collect();
            let owners = (0..usize::from(ranges)).map(|at| seed[at] % named as u16).collect();
            let plan = Plan::new(names, owners).unwrap();
            let most = &most[..members];
            let placed = place_planned(&ring, &plan, most);
            prop_assert_eq!(placed.len(), usize::from(ranges));
            prop_assert!(placed.iter().all(|at| usize::from(*at) < members));
            let counts = counts(&placed, members);
            let bounds: usize = most.iter().map(|most| most.map_or(usize::from(ranges), usize::from)).sum();
            if bounds >= usize::from(ranges) && most.iter().any(Option::is_none) {
                let is_within = |(count, most): (&usize, &Option<u16>)| most.is_none_or(|most| *count <= usize::from(most));
                prop_assert!(counts.iter().zip(most).all(is_within), "{counts:?} {most:?}");
            }
            prop_assert_eq!(place_planned(&ring, &plan, most), placed, "the same again");
        }
    }
}
