//! Answers that no proper server gives, and silence.

use std::ops::ControlFlow;
use std::time::Duration;

use weightfs::remote::transport::{ErrorKind, TransportClient, TransportError, TransportOptions};

use crate::servers::canned::{Then, in_turn, lose_second_request, serve, serve_pieces, two_at_once};
use crate::servers::content;
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

#[tokio::test]
async fn the_rest_of_a_part_that_is_shorter_than_the_range_is_asked_for() {
    let (file, client) = (content(100, 1), client(&[]));
    let (address, requests) = serve_pieces(&file, 7);
    let (object, head) = open(&client, &format!("http://{address}/x"), 20).await.unwrap();
    assert_eq!((object.len, &*head), (100, &file[..20]));
    assert_eq!(fetch(&client, &object, 80..100).await.unwrap(), file[80..]);
    let mut pieces = 0;
    let stop = &mut |_: &[u8]| {
        pieces += 1;
        ControlFlow::Break(())
    };
    client.fetch(&object, 40..60, stop).await.unwrap();
    assert_eq!(pieces, 1);
    let requests: Vec<_> = requests.try_iter().map(|request| request.to_ascii_lowercase()).collect();
    let ranges = ["0-19", "7-19", "14-19", "80-99", "87-99", "94-99", "40-59"];
    assert_eq!(requests.len(), ranges.len());
    for (request, range) in requests.iter().zip(ranges) {
        assert!(request.contains(&format!("range: bytes={range}\r\n")), "{range}: {request}");
        assert_eq!(request.contains("if-match: \"v1\""), range != "0-19", "{request}");
    }
}

#[tokio::test]
async fn every_part_of_a_range_is_checked() {
    let first = "HTTP/1.1 206 x\r\nContent-Range: bytes 0-0/100\r\nContent-Length: 1\r\nETag: \"v1\"\r\n\
        Connection: close\r\n\r\nx";
    let start = format!("{GOOD}Content-Length: 4\r\nConnection: close\r\n\r\n0123").replace("10-19", "10-13");
    let rest = start.replace("10-13", "14-17");
    let rows = [
        (rest.clone(), TRANSIENT, 8),
        (rest.replace("v1", "v2"), ErrorKind::Changed, 4),
        (rest.replace("/100", "/101"), ErrorKind::Changed, 4),
        (rest.replace("206 Partial Content", "412 No"), ErrorKind::Changed, 4),
        (rest.replace("14-17", "13-16"), ErrorKind::Protocol, 4),
        (rest.replace("14-17", "15-18"), ErrorKind::Protocol, 4),
        (rest.replace("14-17", "14-13"), ErrorKind::Protocol, 4),
        (rest.replace("14-17", "17-20"), ErrorKind::Protocol, 4),
        (rest.replace("206 Partial Content", "200 OK"), ErrorKind::NoRanges, 4),
        (rest.replace("206 Partial Content", "503 No"), TRANSIENT, 4),
    ];
    for (second, kind, delivered) in rows {
        let (address, _requests) = in_turn(&[first, &start, &second, ""], Then::Close);
        let client = client(&[]);
        let (object, _) = open(&client, &format!("http://{address}/x"), 1).await.unwrap();
        let (result, bytes) = fetch_some(&client, &object, 10..20).await;
        failure(result, kind, &[]);
        assert_eq!(bytes.len(), delivered, "{second}");
    }
}

#[tokio::test]
async fn the_hub_and_stores_are_read_on_too() {
    let head = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
        Content-Length: 100\r\nConnection: close\r\n\r\n";
    let part = |range: std::ops::Range<usize>| {
        let (start, last, len) = (range.start, range.end - 1, range.len());
        let text: String = range.map(|at| char::from(b'a' + (at % 26) as u8)).collect();
        format!(
            "HTTP/1.1 206 x\r\nContent-Range: bytes {start}-{last}/100\r\nContent-Length: {len}\r\nETag: \"v1\"\r\n\
            Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nConnection: close\r\n\r\n{text}"
        )
    };
    let (address, _requests) = in_turn(&[head, &part(10..15), &part(15..20)], Then::Close);
    let endpoint = format!("http://{address}");
    let store =
        client(&[("AWS_ENDPOINT_URL", &endpoint), ("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")]);
    let tree = resolve(&store, "s3://models/m").await.unwrap();
    let object = tree.object("m").unwrap().clone();
    assert_eq!(fetch(&store, &object, 10..20).await.unwrap(), b"klmnopqrst");

    let json =
        |body: String| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let revision = json(format!(r#"{{"sha": "{commit}", "private": false}}"#));
    let listing = json(format!(r#"[{{"type": "file", "path": "m", "size": 100, "oid": "{commit}"}}]"#));
    let (address, _requests) = in_turn(&[&revision, &listing, &part(10..15), &part(15..20)], Then::Close);
    let endpoint = format!("http://{address}");
    let hub = client(&[("HF_ENDPOINT", &endpoint)]);
    let tree = resolve(&hub, "hf://a/b").await.unwrap();
    let object = tree.object("m").unwrap().clone();
    assert_eq!(fetch(&hub, &object, 10..20).await.unwrap(), b"klmnopqrst");
}
