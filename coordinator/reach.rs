//! Which members answer this replica.
//!
//! A member counts for placement by its Lease alone. One that renews its Lease but cannot be reached is given
//! ranges all the same, and each of them moves as after a crash: without queue and memory, after a wait. So
//! each replica asks every other one a small question now and then, and publishes in its own Lease which of
//! them do not answer. Nobody decides by it: it is for people, `manifold doctor` and an alert.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use actix::Addr;
use coordinator_core::{Holder, Input, View};
use futures::future::join_all;
use tokio::sync::watch;

use crate::{
    RangeHost,
    actor::{Coordinator, Feed},
    peer::Calls,
};

/// Between two rounds of questions, in each of which this many members are asked: a call is cheap, but in a
/// fleet of fifty all of them are 490 a second.
const PERIOD: Duration = Duration::from_secs(5);
const ASKED_AT_ONCE: usize = 8;

/// Consecutive failures before a member is published: one that restarts is not.
const FAILURES_MIN: u32 = 2;

/// Between two rounds of comparing what is seen, in each of which this many members are asked.
const COMPARES_EVERY: Duration = Duration::from_secs(1);
const COMPARED_AT_ONCE: usize = 2;

/// What is known of the members, by name.
#[derive(Debug, Default)]
struct Reach {
    /// Of those who did not answer when asked last: how often in a row.
    failures: BTreeMap<String, u32>,
    turn: Turn,
}

impl Reach {
    /// Whom to ask in this round: some in turn, and who did not answer when asked last, each time until they
    /// do. Members that are gone are forgotten.
    fn round(&mut self, members: Vec<(Holder, String)>) -> Vec<(Holder, String)> {
        let is_member = |name: &String| members.iter().any(|(member, _)| member.name == *name);
        self.failures.retain(|name, _| is_member(name));
        let mut round = self.turn.next(&members, ASKED_AT_ONCE);
        let again = members
            .into_iter()
            .filter(|member| self.failures.contains_key(&member.0.name) && !round.contains(member));
        let again: Vec<_> = again.collect();
        round.extend(again);
        round
    }

    /// Takes in the answers of one round.
    fn record(&mut self, answers: &[(String, Result<(), String>)]) {
        for (name, answer) in answers {
            match answer {
                Ok(()) => {
                    self.failures.remove(name);
                }
                Err(_) => {
                    let failures = self.failures.entry(name.clone()).or_default();
                    *failures = failures.saturating_add(1);
                }
            }
        }
    }

    /// The names of those that do not answer, with commas between them.
    fn unreachable(&self) -> String {
        let names: Vec<&str> = self
            .failures
            .iter()
            .filter(|(_, failures)| **failures >= FAILURES_MIN)
            .map(|(name, _)| name.as_str())
            .collect();
        names.join(",")
    }
}

/// Whom to ask: every other member that is ready and stays.
fn others(view: &View) -> Vec<(Holder, String)> {
    view.members
        .iter()
        .filter(|member| member.name != view.replica && member.ready && !member.draining)
        .map(|member| {
            (
                Holder::new(&member.name, &member.incarnation),
                member.address.clone(),
            )
        })
        .collect()
}

/// Whose turn it is.
#[derive(Debug, Default)]
struct Turn {
    /// The last member of the round before.
    last: String,
}

impl Turn {
    /// This many members of all, sorted by name, from those after the last one of the round before on.
    fn next(&mut self, members: &[(Holder, String)], count: usize) -> Vec<(Holder, String)> {
        let from = members.partition_point(|(holder, _)| *holder.name <= *self.last);
        let (before, behind) = members.split_at(from);
        let all = behind.iter().chain(before);
        let round: Vec<_> = all.take(count).cloned().collect();
        if let Some((last, _)) = round.last() {
            self.last.clone_from(&last.name);
        }
        round
    }
}

/// Reports to the node for ever how far the watches of others have come: a few of them each second, in turn.
pub(crate) async fn compare(
    peers: Arc<dyn Calls>,
    view: Arc<watch::Sender<Arc<View>>>,
    host: Arc<dyn RangeHost>,
) {
    let mut turn = Turn::default();
    loop {
        tokio::time::sleep(COMPARES_EVERY).await;
        let members = turn.next(&others(&view.borrow()), COMPARED_AT_ONCE);
        // Who does not answer has nothing to say; another watches whether it does.
        let questions = members
            .iter()
            .map(|(to, address)| peers.sights(to, address));
        for ((to, _), answer) in members.iter().zip(join_all(questions).await) {
            if let Ok(sights) = answer {
                host.peer_sees(&to.name, sights);
            }
        }
    }
}

/// Asks and publishes for as long as the actor lives.
pub(crate) async fn follow(
    peers: Arc<dyn Calls>,
    view: Arc<watch::Sender<Arc<View>>>,
    actor: Addr<Coordinator>,
) {
    let mut reach = Reach::default();
    let mut published = String::new();
    while actor.connected() {
        tokio::time::sleep(PERIOD).await;
        let members = reach.round(others(&view.borrow()));
        let questions = members.iter().map(|(to, address)| {
            let peers = &peers;
            async move {
                let answer = peers.holds(to, address, &[]).await;
                if let Err(why) = &answer {
                    tracing::debug!(member = to.name, address, why, "a member does not answer");
                }
                (to.name.clone(), answer.map(|_| ()))
            }
        });
        reach.record(&join_all(questions).await);
        let names = reach.unreachable();
        if names != published {
            match names.as_str() {
                "" => tracing::info!("every member answers again"),
                names => tracing::warn!(
                    members = names,
                    "members do not answer: ranges move to them and from them as after a crash; check the network \
                     between replicas, --peer-advertise-address and the peers' certificates"
                ),
            }
            let input = Input::Unreachable(names.clone());
            if actor.send(Feed(vec![input])).await.is_err() {
                return;
            }
            published = names;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coordinator_core::Member;

    fn member(name: &str) -> (Holder, String) {
        (Holder::new(name, "i"), String::new())
    }

    fn answer(name: &str, answers: bool) -> (String, Result<(), String>) {
        let result = answers.then_some(()).ok_or_else(|| "silent".to_owned());
        (name.to_owned(), result)
    }

    #[test]
    fn a_member_is_published_after_two_failures_in_a_row() {
        let mut reach = Reach::default();
        let rounds: [(&[(&str, bool)], &str); 7] = [
            (&[("b", true), ("c", false)], ""),
            (&[("b", true), ("c", false)], "c"),
            (&[("b", false), ("c", false)], "c"),
            (&[("b", false), ("c", false)], "b,c"),
            (&[("b", true), ("c", false)], "c"),
            // Gone: nobody asks it any more.
            (&[("b", true)], ""),
            (&[("b", true), ("c", false)], ""),
        ];
        for (round, expected) in rounds {
            reach.round(round.iter().map(|(name, _)| member(name)).collect());
            let answers: Vec<_> = round
                .iter()
                .map(|(name, answers)| answer(name, *answers))
                .collect();
            reach.record(&answers);
            assert_eq!(reach.unreachable(), expected, "{round:?}");
        }
    }

    #[test]
    fn of_many_some_are_asked_in_turn_and_the_silent_every_time() {
        let names: Vec<String> = (10..30).map(|at| format!("m{at}")).collect();
        let mut reach = Reach::default();
        let rounds: Vec<Vec<String>> = (0..4)
            .map(|_| {
                let round = reach.round(names.iter().map(|name| member(name)).collect());
                let asked: Vec<String> = round.into_iter().map(|(to, _)| to.name).collect();
                let answers = asked.iter().map(|name| answer(name, name != "m11"));
                reach.record(&answers.collect::<Vec<_>>());
                asked
            })
            .collect();
        assert_eq!(rounds[0], names[..8]);
        assert_eq!(rounds[1][..8], names[8..16]);
        assert_eq!(rounds[1][8..], names[1..2]);
        assert_eq!(rounds[2][..4], names[16..]);
        assert_eq!(rounds[2][4..], names[..4], "no one twice");
        assert_eq!(rounds[3].last(), Some(&names[1]));
        assert_eq!(reach.unreachable(), "m11");
    }

    #[test]
    fn ready_members_that_stay_are_asked() {
        let member = |name: &str, ready, draining| Member {
            name: name.to_owned(),
            incarnation: "i".to_owned(),
            address: format!("{name}:1"),
            ready,
            draining,
            ..Member::default()
        };
        let view = View {
            replica: "a".to_owned(),
            members: vec![
                member("a", true, false),
                member("b", true, false),
                member("c", false, false),
                member("d", true, true),
            ],
            ..View::default()
        };
        assert_eq!(others(&view), [(Holder::new("b", "i"), "b:1".to_owned())]);
    }

    #[test]
    fn all_are_compared_with_in_turn() {
        let members: Vec<(Holder, String)> = ["b", "c", "d"].map(member).to_vec();
        let mut turn = Turn::default();
        let rounds: Vec<Vec<String>> = (0..3)
            .map(|_| {
                let round = turn.next(&members, COMPARED_AT_ONCE);
                round.into_iter().map(|(to, _)| to.name).collect()
            })
            .collect();
        assert_eq!(rounds, [["b", "c"], ["d", "b"], ["c", "d"]]);
        let after_b = || Turn {
            last: "b".to_owned(),
        };
        assert_eq!(after_b().next(&members[..1], 2).len(), 1);
        assert!(after_b().next(&[], 2).is_empty());
    }
}
