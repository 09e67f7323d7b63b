//! Passes on the body of an answer while it arrives. Limits its length to what was announced, and the time between two
//! pieces.

use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};

use super::error::TransportError;
use super::wire::silence;

/// Receives the bytes of a range in order. `Break` ends the transfer, and the connection with it.
pub type Sink<'a> = dyn FnMut(&[u8]) -> ControlFlow<()> + Send + 'a;

/// The end of the delivery of a body, if there was no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyEnd {
    /// All of it was delivered.
    Complete(u64),
    /// The sink ended it.
    Stopped(u64),
}

/// The range that the body may hold.
#[derive(Clone, Copy, Debug)]
pub(super) enum ExpectedBody {
    /// Exactly this many bytes.
    Exactly(u64),
    /// At most this many.
    AtMost(u64),
}

/// The time limit for the end of a body after all of its bytes have arrived.
const LAST: Duration = Duration::from_secs(1);

/// Delivers `body` to the sink. Never more than was expected: a longer body is an error before its surplus is
/// delivered.
///
/// # Errors
/// `Transient` for a body that breaks off or stalls. The error says how much was delivered.
pub(super) async fn pour<S, E>(
    mut body: S,
    expected: ExpectedBody,
    idle: Duration,
    sink: &mut Sink<'_>,
) -> Result<BodyEnd, TransportError>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<TransportError>,
{
    let (ExpectedBody::Exactly(most) | ExpectedBody::AtMost(most)) = expected;
    let mut delivered = 0u64;
    loop {
        // All bytes have arrived, so a server that does not end the body is not waited for.
        let complete = delivered == most && matches!(expected, ExpectedBody::Exactly(_));
        let patience = if complete { idle.min(LAST) } else { idle };
        let chunk = match tokio::time::timeout(patience, body.next()).await {
            Err(_) | Ok(Some(Err(_))) if complete => return Ok(BodyEnd::Complete(delivered)),
            Err(_) => return Err(silence(idle).after(delivered)),
            Ok(Some(Err(error))) => return Err(error.into().after(delivered)),
            Ok(None) if delivered < most && matches!(expected, ExpectedBody::Exactly(_)) => {
                return Err(TransportError::transient("the connection ended early").after(delivered));
            }
            Ok(None) => return Ok(BodyEnd::Complete(delivered)),
            Ok(Some(Ok(chunk))) => chunk,
        };
        if chunk.is_empty() {
            continue;
        }
        if chunk.len() as u64 > most - delivered {
            return Err(TransportError::protocol("the server sends more bytes than it announced").after(delivered));
        }
        delivered += chunk.len() as u64;
        if sink(&chunk).is_break() {
            return Ok(BodyEnd::Stopped(delivered));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::super::error::ErrorKind;
    use super::*;

    async fn run(
        pieces: Vec<Result<&'static [u8], TransportError>>,
        expected: ExpectedBody,
    ) -> (Result<BodyEnd, TransportError>, Vec<u8>) {
        let mut seen = Vec::new();
        let body = stream::iter(pieces.into_iter().map(|piece| piece.map(Bytes::from_static)));
        let end = pour(body, expected, Duration::from_secs(60), &mut |bytes| {
            seen.extend_from_slice(bytes);
            if seen.ends_with(b"!") { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .await;
        (end, seen)
    }

    #[tokio::test]
    async fn bodies_are_bounded_and_breaks_say_what_was_delivered() {
        let exactly = ExpectedBody::Exactly(5);
        let (end, seen) = run(vec![Ok(b"ab"), Ok(b""), Ok(b"cde")], exactly).await;
        assert_eq!((end, seen.as_slice()), (Ok(BodyEnd::Complete(5)), &b"abcde"[..]));

        let (end, seen) = run(vec![Ok(b"ab"), Ok(b"cdef")], exactly).await;
        let error = end.unwrap_err();
        assert_eq!((error.kind(), error.delivered(), seen.as_slice()), (ErrorKind::Protocol, 2, &b"ab"[..]));

        let broken = TransportError::transient("reset");
        for pieces in [vec![Ok(&b"ab"[..])], vec![Ok(&b"ab"[..]), Err(broken)]] {
            let (end, seen) = run(pieces, exactly).await;
            let error = end.unwrap_err();
            assert_eq!((error.kind(), error.delivered()), (ErrorKind::Transient { retry_after: None }, 2));
            assert_eq!(seen, b"ab");
        }

        let (end, _) = run(vec![Ok(b"ab!"), Ok(b"cd")], exactly).await;
        assert_eq!(end, Ok(BodyEnd::Stopped(3)));
        let (end, _) = run(vec![Ok(b"ab")], ExpectedBody::AtMost(5)).await;
        assert_eq!(end, Ok(BodyEnd::Complete(2)));
    }

    #[tokio::test]
    async fn a_silent_body_is_given_up() {
        let body = stream::iter([Ok::<_, TransportError>(Bytes::from_static(b"a"))]).chain(stream::pending());
        let end =
            pour(body, ExpectedBody::Exactly(2), Duration::from_millis(20), &mut |_| ControlFlow::Continue(())).await;
        let error = end.unwrap_err();
        assert_eq!((error.kind(), error.delivered()), (ErrorKind::Transient { retry_after: None }, 1));
    }
}
