//! The workers of a controller: how many of its keys a replica reconciles at once. Flags and the
//! configuration file say how many; an order goes before them for as long as it holds. Both can change while
//! keys are in flight.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The workers of one controller in this replica.
#[derive(Debug)]
pub struct Workers {
    permits: Arc<Semaphore>,
    number: Mutex<Number>,
}

#[derive(Debug)]
struct Number {
    /// By flags and file.
    configured: usize,
    /// By an order.
    ordered: Option<usize>,
    /// Permits that exist: more than are wanted until enough keys are done.
    exist: usize,
}

impl Number {
    fn wanted(&self) -> usize {
        self.ordered.unwrap_or(self.configured)
    }
}

impl Workers {
    /// As many as flags and file say.
    pub fn new(configured: usize) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(configured)),
            number: Mutex::new(Number {
                configured,
                ordered: None,
                exist: configured,
            }),
        }
    }

    fn number(&self) -> MutexGuard<'_, Number> {
        self.number.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many there are to be.
    pub fn wanted(&self) -> usize {
        self.number().wanted()
    }

    /// From now on flags and file say this number. The number by which an order goes before it, if there is
    /// one.
    pub fn configure(&self, configured: usize) -> Option<usize> {
        self.change(|number| number.configured = configured)
    }

    /// From now on an order says this number; `None`: no order does.
    pub fn order(&self, ordered: Option<usize>) {
        self.change(|number| number.ordered = ordered);
    }

    /// Keys in flight are finished.
    fn change(&self, change: impl FnOnce(&mut Number)) -> Option<usize> {
        let mut number = self.number();
        change(&mut number);
        let wanted = number.wanted();
        if number.exist < wanted {
            self.permits.add_permits(wanted - number.exist);
            number.exist = wanted;
        } else {
            // Those that are not free are given up when they are.
            number.exist -= self.permits.forget_permits(number.exist - wanted);
        }
        number.ordered
    }

    /// A worker, once one is free; `None` where none ever will be.
    pub async fn acquire(self: Arc<Self>) -> Option<OwnedSemaphorePermit> {
        loop {
            let permit = Arc::clone(&self.permits).acquire_owned().await.ok()?;
            let mut number = self.number();
            if number.exist <= number.wanted() {
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
        workers.order(Some(5));
        busy.extend(std::iter::from_fn(|| take(&workers)));
        assert_eq!((busy.len(), workers.wanted()), (5, 5));
        // Fewer than are busy: each that is done is given up until the number is right.
        workers.order(Some(2));
        for left in (2..5).rev() {
            busy.pop();
            assert!(take(&workers).is_none(), "{left} are busy");
        }
        busy.pop();
        busy.push(take(&workers).expect("one of two is free"));
        assert!(take(&workers).is_none());
        // More again, before those that are too many were given up.
        workers.order(Some(1));
        workers.order(None);
        assert!(take(&workers).is_none());
        busy.clear();
        let all: Vec<_> = std::iter::from_fn(|| take(&workers)).collect();
        assert_eq!(all.len(), 2);
    }

    #[test]
    fn free_workers_go_at_once_and_come_back_with_the_end_of_an_order() {
        let workers = Arc::new(Workers::new(10));
        workers.order(Some(1));
        let one = take(&workers).expect("one is left");
        assert!(take(&workers).is_none());
        workers.order(None);
        let others: Vec<_> = std::iter::from_fn(|| take(&workers)).collect();
        assert_eq!(others.len(), 9);
        drop((one, others));
        // A controller without workers has one by an order.
        let none = Arc::new(Workers::new(0));
        assert!(take(&none).is_none());
        none.order(Some(1));
        assert!(take(&none).is_some());
    }

    #[test]
    fn an_order_goes_before_the_file_and_its_end_brings_back_what_the_file_says_by_then() {
        enum Do {
            Configure(usize),
            Order(Option<usize>),
        }
        use Do::{Configure, Order};
        for (steps, configured, wanted) in [
            (&[][..], None, 3),
            (&[Configure(5)], None, 5),
            (&[Order(Some(1))], None, 1),
            (&[Order(Some(1)), Configure(5)], Some(1), 1),
            (&[Order(Some(1)), Configure(5), Order(None)], None, 5),
            (&[Configure(5), Order(Some(9)), Order(None)], None, 5),
            (
                &[Order(Some(9)), Configure(5), Order(Some(2)), Configure(0)],
                Some(2),
                2,
            ),
            (&[Order(Some(9)), Configure(0), Order(None)], None, 0),
        ] {
            let workers = Arc::new(Workers::new(3));
            // Some are busy meanwhile.
            let busy = [take(&workers), take(&workers)];
            let mut said = None;
            for step in steps {
                match step {
                    Configure(number) => said = workers.configure(*number),
                    Order(number) => {
                        workers.order(*number);
                        said = None;
                    }
                }
            }
            assert_eq!((said, workers.wanted()), (configured, wanted));
            drop(busy);
            let all: Vec<_> = std::iter::from_fn(|| take(&workers)).collect();
            assert_eq!(all.len(), wanted);
        }
    }

    #[tokio::test]
    async fn who_waits_for_a_worker_gets_one_of_those_that_are_added() {
        let workers = Arc::new(Workers::new(1));
        let _busy = take(&workers).expect("it is free");
        let waits = tokio::spawn(Arc::clone(&workers).acquire());
        tokio::task::yield_now().await;
        workers.order(Some(2));
        assert!(waits.await.expect("no panic").is_some());
    }
}
