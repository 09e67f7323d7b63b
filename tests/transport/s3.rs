//! S3, against moto and SeaweedFS, which enforce signatures and permissions.

use std::net::TcpListener;
use std::ops::ControlFlow;
use std::process::Command;
use std::time::Duration;

use base64::Engine;
use serde_json::json;
use weightfs::remote::transport::{ChangeCertainty, ErrorKind, TransportClient, TransportOptions};

use crate::servers::canned::{Then, in_turn, serve};
use crate::servers::content;
use crate::servers::python::Python;
use crate::support::*;

struct S3 {
    python: Python,
    url: String,
}

impl S3 {
    fn start(script: &str) -> S3 {
        let python = Python::start(script);
        let url = python.text("url");
        S3 { python, url }
    }

    fn put(&mut self, bucket: &str, key: &str, bytes: &[u8]) {
        let data = base64::prelude::BASE64_STANDARD.encode(bytes);
        assert_eq!(self.python.ask(json!({"do": "put", "bucket": bucket, "key": key, "data": data})), json!({}));
    }

    fn user(&self, name: &str) -> (String, String) {
        let user = &self.python.hello["users"][name];
        (user["id"].as_str().unwrap().to_string(), user["secret"].as_str().unwrap().to_string())
    }

    fn client(&self, name: &str) -> TransportClient {
        let (id, secret) = self.user(name);
        client(&[
            ("AWS_ENDPOINT_URL_S3", &self.url),
            ("AWS_ACCESS_KEY_ID", &id),
            ("AWS_SECRET_ACCESS_KEY", &secret),
            ("AWS_REGION", "us-east-1"),
        ])
    }
}

/// What every server for S3 must do. It starts for all of this, because that takes some seconds.
async fn is_read_in_every_way(script: &str) {
    let mut s3 = S3::start(script);
    keys_and_prefixes_are_pinned_listed_and_read(&mut s3).await;
    overwritten_key_is_noticed_and_its_version_kept(&mut s3).await;
    credentials_are_found_and_wrong_ones_refused_without_showing_them(&mut s3).await;
}

#[tokio::test]
async fn moto_is_read_in_every_way() {
    is_read_in_every_way("s3.py").await;
}

#[tokio::test]
async fn seaweedfs_is_read_in_every_way() {
    is_read_in_every_way("seaweed.py").await;
}

async fn keys_and_prefixes_are_pinned_listed_and_read(s3: &mut S3) {
    let big = content(300_000, 1);
    s3.put("models", "llama/model.safetensors", &big);
    s3.put("models", "llama/a b+?#%ü.gguf", b"odd");
    s3.put("models", "llama/sub/x.gguf", b"deep");
    s3.put("models", "llama/sub/", b"");
    s3.put("models", "llama-2/x.gguf", b"other");
    s3.put("models", "empty", b"");
    let client = s3.client("reader");

    let tree = resolve(&client, "s3://models/llama").await.unwrap();
    let listed: Vec<_> =
        tree.files.iter().map(|(path, object)| (path.as_str(), object.as_ref().unwrap().len)).collect();
    assert_eq!(listed, [("a b+?#%ü.gguf", 3), ("model.safetensors", 300_000), ("sub/x.gguf", 4)]);
    assert!(tree.is_complete);
    let object = tree.object("model.safetensors").unwrap().clone();
    assert_eq!((object.certainty(), object.version.is_public), (ChangeCertainty::Exact, false));
    for range in [0..1, 1000..200_000, 0..300_000] {
        assert!(fetch(&client, &object, range.clone()).await.unwrap() == big[range.start as usize..range.end as usize]);
    }
    let (_, head) = probe(&client, &tree, "a b+?#%ü.gguf", 100).await.unwrap();
    assert_eq!(head, b"odd");
    failure(probe(&client, &tree, "missing", 100).await, ErrorKind::Missing, &[]);
    assert_eq!(resolve(&client, "s3://models/llama/").await.unwrap().files.len(), 3);
    assert_eq!(resolve(&client, "s3://models").await.unwrap().files.len(), 5);

    let tree = resolve(&client, "s3://models/llama/model.safetensors").await.unwrap();
    assert_eq!(tree.path, "model.safetensors");
    let same = tree.object("model.safetensors").unwrap().clone();
    assert_eq!(
        (&same.version.identity, &same.version.validator),
        (&object.version.identity, &object.version.validator)
    );
    let (_, head) = probe(&client, &tree, "sub/x.gguf", 2).await.unwrap();
    assert_eq!(head, b"de");
    failure(probe(&client, &tree, "missing", 100).await, ErrorKind::Missing, &[]);
    let (empty, head) = open(&client, "s3://models/empty", 100).await.unwrap();
    assert_eq!((empty.len, head.len()), (0, 0));
    failure(resolve(&client, "s3://models/nothing").await, ErrorKind::Missing, &[]);
    failure(resolve(&client, "s3://no-such-bucket/x").await, ErrorKind::Missing, &[]);
    let mut pieces = 0;
    let mut stop = |_: &[u8]| {
        pieces += 1;
        ControlFlow::Break(())
    };
    client.fetch(&object, 0..300_000, &mut stop).await.unwrap();
    assert_eq!(pieces, 1);
}

#[tokio::test]
async fn odd_keys_are_named_and_do_not_hide_others() {
    let mut s3 = S3::start("s3.py");
    for (key, bytes) in [
        ("odd/model.safetensors", "a"),
        ("odd/ a .gguf", "b"),
        ("odd//empty", "c"),
        ("odd/tab\tx", "d"),
        ("odd/up/../x", "e"),
        ("odd/.", "f"),
        ("odd/", ""),
        ("odd/folder/", ""),
        ("odd/folder/x.gguf", "g"),
        ("odd/full/", "h"),
        ("odd/x", "object"),
        ("odd/x/model.safetensors", "i"),
        ("only//odd", "j"),
        ("/root", "k"),
    ] {
        s3.put("models", key, bytes.as_bytes());
    }
    let client = s3.client("reader");
    let tree = resolve(&client, "s3://models/odd").await.unwrap();
    let files = ["a .gguf", "folder/x.gguf", "model.safetensors", "x/model.safetensors"];
    assert_eq!(tree.files.keys().map(|path| path.trim_start()).collect::<Vec<_>>(), files);
    for path in tree.files.keys() {
        assert_eq!(probe(&client, &tree, path, 10).await.unwrap().1.len(), 1, "{path}");
    }
    let odd = r#"(5 in all): "odd/.", "odd//empty", "odd/full/", "odd/tab\tx", "odd/up/../x""#;
    log_shows(&format!(
        "s3://models/odd: keys with empty components, `.`, `..`, control characters or a slash at the end are not shown {odd}"
    ));
    log_shows("s3://models/odd: objects with other keys below theirs are not shown (1 in all): \"x\"");
    assert_eq!(open(&client, "s3://models/odd/x", 10).await.unwrap().1, b"object");
    assert_eq!(resolve(&client, "s3://models").await.unwrap().files.len(), files.len());
    log_shows("(7 in all): \"/root\", ");
    let error = failure(resolve(&client, "s3://models/only").await, ErrorKind::Missing, &[]);
    assert!(error.to_string().contains("can be shown"), "{error}");
}

async fn overwritten_key_is_noticed_and_its_version_kept(s3: &mut S3) {
    let client = s3.client("reader");
    for bucket in ["models", "versioned"] {
        s3.put(bucket, "m", &content(5000, 1));
        let (object, _) = open(&client, &format!("s3://{bucket}/m"), 10).await.unwrap();
        s3.put(bucket, "m", &content(5000, 2));
        let got = fetch(&client, &object, 100..200).await;
        if bucket == "versioned" {
            assert_eq!(got.unwrap(), content(5000, 1)[100..200], "the pinned version is still there");
            assert_eq!(fetch(&client, &object, 0..5000).await.unwrap(), content(5000, 1));
        } else {
            failure(got, ErrorKind::Changed, &[]);
        }
        s3.python.ask(json!({"do": "delete", "bucket": bucket, "key": "m"}));
        let got = fetch(&client, &object, 100..200).await;
        if bucket == "versioned" {
            assert_eq!(got.unwrap(), content(5000, 1)[100..200]);
        } else {
            failure(got, ErrorKind::Missing, &[]);
        }
    }
}

async fn credentials_are_found_and_wrong_ones_refused_without_showing_them(s3: &mut S3) {
    s3.put("models", "m", b"bytes");
    let (id, secret) = s3.user("reader");
    let wrong = "WRONG-SECRET-8d0f2a";
    let secrets = [secret.as_str(), wrong, "Signature="];
    let base = [("AWS_ENDPOINT_URL", s3.url.as_str()), ("AWS_REGION", "us-east-1")];
    let with = |more: &[(&str, &str)]| client(&[&base, more].concat());

    let refused = with(&[("AWS_ACCESS_KEY_ID", &id), ("AWS_SECRET_ACCESS_KEY", wrong)]);
    let error = failure(resolve(&refused, "s3://models/m").await, ErrorKind::Forbidden, &secrets);
    assert!(error.to_string().contains("SignatureDoesNotMatch"), "{error}");
    let error = failure(resolve(&refused, "s3://models/").await, ErrorKind::Forbidden, &secrets);
    assert!(error.to_string().contains("SignatureDoesNotMatch"), "{error}");
    let unknown = with(&[("AWS_ACCESS_KEY_ID", "AKIAUNKNOWN"), ("AWS_SECRET_ACCESS_KEY", wrong)]);
    failure(resolve(&unknown, "s3://models/m").await, ErrorKind::Forbidden, &secrets);
    let stranger = s3.client("stranger");
    let error = failure(resolve(&stranger, "s3://models/m").await, ErrorKind::Forbidden, &secrets);
    assert!(error.to_string().contains("AccessDenied"), "{error}");
    assert!(error.to_string().contains("missing keys"), "{error}");

    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    let process = format!("echo '{{\"Version\":1,\"AccessKeyId\":\"{id}\",\"SecretAccessKey\":\"{secret}\"}}'");
    let config = format!(
        "[profile keys]\nregion = us-east-1\nendpoint_url = {}\n[profile process]\nendpoint_url = {}\ncredential_process = {process}\n",
        s3.url, s3.url
    );
    std::fs::write(home.path().join(".aws/config"), config).unwrap();
    let keys = format!("[keys]\naws_access_key_id = {id}\naws_secret_access_key = {secret}\n");
    std::fs::write(home.path().join(".aws/credentials"), keys).unwrap();
    let home = home.path().to_str().unwrap();
    for profile in ["keys", "process"] {
        let client = client(&[("HOME", home), ("AWS_PROFILE", profile)]);
        let (object, head) = open(&client, "s3://models/m", 10).await.unwrap();
        assert_eq!(head, b"bytes", "{profile}");
        shows_no(&format!("{client:?} {object:?} {} {}", object.version.identity, object.version.validator), &secrets);
    }
    let missing = client(&[("HOME", home), ("AWS_PROFILE", "missing")]);
    failure(resolve(&missing, "s3://models/m").await, ErrorKind::Credentials, &secrets);

    // Without the permission to read for everybody, a request without credentials is refused too.
    let anonymous = with(&[("AWS_SKIP_SIGNATURE", "true")]);
    assert!(resolve(&anonymous, "s3://models/m").await.is_err());
}

#[tokio::test]
async fn a_machine_without_credentials_says_so_soon() {
    let off = client(&[("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), ("AWS_EC2_METADATA_DISABLED", "true")]);
    failure(resolve(&off, "s3://models/m").await, ErrorKind::Credentials, &[]);
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: a network namespace needs root");
        return;
    }
    // In AWS, a metadata service answers. So the child has a network of its own, with the address of that service.
    let network = r#"ip link set lo up; ip address add 169.254.169.254/32 dev lo; exec "$@""#;
    let output = Command::new("unshare")
        .args(["--net", "sh", "-ec", network, "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "s3::metadata_service_is_absent", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
#[ignore = "run by another test in a separate process"]
async fn metadata_service_is_absent() {
    // The metadata service has a time limit of its own, which is far shorter than that of other servers.
    let limit = Duration::from_secs(3600);
    let variables = [("AWS_ENDPOINT_URL", "http://127.0.0.1:1")];
    let patient = TransportOptions { idle_timeout: limit, connect_timeout: limit, ..options(&variables) };
    let absent = TransportClient::new(patient).unwrap();
    // Connections are refused, and then nobody answers.
    let mut silent = None;
    for _ in 0..2 {
        let resolved = tokio::time::timeout(limit / 6, resolve(&absent, "s3://models/m")).await;
        let error = failure(resolved.unwrap(), ErrorKind::Credentials, &[]);
        assert!(error.to_string().contains("AWS_ACCESS_KEY_ID"), "{error}");
        silent.get_or_insert_with(|| TcpListener::bind("169.254.169.254:80").unwrap());
    }
}

#[tokio::test]
async fn keys_come_from_the_services_of_a_cloud() {
    let secrets = ["SECRET-KEY-1", "SESSION-TOKEN-1", "IDENTITY-TOKEN-1", "IMDS-TOKEN-1"];
    let answer =
        |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len());
    let json = answer(
        r#"{"Code": "Success", "AccessKeyId": "AKIA1", "SecretAccessKey": "SECRET-KEY-1", "Token": "SESSION-TOKEN-1",
        "Expiration": "2999-01-01T00:00:00Z", "LastUpdated": "2026-01-01T00:00:00Z"}"#,
    );
    let xml = answer(
        "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>\
        <SessionToken>SESSION-TOKEN-1</SessionToken><SecretAccessKey>SECRET-KEY-1</SecretAccessKey>\
        <Expiration>2999-01-01T00:00:00Z</Expiration><AccessKeyId>AKIA1</AccessKeyId>\
        </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("identity");
    std::fs::write(&file, "IDENTITY-TOKEN-1").unwrap();
    let file = file.to_str().unwrap();
    let role = ("AWS_ROLE_ARN", "arn:aws:iam::1:role/x");
    let rows = [
        ("AWS_METADATA_ENDPOINT", vec![answer("IMDS-TOKEN-1"), answer("role"), json.clone()], vec![]),
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", vec![json], vec![("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", file)]),
        ("AWS_ENDPOINT_URL_STS", vec![xml], vec![("AWS_WEB_IDENTITY_TOKEN_FILE", file), role]),
    ];
    for (name, answers, variables) in rows {
        let answers: Vec<_> = answers.iter().map(String::as_str).collect();
        let (service, asked) = in_turn(&answers, Then::Close);
        let (store, requests) = in_turn(&[HEAD, PART], Then::Close);
        let (service, store) = (format!("http://{service}"), format!("http://{store}"));
        let mut all = vec![(name, service.as_str()), ("AWS_ENDPOINT_URL_S3", &store)];
        all.extend(variables);
        let client = client(&all);
        let tree = resolve(&client, "s3://models/m").await.unwrap_or_else(|error| panic!("{name}: {error}"));
        let object = tree.object("m").unwrap().clone();
        assert_eq!(fetch(&client, &object, 10..20).await.unwrap(), b"0123456789");
        assert_eq!(asked.try_iter().count(), answers.len(), "{name}: the keys are kept");
        for request in requests.try_iter() {
            assert!(request.contains("Credential=AKIA1/") && request.contains("SESSION-TOKEN-1"), "{name}: {request}");
        }
        shows_no(&format!("{client:?} {object:?}"), &secrets);

        // A service that refuses, and repeats what it got.
        if name == "AWS_METADATA_ENDPOINT" {
            continue;
        }
        let no = "HTTP/1.1 403 No\r\nConnection: close\r\n\r\n<Error><Message>said IDENTITY-TOKEN-1</Message></Error>";
        let service = format!("http://{}", serve(no.as_bytes().to_vec(), Then::Close));
        all[0].1 = &service;
        // At its own address, a refusal of the container's service has this kind too.
        let kind = if name.contains("CONTAINER") { ErrorKind::Forbidden } else { ErrorKind::Credentials };
        let refused = failure(resolve(&super::support::client(&all), "s3://models/m").await, kind, &secrets);
        assert!(refused.to_string().contains("said ***"), "{refused}");
    }
    log_shows_no(&secrets);
}

/// A client of a server that gives these answers in turn, and the requests that it got.
fn canned(answers: &[&str]) -> (TransportClient, std::sync::mpsc::Receiver<String>) {
    let (address, requests) = in_turn(answers, Then::Close);
    let client = client(&[
        ("AWS_ENDPOINT_URL", &format!("http://{address}")),
        ("AWS_ACCESS_KEY_ID", "id"),
        ("AWS_SECRET_ACCESS_KEY", "WRONG-SECRET"),
        ("AWS_SESSION_TOKEN", "SESSION-TOKEN-1"),
    ]);
    (client, requests)
}

const HEAD: &str = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nContent-Length: 100\r\n\
    Connection: close\r\n\r\n";

const PART: &str = "HTTP/1.1 206 Partial\r\nETag: \"v1\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
    Content-Range: bytes 10-19/100\r\nContent-Length: 10\r\nConnection: close\r\n\r\n0123456789";

#[tokio::test]
async fn a_bucket_in_another_region_is_asked_there() {
    // moto knows no regions.
    let elsewhere = "HTTP/1.1 400 Bad Request\r\nx-amz-bucket-region: eu-west-3\r\nContent-Length: 0\r\n\
        Connection: close\r\n\r\n";
    let (client, requests) = canned(&[elsewhere, HEAD]);
    let tree = resolve(&client, "s3://models/m").await.unwrap();
    assert_eq!(tree.object("m").unwrap().len, 100);
    let seen: Vec<_> = requests.try_iter().collect();
    assert!(seen[0].contains("/us-east-1/s3/") && seen[1].contains("/eu-west-3/s3/"), "{seen:?}");
}

#[tokio::test]
async fn answers_of_stores_are_checked_like_all_others() {
    let slow = "HTTP/1.1 503 Slow Down\r\nRetry-After: 9\r\nConnection: close\r\n\r\n<Error><Code>SlowDown</Code>\
        <Message>Reduce your rate, SESSION-TOKEN-1, https://h/?WRONG-SECRET</Message></Error>";
    let rows = [
        (PART.to_string(), Ok(())),
        (PART.replace("v1", "v2"), Err((ErrorKind::Changed, 0))),
        (PART.replace("/100", "/101"), Err((ErrorKind::Changed, 0))),
        (PART.replace("10-19", "11-20"), Err((ErrorKind::Protocol, 0))),
        (PART.replace("0123456789", "0123"), Err((TRANSIENT, 4))),
        (PART.replace("206 Partial", "200 OK"), Err((ErrorKind::NoRanges, 0))),
        (PART.replace("206 Partial", "412 No"), Err((ErrorKind::Changed, 0))),
        (PART.replace("206 Partial", "404 No"), Err((ErrorKind::Missing, 0))),
        (slow.to_string(), Err((ErrorKind::Transient { retry_after: Some(Duration::from_secs(9)) }, 0))),
    ];
    let secrets = ["WRONG-SECRET", "SESSION-TOKEN-1"];
    for (answer, expected) in rows {
        let (client, requests) = canned(&[HEAD, &answer]);
        let tree = resolve(&client, "s3://models/m").await.unwrap();
        let object = tree.object("m").unwrap().clone();
        let (got, bytes) = fetch_some(&client, &object, 10..20).await;
        match expected {
            Ok(()) => assert_eq!((got, &*bytes), (Ok(()), &b"0123456789"[..])),
            Err((kind, delivered)) => {
                failure(got, kind, &secrets);
                assert_eq!(bytes.len(), delivered, "{answer}");
            }
        }
        let seen = requests.try_iter().last().unwrap().to_ascii_lowercase();
        for header in ["if-match: \"v1\"", "range: bytes=10-19", "accept-encoding: identity"] {
            assert!(seen.contains(header), "{seen}");
        }
        shows_no(&format!("{client:?} {object:?}"), &secrets);
    }
    log_shows_no(&secrets);
}
