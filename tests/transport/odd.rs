//! Answers that no proper server gives, and silence.

use std::time::Duration;

use weightfs::remote::transport::{ErrorKind, TransportClient, TransportError, TransportOptions};

use crate::servers::canned::{Then, in_turn, lose_second_request, serve, two_at_once};
use crate::support::*;

/// Opens a file of 100 bytes that is served properly, then fetches 10..20 from the given answer.
async fn fetch_from(answer: &str, then: Then, idle_timeout: Duration) -> (Result<(), TransportError>, Vec<u8>) {
    let impatient = TransportClient::new(TransportOptions { idle_timeout, ..options(&[]) }).unwrap();
    let first = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-0/100\r\nContent-Length: 1\r\n\
        ETag: \"v1\"\r\nConnection: close\r\n\r\nx";
    let (target, _) = in_turn(&[first, answer], then);
    let (object, _) = open(&client(&[]), &format!("http://{target}/x"), 1).await.unwrap();
    fetch_some(&impatient, &object, 10..20).await
}

const GOOD: &str = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 10-19/100\r\nETag: \"v1\"\r\n";

#[tokio::test]
async fn only_the_promised_bytes_are_delivered() {
    let good = |rest: &str| format!("{GOOD}{rest}");
    let rows = [
        (good("Content-Length: 10\r\n\r\n0123456789"), Then::Close, None),
        (good("\r\n0123456789"), Then::Stall, None),
        (good("Content-Length: 10\r\n\r\n01234"), Then::Close, Some((TRANSIENT, 5))),
        (good("Content-Length: 10\r\n\r\n01234"), Then::Reset, Some((TRANSIENT, 5))),
        (good("Content-Length: 10\r\n\r\n01234"), Then::Stall, Some((TRANSIENT, 5))),
        (good("\r\n01234"), Then::Close, Some((TRANSIENT, 5))),
        (good("\r\n0123456789abc"), Then::Close, Some((ErrorKind::Protocol, 0))),
        (good("Transfer-Encoding: chunked\r\n\r\n5\r\n01234\r\n0\r\n\r\n"), Then::Close, Some((TRANSIENT, 5))),
        (good("Content-Length: 11\r\n\r\n0123456789a"), Then::Close, Some((ErrorKind::Protocol, 0))),
        (good("Content-Length: 10\r\n\r\n").replace("10-19", "11-20"), Then::Close, Some((ErrorKind::Protocol, 0))),
        (good("Content-Length: 10\r\n\r\n").replace("v1", "v2"), Then::Close, Some((ErrorKind::Changed, 0))),
        (good("Content-Length: 10\r\n\r\n").replace("/100", "/101"), Then::Close, Some((ErrorKind::Changed, 0))),
        (String::new(), Then::Close, Some((TRANSIENT, 0))),
        (String::new(), Then::Stall, Some((TRANSIENT, 0))),
        (String::new(), Then::Reset, Some((TRANSIENT, 0))),
        ("HTTP/1.1 206".to_string(), Then::Stall, Some((TRANSIENT, 0))),
        ("SSH-2.0-x\r\n\r\n".to_string(), Then::Close, Some((ErrorKind::Protocol, 0))),
        ("HTTP/1.1 206 x\r\nno header\r\n\r\n".to_string(), Then::Close, Some((ErrorKind::Protocol, 0))),
        (format!("HTTP/1.1 206 x\r\n{}\r\n", "a: b\r\n".repeat(9999)), Then::Close, Some((ErrorKind::Protocol, 0))),
        ("HTTP/1.1 302 Found\r\n\r\n".to_string(), Then::Close, Some((ErrorKind::Protocol, 0))),
        ("HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n".to_string(), Then::Close, Some((ErrorKind::Protocol, 0))),
        (
            "HTTP/1.1 302 Found\r\nLocation: http://u:p@127.0.0.1:1/?SECRET\r\n\r\n".to_string(),
            Then::Close,
            Some((TRANSIENT, 0)),
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nETag: \"v1\"\r\n\r\n".to_string(),
            Then::Stall,
            Some((ErrorKind::NoRanges, 0)),
        ),
        ("HTTP/1.1 416 x\r\nContent-Range: bytes */50\r\n\r\n".to_string(), Then::Close, Some((ErrorKind::Changed, 0))),
    ];
    for (answer, then, expected) in rows {
        // An answer that stalls is waited for in vain. On a busy machine, what does come may take longer than that.
        let delivers = expected.map_or(10, |(_, delivered)| delivered);
        let mut idle_timeout = Duration::from_millis(if then == Then::Stall { 250 } else { 60_000 });
        let (result, bytes) = loop {
            let (result, bytes) = fetch_from(&answer, then, idle_timeout).await;
            if bytes.len() == delivers && result.is_ok() == expected.is_none() || idle_timeout.as_secs() >= 60 {
                break (result, bytes);
            }
            idle_timeout *= 4;
        };
        match expected {
            None => assert_eq!((result, &*bytes), (Ok(()), &b"0123456789"[..])),
            Some((kind, delivered)) => {
                let error = failure(result, kind, &["SECRET"]);
                assert_eq!(bytes.len(), delivered, "{answer}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn a_request_that_is_lost_with_a_kept_connection_is_sent_again() {
    let first = "HTTP/1.1 206 x\r\nContent-Range: bytes 0-0/100\r\nContent-Length: 1\r\nETag: \"v1\"\r\n\r\nx";
    let later = format!("{GOOD}Content-Length: 10\r\nConnection: close\r\n\r\n0123456789");
    for then in [Then::Close, Then::Reset] {
        let client = client(&[]);
        let (target, lost) = lose_second_request(first, then, &later);
        let (object, _) = open(&client, &format!("http://{target}/x"), 1).await.unwrap();
        // Until the first connection is kept, requests have connections of their own.
        let mut request = lost.try_recv();
        while request.is_err() {
            assert_eq!(fetch(&client, &object, 10..20).await.unwrap(), b"0123456789");
            request = lost.try_recv();
        }
        assert!(request.unwrap().to_ascii_lowercase().contains("range: bytes=10-19"));
    }
}

#[tokio::test]
async fn the_first_request_copes_with_servers_that_tell_little() {
    let impatient =
        TransportClient::new(TransportOptions { idle_timeout: Duration::from_secs(60), ..options(&[]) }).unwrap();
    let rows: [(&str, Result<&[u8], ErrorKind>); 5] = [
        ("HTTP/1.1 200 OK\r\n\r\n0123456789", Ok(b"0123456789")),
        ("HTTP/1.1 200 OK\r\n\r\n0123456789012345678901234567890123456789", Err(ErrorKind::NoRanges)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", Err(ErrorKind::NoRanges)),
        ("HTTP/1.1 416 x\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\n\r\n", Ok(b"")),
        ("HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-9/*\r\nContent-Length: 10\r\n\r\n", Err(ErrorKind::Protocol)),
    ];
    for (answer, expected) in rows {
        let address = serve(answer.as_bytes().to_vec(), Then::Close);
        let got = open(&impatient, &format!("http://{address}/x"), 20).await;
        match expected {
            Ok(bytes) => {
                let (object, head) = got.unwrap();
                assert_eq!((object.len, head.as_slice()), (bytes.len() as u64, bytes), "{answer}");
            }
            Err(kind) => drop(failure(got, kind, &[])),
        }
    }
}

/// A request that had to wait for the answer to the one before would cost a round trip each.
#[tokio::test]
async fn ranges_of_a_file_are_asked_for_at_the_same_time() {
    let client = client(&[]);
    let first = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-0/100\r\nContent-Length: 1\r\n\
        ETag: \"v1\"\r\nConnection: close\r\n\r\nx";
    let address = two_at_once(first, &format!("{GOOD}Content-Length: 10\r\nConnection: close\r\n\r\n0123456789"));
    let (object, _) = open(&client, &format!("http://{address}/x"), 1).await.unwrap();
    let both = tokio::join!(fetch(&client, &object, 10..20), fetch(&client, &object, 10..20));
    assert_eq!((both.0.unwrap(), both.1.unwrap()), (b"0123456789".to_vec(), b"0123456789".to_vec()));
}
