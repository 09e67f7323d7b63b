//! Passes on the body of an answer while it arrives. Limits its length, and the time between two pieces.

use std::ops::{ControlFlow, Range};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tokio::time::Instant;

use super::error::{ErrorKind, TransportError, TransportResult};
use crate::remote::is_progress;

/// Receives the bytes of a range in order. `Break` ends the transfer, and the connection with it.
pub type Sink<'a> = dyn FnMut(&[u8]) -> ControlFlow<()> + Send + 'a;

pub(super) type BodyPieces = BoxStream<'static, TransportResult<Bytes>>;

#[derive(Clone, Copy, Debug)]
pub(super) enum ExpectedBody {
    Exactly(u64),
    AtMost(u64),
}

/// The time limit for the end of a body after all of its bytes have arrived.
const LAST: Duration = Duration::from_secs(1);

/// Delivers `body` to the sink, until the sink ends it. Never more than was expected: a longer body is an error before
/// its surplus is delivered. `idle` is the time limit for bytes, and for less than [`crate::remote::RATE_MIN`].
pub(super) async fn pour(
    mut body: BodyPieces,
    expected: ExpectedBody,
    idle: Duration,
    sink: &mut Sink<'_>,
) -> TransportResult<()> {
    let (ExpectedBody::Exactly(most) | ExpectedBody::AtMost(most)) = expected;
    let mut delivered = 0u64;
    let mut pace = BodyPace::new(Instant::now());
    loop {
        // All bytes have arrived, so a server that does not end the body is not waited for.
        let complete = delivered == most && matches!(expected, ExpectedBody::Exactly(_));
        let deadline = if complete { Instant::now() + idle.min(LAST) } else { pace.progress_at + idle };
        let chunk = match tokio::time::timeout_at(deadline, body.next()).await {
            Err(_) | Ok(Some(Err(_))) if complete => return Ok(()),
            Err(_) if pace.since > 0 => return Err(TransportError::slowness(pace.since, idle)),
            Err(_) => return Err(TransportError::silence(idle)),
            Ok(Some(Err(error))) => return Err(error),
            Ok(None) if delivered < most && matches!(expected, ExpectedBody::Exactly(_)) => {
                return Err(TransportError::transient("the connection ended early"));
            }
            Ok(None) => return Ok(()),
            Ok(Some(Ok(chunk))) => chunk,
        };
        if chunk.is_empty() {
            continue;
        }
        if chunk.len() as u64 > most - delivered {
            return Err(ErrorKind::Protocol.error("the server sends more bytes than it announced"));
        }
        delivered += chunk.len() as u64;
        let is_progress = pace.add(chunk.len() as u64, Instant::now());
        if sink(&chunk).is_break() {
            return Ok(());
        }
        if is_progress {
            // The time that the sink took is not the server's.
            pace = BodyPace::new(Instant::now());
        }
    }
}

/// When bytes arrived fast enough last, and how many have arrived since.
struct BodyPace {
    progress_at: Instant,
    since: u64,
}

impl BodyPace {
    fn new(now: Instant) -> BodyPace {
        BodyPace { progress_at: now, since: 0 }
    }

    /// Adds bytes that arrived now. Returns whether those since the last progress are fast enough.
    fn add(&mut self, bytes: u64, now: Instant) -> bool {
        self.since += bytes;
        is_progress(self.since, now - self.progress_at)
    }
}

/// Delivers a range of `body`, as [`pour`] does.
pub(super) async fn pour_part(
    body: BodyPieces,
    expected: ExpectedBody,
    idle: Duration,
    range: Range<u64>,
    sink: &mut Sink<'_>,
) -> TransportResult<()> {
    let mut at = 0;
    pour(body, expected, idle, &mut |bytes| {
        let from = range.start.saturating_sub(at).min(bytes.len() as u64) as usize;
        let to = range.end.saturating_sub(at).min(bytes.len() as u64) as usize;
        at += bytes.len() as u64;
        let stopped = from < to && sink(&bytes[from..to]).is_break();
        if stopped || at >= range.end { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .await
}

/// All of a body, as [`pour`] delivers it.
pub(super) async fn collect_body(body: BodyPieces, expected: ExpectedBody, idle: Duration) -> TransportResult<Vec<u8>> {
    let mut bytes = Vec::new();
    pour(body, expected, idle, &mut |piece| {
        bytes.extend_from_slice(piece);
        ControlFlow::Continue(())
    })
    .await?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::super::error::ErrorKind;
    use super::*;

    async fn run(
        pieces: Vec<TransportResult<&'static [u8]>>,
        expected: ExpectedBody,
    ) -> (TransportResult<()>, Vec<u8>) {
        let mut seen = Vec::new();
        let body = stream::iter(pieces.into_iter().map(|piece| piece.map(Bytes::from_static))).boxed();
        let end = pour(body, expected, Duration::from_secs(60), &mut |bytes| {
            seen.extend_from_slice(bytes);
            if seen.ends_with(b"!") { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .await;
        (end, seen)
    }

    #[tokio::test]
    async fn bodies_are_bounded_and_what_came_before_a_break_is_delivered() {
        let exactly = ExpectedBody::Exactly(5);
        let (end, seen) = run(vec![Ok(b"ab"), Ok(b""), Ok(b"cde")], exactly).await;
        assert_eq!((end, seen.as_slice()), (Ok(()), &b"abcde"[..]));

        let (end, seen) = run(vec![Ok(b"ab"), Ok(b"cdef")], exactly).await;
        assert_eq!((end.unwrap_err().kind, seen.as_slice()), (ErrorKind::Protocol, &b"ab"[..]));

        let broken = TransportError::transient("reset");
        for pieces in [vec![Ok(&b"ab"[..])], vec![Ok(&b"ab"[..]), Err(broken)]] {
            let (end, seen) = run(pieces, exactly).await;
            assert_eq!(end.unwrap_err().kind, ErrorKind::Transient { retry_after: None });
            assert_eq!(seen, b"ab");
        }

        let (end, seen) = run(vec![Ok(b"ab!"), Ok(b"cd")], exactly).await;
        assert_eq!((end, seen.as_slice()), (Ok(()), &b"ab!"[..]));
        let (end, seen) = run(vec![Ok(b"ab")], ExpectedBody::AtMost(5)).await;
        assert_eq!((end, seen.as_slice()), (Ok(()), &b"ab"[..]));
    }

    #[tokio::test]
    async fn a_silent_body_is_given_up() {
        let body = stream::iter([Ok::<_, TransportError>(Bytes::from_static(b"a"))]).chain(stream::pending()).boxed();
        let end =
            pour(body, ExpectedBody::Exactly(2), Duration::from_millis(20), &mut |_| ControlFlow::Continue(())).await;
        assert_eq!(end.unwrap_err().kind, ErrorKind::Transient { retry_after: None });
    }

    #[test]
    fn a_body_that_drips_is_given_up() {
        const IDLE: Duration = Duration::from_secs(30);
        // Bytes of each piece, milliseconds between two pieces, and how many bytes arrive of 1 MiB before the deadline.
        for (len, pause, expected) in [(1, 700, 42), (1000, 900, 1_049_000), (1000, 1100, 27_000)] {
            let mut now = Instant::now();
            let mut pace = BodyPace::new(now);
            let mut seen = 0;
            while seen < 1 << 20 {
                now += Duration::from_millis(pause);
                if now > pace.progress_at + IDLE {
                    break;
                }
                seen += len;
                if pace.add(len, now) {
                    pace = BodyPace::new(now);
                }
            }
            assert_eq!(seen, expected, "{len} {pause}");
        }
    }
}
