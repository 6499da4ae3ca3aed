//! One actor for each watched resource: it runs the watch loop.

use std::sync::Arc;

use actix::{Actor, AsyncContext, Context, WrapFuture};
use controllers_kit::Resource;
use node_cache::{Api, Cache};

/// The actor. The loop reconnects and lists again by itself; it ends with the actor.
pub struct Watch {
    cache: Arc<Cache>,
    resource: &'static Resource,
    api: Api,
}

impl Watch {
    /// For a resource that the cache was built with.
    pub fn new(cache: Arc<Cache>, resource: &'static Resource, api: Api) -> Self {
        Self {
            cache,
            resource,
            api,
        }
    }
}

impl Actor for Watch {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        let run = self.cache.run(self.resource, self.api.clone());
        ctx.spawn(
            async move {
                run.await;
            }
            .into_actor(self),
        );
    }
}
