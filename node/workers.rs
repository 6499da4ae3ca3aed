//! The workers of a controller: how many of its keys a replica reconciles at once. Flags and the
//! configuration file say how many; an order goes before them for as long as it holds. Both can change while
//! keys are in flight.
//!
//! Where nobody has set the number, upstream's default is where it starts from: it grows while keys wait for
//! a worker though the API server and the allowance of requests have room, and falls back afterwards. Answers
//! 429 lower any number that no order has set.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Where the number is the default's, it grows up to this many times as much: what limits a controller then
/// is the allowance of requests, not how long each of them takes.
const GROWTH_MAX: usize = 4;

/// What a controller's last second was like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Second {
    /// A key waited for a worker.
    pub waited: bool,
    /// The API server answered 429.
    pub throttled: bool,
    /// Requests wait for their turn: more workers would only wait beside them.
    pub limited: bool,
}

/// The number of workers after such a second. Pure. `most` is the bound of its growth.
fn next(current: usize, configured: usize, most: usize, second: Second) -> usize {
    let Second {
        waited,
        throttled,
        limited,
    } = second;
    if throttled {
        return (current / 2).max(usize::from(configured > 0));
    }
    if waited && !limited {
        return (current + (current / 4).max(1)).min(most.max(configured));
    }
    match current.cmp(&configured) {
        std::cmp::Ordering::Less => current + 1,
        std::cmp::Ordering::Equal => current,
        std::cmp::Ordering::Greater => current - 1,
    }
}

/// The workers of one controller in this replica.
#[derive(Debug)]
pub struct Workers {
    permits: Arc<Semaphore>,
    number: Mutex<Number>,
    /// Whether a key has waited for one since that was asked for.
    waited: AtomicBool,
}

#[derive(Debug)]
struct Number {
    /// By flags and file.
    configured: usize,
    /// Whether that is the default's, so that it may grow.
    is_default: bool,
    /// What it has been adapted to; as configured at first.
    adapted: usize,
    /// By an order.
    ordered: Option<usize>,
    /// Permits that exist: more than are wanted until enough keys are done.
    exist: usize,
}

impl Number {
    fn wanted(&self) -> usize {
        self.ordered.unwrap_or(self.adapted)
    }
}

impl Workers {
    /// As many as flags and file say; `is_default` where they say nothing.
    pub fn new(configured: usize, is_default: bool) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(configured)),
            number: Mutex::new(Number {
                configured,
                is_default,
                adapted: configured,
                ordered: None,
                exist: configured,
            }),
            waited: AtomicBool::new(false),
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
    /// one. `is_default` where they say nothing.
    pub fn configure(&self, configured: usize, is_default: bool) -> Option<usize> {
        self.change(|number| {
            (number.configured, number.adapted) = (configured, configured);
            number.is_default = is_default;
        })
    }

    /// Adapts the number to the last second, to be called once in each.
    pub fn adapt(&self, throttled: bool, limited: bool) {
        let second = Second {
            waited: self.waited.swap(false, Ordering::Relaxed),
            throttled,
            limited,
        };
        let number = self.number();
        let most = match number.is_default {
            true => number.configured * GROWTH_MAX,
            false => number.configured,
        };
        let adapted = next(number.adapted, number.configured, most, second);
        let is_same = adapted == number.adapted;
        drop(number);
        if !is_same {
            self.change(|number| number.adapted = adapted);
        }
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
            let free = Arc::clone(&self.permits).try_acquire_owned();
            let permit = match free {
                Ok(permit) => permit,
                Err(_) => {
                    self.waited.store(true, Ordering::Relaxed);
                    Arc::clone(&self.permits).acquire_owned().await.ok()?
                }
            };
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
        let workers = Arc::new(Workers::new(2, false));
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
        let workers = Arc::new(Workers::new(10, false));
        workers.order(Some(1));
        let one = take(&workers).expect("one is left");
        assert!(take(&workers).is_none());
        workers.order(None);
        let others: Vec<_> = std::iter::from_fn(|| take(&workers)).collect();
        assert_eq!(others.len(), 9);
        drop((one, others));
        // A controller without workers has one by an order.
        let none = Arc::new(Workers::new(0, false));
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
            let workers = Arc::new(Workers::new(3, false));
            // Some are busy meanwhile.
            let busy = [take(&workers), take(&workers)];
            let mut said = None;
            for step in steps {
                match step {
                    Configure(number) => said = workers.configure(*number, false),
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
        let workers = Arc::new(Workers::new(1, false));
        let _busy = take(&workers).expect("it is free");
        let waits = tokio::spawn(Arc::clone(&workers).acquire());
        tokio::task::yield_now().await;
        workers.order(Some(2));
        assert!(waits.await.expect("no panic").is_some());
    }

    #[test]
    fn a_default_grows_while_keys_wait_and_comes_back_and_answers_429_halve_any_number() {
        let quiet = Second::default();
        let waited = Second {
            waited: true,
            ..quiet
        };
        let limited = Second {
            limited: true,
            ..waited
        };
        let throttled = Second {
            throttled: true,
            ..waited
        };
        for (current, configured, most, second, expected) in [
            (5, 5, 20, quiet, 5),
            (5, 5, 20, waited, 6),
            (12, 5, 20, waited, 15),
            (19, 5, 20, waited, 20),
            (20, 5, 20, waited, 20),
            (20, 5, 20, quiet, 19),
            (20, 5, 20, limited, 19),
            (5, 5, 20, limited, 5),
            // As somebody has set it.
            (5, 5, 5, waited, 5),
            (5, 5, 5, throttled, 2),
            (2, 5, 5, waited, 3),
            (2, 5, 5, quiet, 3),
            (20, 5, 20, throttled, 10),
            (1, 5, 20, throttled, 1),
            // A controller without workers has none.
            (0, 0, 0, waited, 0),
            (0, 0, 0, throttled, 0),
        ] {
            let number = next(current, configured, most, second);
            assert_eq!(number, expected, "{current} of {configured}: {second:?}");
        }
    }

    #[tokio::test]
    async fn an_order_goes_before_what_was_adapted() {
        let workers = Arc::new(Workers::new(2, true));
        let busy: Vec<_> = std::iter::from_fn(|| take(&workers)).collect();
        let waits = tokio::spawn(Arc::clone(&workers).acquire());
        tokio::task::yield_now().await;
        workers.adapt(false, false);
        assert_eq!(workers.wanted(), 3);
        assert!(waits.await.expect("no panic").is_some());
        workers.order(Some(1));
        workers.adapt(true, false);
        assert_eq!(workers.wanted(), 1);
        workers.order(None);
        assert_eq!(workers.wanted(), 1, "halved meanwhile");
        drop(busy);
        workers.adapt(false, false);
        assert_eq!(workers.wanted(), 2);
        workers.adapt(false, false);
        assert_eq!(workers.wanted(), 2);
    }
}
