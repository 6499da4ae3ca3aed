//! What the peer server asks, through the actor's mailbox.

use std::sync::Arc;

use actix::Addr;
use coordinator_core::{Epoch, Holder, Input, Member, Offer, OwnLease, RangeId};
use peer_proto::{InspectRequest, RangeState, Sight};
use tokio::sync::{oneshot, watch};

use crate::{
    RangeHost,
    actor::{Asked, Coordinator, Feed, Offered, Shared},
    peer::{Answers, Holdings},
};

/// What the peer server asks, through the actor's mailbox.
pub(super) struct ActorAnswers {
    pub(super) actor: Addr<Coordinator>,
    pub(super) host: Arc<dyn RangeHost>,
    pub(super) shared: Shared,
    pub(super) own: watch::Receiver<OwnLease>,
}

impl Answers for ActorAnswers {
    async fn offered(&self, offer: Offer, state: RangeState, bytes: usize) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        let (full, is_full) = oneshot::channel();
        if self
            .actor
            .send(Offered {
                offer,
                state,
                bytes,
                answer,
                full,
            })
            .await
            .is_err()
        {
            return Err("this replica is on its way out".to_owned());
        }
        match answered.await {
            Ok(answer) => answer.map_err(|refused| refused.to_string()),
            Err(_) if is_full.await.is_ok() => Err("too much is waiting here already".to_owned()),
            Err(_) => Err("this replica is on its way out".to_owned()),
        }
    }

    async fn swap_announced(&self, from: Holder, range: RangeId, epoch: Epoch) {
        let _ = self
            .actor
            .send(Feed(vec![Input::SwapAnnounced { from, range, epoch }]))
            .await;
    }

    async fn holds(&self, ranges: Vec<RangeId>) -> Option<(String, Holdings)> {
        let (answer, answered) = oneshot::channel();
        self.actor.send(Asked { ranges, answer }).await.ok()?;
        let answer = answered.await.ok()?;
        // Read after the answer: a life that ended meanwhile holds nothing, and its asker hears the new name.
        Some((self.own.borrow().incarnation.clone(), answer))
    }

    fn sights(&self) -> Vec<Sight> {
        self.host.sights()
    }

    fn members(&self) -> watch::Receiver<Vec<Member>> {
        self.shared.members.subscribe()
    }

    async fn inspect(&self, asked: InspectRequest) -> Result<Vec<u8>, String> {
        self.host.inspect(asked).await
    }
}
