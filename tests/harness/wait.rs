//! Waiting for a fact, with a bound and with the last reason why it did not hold yet.

use std::future::Future;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::time::Instant;

/// Asks `probe` every `every` until it gives a value. `Ok(None)` and `Err` both mean "not yet"; after
/// `limit` the error names `what` was awaited and the last error seen.
pub async fn until<T, P, F>(what: &str, limit: Duration, every: Duration, mut probe: P) -> Result<T>
where
    P: FnMut() -> F,
    F: Future<Output = Result<Option<T>>>,
{
    let deadline = Instant::now() + limit;
    let mut last = None;
    loop {
        match tokio::time::timeout_at(deadline, probe()).await {
            Ok(Ok(Some(value))) => return Ok(value),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = last.or_else(|| Some(anyhow!("the last attempt gave no answer"))),
        }
        if Instant::now() + every >= deadline {
            match last {
                Some(error) => bail!("{what}: not within {limit:?}; last seen: {error:#}"),
                None => bail!("{what}: not within {limit:?}"),
            }
        }
        tokio::time::sleep(every).await;
    }
}
