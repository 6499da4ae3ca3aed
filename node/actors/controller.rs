//! One actor for each enabled controller: it says when the caches that the controller reads are complete.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use actix::{Actor, AsyncContext, Context};

use crate::shared::Shared;

/// How often caches that are not complete are examined.
const POLL: Duration = Duration::from_millis(20);

/// The actor.
pub struct Controller {
    shared: Arc<Shared>,
    unit: usize,
}

impl Controller {
    /// For a controller by its place in [`Shared::units`].
    pub fn new(shared: Arc<Shared>, unit: usize) -> Self {
        Self { shared, unit }
    }

    fn read(&mut self, ctx: &mut Context<Self>) {
        let unit = &self.shared.units[self.unit];
        if !unit
            .resources()
            .all(|resource| self.shared.view.complete(resource))
        {
            ctx.run_later(POLL, Self::read);
            return;
        }
        if !unit.ready.swap(true, Ordering::AcqRel) {
            tracing::info!(
                controller = unit.name(),
                "caches are complete; the controller works"
            );
            let name = unit.name();
            let shared = Arc::clone(&self.shared);
            // What was gained before is queued now.
            self.shared.aside.run(Duration::ZERO, move || {
                shared.wake_all(&|unit| unit.name() == name, &|_| true);
            });
        }
    }
}

impl Actor for Controller {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        self.read(ctx);
    }
}
