//! Repeats attempts that failed for a reason that may pass.

use super::super::transport::{ErrorKind, TransportError};
use std::time::{Duration, Instant, SystemTime};

/// The pause after the first attempt. It doubles with each further one.
const FIRST: Duration = Duration::from_millis(200);

/// The longest pause, unless the server asks for a longer one.
const LONGEST: Duration = Duration::from_secs(10);

/// Attempts until one succeeds or fails for good, or `timeout` would pass before the next one.
pub(super) async fn retry<T, F>(timeout: Duration, attempt: impl Fn() -> F) -> Result<T, TransportError>
where
    F: Future<Output = Result<T, TransportError>>,
{
    let started = Instant::now();
    let mut pause = FIRST;
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let ErrorKind::Transient { retry_after } = error.kind() else { return Err(error) };
        let wait = retry_after.unwrap_or_else(|| pause.mul_f64(jitter()));
        if started.elapsed() + wait > timeout {
            return Err(error);
        }
        log::info!("{error}; the next attempt is in {:.1} s", wait.as_secs_f64());
        tokio::time::sleep(wait).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// A factor from 0.5 to 1.5, so that processes that failed together do not try again together.
fn jitter() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    0.5 + f64::from(now.subsec_micros() % 1000) / 1000.0
}
