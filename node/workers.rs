//! The workers of a controller: how many of its keys a replica reconciles at once. An order can change their
//! number while they work.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The workers of one controller in this replica.
#[derive(Debug)]
pub struct Workers {
    permits: Arc<Semaphore>,
    /// By the flags.
    configured: usize,
    number: Mutex<Number>,
}

#[derive(Debug)]
struct Number {
    wanted: usize,
    /// Permits that exist: more than are wanted until enough keys are done.
    exist: usize,
}

impl Workers {
    /// As many as the flags say.
    pub fn new(configured: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(configured)),
            configured,
            number: Mutex::new(Number {
                wanted: configured,
                exist: configured,
            }),
        }
    }

    fn number(&self) -> MutexGuard<'_, Number> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are to be.
    pub fn wanted(&self) -> usize {
        self.number().wanted
    }

    /// From now on this number; `None`: as many as the flags say. Keys in flight are finished.
    pub fn set(&self, wanted: Option<usize>) {
        let wanted = wanted.unwrap_or(self.configured);
        let mut number = self.number();
        number.wanted = wanted;
        if number.exist < wanted {
            self.permits.add_permits(wanted - number.exist);
            number.exist = wanted;
        } else {
            // Those that are not free are given up when they are.
            number.exist -= self.permits.forget_permits(number.exist - wanted);
        }
    }

    /// A worker, once one is free; `None` where none ever will be.
    pub async fn acquire(self: Arc<Self>) -> Option<OwnedSemaphorePermit> {
        loop {
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
            let mut number = self.number();
            if number.exist <= number.wanted {
                return Some(permit);
            }
            number.exist -= 1;
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn take(workers: &Arc<Workers>) -> Option<OwnedSemaphorePermit> {
        Arc::clone(workers).acquire().now_or_never().flatten()
    }

    #[test]
    fn no_more_keys_are_reconciled_than_there_are_workers_whatever_is_set_meanwhile() {
        let workers = Arc::new(Workers::new(2));
        let mut busy: Vec<_> = std::iter::from_fn(|| take(&workers)).collect();
        assert_eq!(busy.len(), 2);
        workers.set(Some(5));
        busy.extend(std::iter::from_fn(|| take(&workers)));
        assert_eq!((busy.len(), workers.wanted()), (5, 5));
        // Fewer than are busy: each that is done is given up until the number is right.
        workers.set(Some(2));
        for left in (2..5).rev() {
            busy.pop();
            assert!(take(&workers).is_none(), "{left} are busy");
        }
        busy.pop();
        busy.push(take(&workers).expect("one of two is free"));
        assert!(take(&workers).is_none());
        // More again, before those that are too many were given up.
        workers.set(Some(1));
        workers.set(None);
        assert!(take(&workers).is_none());
        busy.clear();
        let all: Vec<_> = std::iter::from_fn(|| take(&workers)).collect();
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn free_workers_go_at_once_and_come_back_with_the_end_of_an_order() {
        let workers = Arc::new(Workers::new(10));
        workers.set(Some(1));
        let one = take(&workers).expect("one is left");
        assert!(take(&workers).is_none());
        workers.set(None);
        let others: Vec<_> = std::iter::from_fn(|| take(&workers)).collect();
        assert_eq!(others.len(), 9);
        drop((one, others));
        // A controller without workers has one by an order.
        let none = Arc::new(Workers::new(0));
        assert!(take(&none).is_none());
        none.set(Some(1));
        assert!(take(&none).is_some());
    }

    #[tokio::test]
    async fn who_waits_for_a_worker_gets_one_of_those_that_are_added() {
        let workers = Arc::new(Workers::new(1));
        let _busy = take(&workers).expect("it is free");
        let waits = tokio::spawn(Arc::clone(&workers).acquire());
        tokio::task::yield_now().await;
        workers.set(Some(2));
        assert!(waits.await.expect("no panic").is_some());
    }
}
