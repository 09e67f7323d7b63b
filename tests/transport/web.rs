//! Plain HTTP, against nginx.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weightfs::remote::transport::{ChangeCertainty, ErrorKind, TransportClient, TransportOptions};

use crate::servers::content;
use crate::servers::nginx::{Nginx, PASSWORD, TOKEN};
use crate::servers::ports::ClosedPort;
use crate::support::*;

#[tokio::test]
async fn a_file_is_pinned_by_its_first_request_and_read_in_ranges() {
    let nginx = Nginx::start();
    let bytes = content(300_000, 1);
    nginx.put("dir/a b+ü?#%.gguf", &bytes);
    nginx.put("dir/model.json", b"{}");
    let client = client(&[]);
    let url = nginx.url("dir/a%20b%2B%C3%BC%3F%23%25.gguf?download=true");
    let tree = resolve(&client, &url).await.unwrap();
    assert_eq!(nginx.log().len(), 0, "resolving a URL costs no request");
    assert_eq!(tree.path, "a b+ü?#%.gguf");
    let (object, head) = probe(&client, &tree, "a b+ü?#%.gguf", 1000).await.unwrap();
    assert_eq!((object.len, head.as_slice()), (300_000, &bytes[..1000]));
    assert_eq!(object.certainty(), ChangeCertainty::Exact);
    assert!(!object.version.is_public, "it has a query");
    assert_eq!(client.identity(&location(&url)).unwrap(), object.version.identity);
    for range in [0..1, 299_999..300_000, 1234..250_000, 0..300_000] {
        let got = fetch(&client, &object, range.clone()).await.unwrap();
        assert!(got == bytes[range.start as usize..range.end as usize], "{range:?}");
    }
    assert_eq!(fetch(&client, &object, 5..5).await.unwrap(), b"");
    let outside = fetch(&client, &object, 0..300_001).await;
    failure(outside, ErrorKind::Invalid, &[]);
    let (sibling, head) = probe(&client, &tree, "model.json", 64).await.unwrap();
    assert_eq!((sibling.len, head.as_slice()), (2, &b"{}"[..]));
    failure(probe(&client, &tree, "missing.json", 64).await, ErrorKind::Missing, &[]);
    failure(probe(&client, &tree, "../x", 64).await, ErrorKind::Invalid, &[]);

    let log = nginx.log();
    for request in &log {
        assert_eq!((request[1].as_str(), request[7].as_str()), ("GET", "identity"), "{request:?}");
    }
    assert_eq!(log[0][4], "bytes=0-999");
    assert!(log[1..5].iter().all(|request| request[5].starts_with('"')), "every range is conditional");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_parts_of_a_file_come_at_once() {
    let nginx = Nginx::start();
    let bytes = content(3_000_000, 7);
    nginx.put("m", &bytes);
    let client = client(&[]);
    let (object, _) = open(&client, &nginx.url("m"), 10).await.unwrap();
    let parts: Vec<_> = (0..60u64)
        .map(|part| {
            let (client, object) = (client.clone(), object.clone());
            tokio::spawn(async move { fetch(&client, &object, part * 50_000..(part + 1) * 50_000).await })
        })
        .collect();
    for (part, got) in parts.into_iter().enumerate() {
        assert!(got.await.unwrap().unwrap() == bytes[part * 50_000..(part + 1) * 50_000]);
    }
}

#[tokio::test]
async fn a_stop_of_the_sink_ends_the_transfer() {
    let nginx = Nginx::start();
    nginx.put("x", b"");
    let client = client(&[]);
    let (object, _) = open(&client, &nginx.url("slow/x"), 10).await.unwrap();
    assert_eq!(object.len, 0, "an empty file has no bytes to ask for");
    nginx.put("x", &content(2_000_000, 2));
    let (object, _) = open(&client, &nginx.url("drip/x"), 10).await.unwrap();
    let mut got = 0;
    let mut stop = |piece: &[u8]| {
        got += piece.len();
        ControlFlow::Break(())
    };
    // The whole file takes hours.
    tokio::time::timeout(Duration::from_secs(600), client.fetch(&object, 0..2_000_000, &mut stop))
        .await
        .unwrap()
        .unwrap();
    assert!(got > 0 && got < 1_000_000, "{got}");
}

#[tokio::test]
async fn a_changed_file_is_never_mixed() {
    let nginx = Nginx::start();
    let client = client(&[]);
    for place in ["", "weak/", "undated/"] {
        nginx.put("m", &content(1000, 3));
        let (object, _) = open(&client, &nginx.url(&format!("{place}m")), 10).await.unwrap();
        let certainty = match place {
            "" => ChangeCertainty::Exact,
            "weak/" => ChangeCertainty::Date,
            _ => ChangeCertainty::Length,
        };
        assert_eq!(object.certainty(), certainty, "{place}");
        assert_eq!(fetch(&client, &object, 5..10).await.unwrap(), content(1000, 3)[5..10]);
        // Another length.
        nginx.put("m", &content(1001, 4));
        failure(fetch(&client, &object, 5..10).await, ErrorKind::Changed, &[]);
        // The same length, a later second.
        nginx.put("m", &content(1000, 5));
        let later = SystemTime::now() + Duration::from_secs(5);
        std::fs::File::options().append(true).open(nginx.file("m")).unwrap().set_modified(later).unwrap();
        match certainty {
            ChangeCertainty::Length => {
                assert_eq!(fetch(&client, &object, 5..10).await.unwrap(), content(1000, 5)[5..10])
            }
            _ => drop(failure(fetch(&client, &object, 5..10).await, ErrorKind::Changed, &[])),
        }
        std::fs::remove_file(nginx.file("m")).unwrap();
        failure(fetch(&client, &object, 5..10).await, ErrorKind::Missing, &[]);
    }
}

#[tokio::test]
async fn servers_without_ranges_are_refused_before_they_send_the_file() {
    let nginx = Nginx::start();
    let client = client(&[]);
    nginx.put("small", &content(100, 1));
    nginx.put("large", &content(50_000_000, 1));
    let (object, head) = open(&client, &nginx.url("noranges/small"), 1000).await.unwrap();
    assert_eq!((object.len, head), (100, content(100, 1)));
    assert_eq!(fetch(&client, &object, 0..100).await.unwrap(), content(100, 1));
    let error = failure(fetch(&client, &object, 1..100).await, ErrorKind::NoRanges, &[]);
    assert!(error.to_string().contains("download it first"), "{error}");
    failure(open(&client, &nginx.url("noranges/large"), 1000).await, ErrorKind::NoRanges, &[]);
    failure(open(&client, &nginx.url("encoded/large"), 1000).await, ErrorKind::NoRanges, &[]);
    // A server that compresses on request is asked not to.
    let (object, _) = open(&client, &nginx.url("gzip/large"), 1000).await.unwrap();
    assert_eq!((object.len, object.certainty()), (50_000_000, ChangeCertainty::Exact));
}

#[tokio::test]
async fn refusals_have_their_kinds() {
    let nginx = Nginx::start();
    let client = client(&[]);
    nginx.put("x", b"bytes");
    let rows = [
        ("missing", ErrorKind::Missing),
        ("gone/x", ErrorKind::Missing),
        ("basic/x", ErrorKind::Forbidden),
        ("echo/x", ErrorKind::Forbidden),
        ("busy/x", ErrorKind::Transient { retry_after: Some(Duration::from_secs(7)) }),
        ("down/x", TRANSIENT),
        ("drop/x", TRANSIENT),
        ("loop/x", ErrorKind::Protocol),
        ("ftp/x", ErrorKind::Protocol),
    ];
    for (path, kind) in rows {
        failure(open(&client, &format!("{}?k=SECRET", nginx.url(path)), 100).await, kind, &["SECRET"]);
    }
    assert!(nginx.log().iter().filter(|request| request[2] == "/loop/x").count() <= 6);
    let port = ClosedPort::new();
    let closed = format!("http://127.0.0.1:{}/x?SECRET", port.port());
    failure(open(&client, &closed, 100).await, TRANSIENT, &["SECRET"]);
    failure(open(&client, "http://nowhere.invalid/x?SECRET", 100).await, TRANSIENT, &["SECRET"]);
    failure(resolve(&client, &nginx.url("folder/")).await, ErrorKind::Invalid, &[]);
    log_shows_no(&["SECRET"]);
    // What a URL that is signed for GET wants.
    assert_eq!(open(&client, &nginx.url("nohead/x"), 100).await.unwrap().1, b"bytes");
    let offline = TransportClient::new(TransportOptions { offline: true, ..options(&[]) }).unwrap();
    failure(resolve(&offline, &nginx.url("x")).await, ErrorKind::Offline, &[]);
}

#[tokio::test]
async fn an_expired_link_is_refused() {
    let nginx = Nginx::start();
    nginx.put("x", b"bytes");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let url = |expires: u64| {
        let script =
            format!("printf '%s' '{expires}/expiring/x secret' | openssl md5 -binary | base64 | tr +/ -_ | tr -d =");
        let hash = std::process::Command::new("sh").args(["-c", &script]).output().unwrap().stdout;
        nginx.url(&format!("expiring/x?md5={}&expires={expires}", String::from_utf8(hash).unwrap().trim()))
    };
    let client = client(&[]);
    let (object, _) = open(&client, &url(now + 1000), 100).await.unwrap();
    assert_eq!(fetch(&client, &object, 1..3).await.unwrap(), b"yt");
    failure(open(&client, &url(now - 10), 100).await, ErrorKind::Missing, &[]);
    failure(open(&client, &nginx.url("expiring/x?md5=SECRET&expires=1"), 100).await, ErrorKind::Forbidden, &["SECRET"]);
}

#[tokio::test]
async fn a_body_that_breaks_off_gives_what_came() {
    let nginx = Nginx::start();
    // So large that it takes minutes: the file is cut long before its end is sent.
    nginx.put("x", &content(4_000_000, 1));
    let client = client(&[]);
    let (object, _) = open(&client, &nginx.url("slow/x"), 10).await.unwrap();
    let file = std::fs::File::options().write(true).open(nginx.file("x")).unwrap();
    let mut got = Vec::new();
    let result = client
        .fetch(&object, 0..4_000_000, &mut |piece| {
            if got.is_empty() {
                // nginx opened the file and promised all of it.
                file.set_len(30_000).unwrap();
            }
            got.extend_from_slice(piece);
            ControlFlow::Continue(())
        })
        .await;
    failure(result, TRANSIENT, &[]);
    assert!(!got.is_empty() && got.len() < 4_000_000);
    assert!(content(4_000_000, 1).starts_with(&got));
}

#[tokio::test]
async fn credentials_go_to_their_server_only() {
    let nginx = Nginx::start();
    nginx.put("x", b"bytes");
    let dir = tempfile::tempdir().unwrap();
    let (netrc, token) = (dir.path().join("netrc"), dir.path().join("token"));
    std::fs::write(&netrc, format!("machine 127.0.0.1 login me password {PASSWORD}\n")).unwrap();
    std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
    let secrets = [TOKEN, PASSWORD, "UEFTU1dPUkQ", "bWU6UEFT"];
    let with_netrc = client(&[("NETRC", netrc.to_str().unwrap())]);
    let with_token =
        TransportClient::new(TransportOptions { token_file: Some(token.clone()), ..options(&[]) }).unwrap();
    shows_no(&format!("{with_netrc:?} {with_token:?}"), &secrets);

    for (client, path) in [(&with_netrc, "basic/x"), (&with_token, "bearer/x"), (&with_token, "handover/x")] {
        let (object, head) = open(client, &nginx.url(path), 100).await.unwrap();
        assert_eq!((head.as_slice(), object.version.is_public), (&b"bytes"[..], false), "{path}");
        assert_eq!(fetch(client, &object, 1..3).await.unwrap(), b"yt");
        shows_no(&format!("{object:?} {} {}", object.version.identity, object.version.validator), &secrets);
    }
    // A server elsewhere could otherwise send the client back with credentials to a place of its choice.
    failure(open(&with_token, &nginx.url("elsewhere/back/bearer/x"), 100).await, ErrorKind::Forbidden, &secrets);
    let user = nginx.url("basic/x").replace("http://", &format!("http://me:{PASSWORD}@"));
    let (object, _) = open(&client(&[]), &user, 100).await.unwrap();
    assert_eq!(fetch(&client(&[]), &object, 1..3).await.unwrap(), b"yt");
    shows_no(&format!("{object:?} {} {}", object.version.identity, object.version.name), &secrets);

    let elsewhere: Vec<_> = nginx.log().into_iter().filter(|request| request[0] == nginx.other.to_string()).collect();
    assert_eq!(elsewhere.len(), 3, "two probes and a range were redirected");
    assert!(elsewhere.iter().all(|request| request[6].is_empty()), "{elsewhere:?}");

    // What the server says about credentials, and even repeats.
    let error = failure(open(&with_token, &nginx.url("echo/x"), 100).await, ErrorKind::Forbidden, &secrets);
    assert!(error.to_string().contains("you sent"), "{error}");
    failure(open(&with_netrc, &nginx.url("echo/x"), 100).await, ErrorKind::Forbidden, &secrets);
    failure(open(&with_token, &nginx.url("basic/x"), 100).await, ErrorKind::Forbidden, &secrets);
    log_shows_no(&secrets);
    std::fs::write(&token, format!("{TOKEN} {PASSWORD}")).unwrap();
    failure(open(&with_token, &nginx.url("bearer/x"), 100).await, ErrorKind::Credentials, &secrets);
}

#[tokio::test]
async fn redirects_keep_the_range_and_the_condition() {
    let nginx = Nginx::start();
    nginx.put("x", &content(5000, 1));
    let client = client(&[]);
    for place in ["elsewhere", "here"] {
        let (object, _) = open(&client, &nginx.url(&format!("{place}/x")), 10).await.unwrap();
        assert_eq!(fetch(&client, &object, 100..200).await.unwrap(), content(5000, 1)[100..200]);
        nginx.put("x", &content(5001, 1));
        failure(fetch(&client, &object, 100..200).await, ErrorKind::Changed, &[]);
        nginx.put("x", &content(5000, 1));
    }
}
