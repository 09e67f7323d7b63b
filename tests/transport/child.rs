//! What reads the environment of the process itself, proxies and certificates, so it runs in a child.

use std::process::Command;

use crate::servers::canned::{Then, in_turn};
use crate::servers::nginx::{Nginx, TOKEN};
use crate::servers::ports::ClosedPort;
use crate::support::*;

/// Opens a URL in a child with only the given variables. Returns what it printed.
fn open_in_child(url: &str, variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child::opens_the_url_of_its_environment", "--nocapture", "--ignored"])
        .env_clear()
        .envs(variables.iter().copied())
        .env("WEIGHTFS_TEST_URL", url)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let shown = text.lines().find(|line| line.contains("DEBUG ")).unwrap_or_default();
    shows_no(shown, &[TOKEN]);
    assert!(shown.contains("Client"), "{shown}");
    let text = text.lines().find_map(|line| line.split_once("RESULT ")).map(|(_, text)| text.to_string());
    text.unwrap_or_else(|| panic!("{}", String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test]
#[ignore = "run by another test in a separate process"]
async fn opens_the_url_of_its_environment() {
    let url = std::env::var("WEIGHTFS_TEST_URL").unwrap();
    let store = std::env::var("GOOGLE_BASE_URL").unwrap_or_default();
    let variables = if store.is_empty() { vec![] } else { vec![("GOOGLE_BASE_URL", store.as_str())] };
    let client = client(&variables);
    println!("DEBUG {client:?}");
    match open(&client, &url, 100).await {
        Ok((_, head)) => println!("RESULT {}", String::from_utf8_lossy(&head)),
        Err(error) => println!("RESULT {:?}: {error}", error.kind),
    }
}

#[test]
fn certificates_come_from_the_system_and_its_variables() {
    let nginx = Nginx::start();
    nginx.put("x", b"bytes");
    let url = format!("https://localhost:{}/x?SECRET", nginx.tls);
    let refused = open_in_child(&url, &[]);
    assert!(refused.starts_with("Certificate"), "{refused}");
    shows_no(&refused, &["SECRET"]);
    let authority = nginx.authority();
    assert_eq!(open_in_child(&url, &[("SSL_CERT_FILE", authority.to_str().unwrap())]), "bytes");
    let downgrade = format!("https://localhost:{}/open/x", nginx.tls);
    let refused = open_in_child(&downgrade, &[("SSL_CERT_FILE", authority.to_str().unwrap())]);
    assert!(refused.starts_with("Protocol") && refused.contains("unencrypted"), "{refused}");
}

#[test]
fn metadata_service_of_google_gives_a_token_for_the_store() {
    let json = r#"{"access_token":"ACCESS-TOKEN-1","expires_in":3600,"token_type":"Bearer"}"#;
    let token = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{json}", json.len());
    let about = "ETag: \"v1\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nx-goog-generation: 7\r\n\
        Connection: close\r\n";
    let head = format!("HTTP/1.1 200 OK\r\n{about}Content-Length: 5\r\n\r\n");
    let part = format!("HTTP/1.1 206 Part\r\n{about}Content-Range: bytes 0-4/5\r\nContent-Length: 5\r\n\r\nbytes");
    let (service, asked) = in_turn(&[&token], Then::Close);
    let (store, read) = in_turn(&[&head, &part], Then::Close);
    let variables = [("GCE_METADATA_HOST", service.to_string()), ("GOOGLE_BASE_URL", format!("http://{store}"))];
    let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
    assert_eq!(open_in_child("gs://models/m", &variables), "bytes");
    let asked = asked.recv().unwrap();
    assert!(asked.contains("/instance/service-accounts/default/token"), "{asked}");
    assert!(asked.contains("metadata-flavor: Google\r\n"), "{asked}");
    for read in [read.recv().unwrap(), read.recv().unwrap()] {
        assert!(read.contains("authorization: Bearer ACCESS-TOKEN-1\r\n"), "{read}");
    }
}

#[test]
fn proxies_come_from_their_variables() {
    let nginx = Nginx::start();
    nginx.put("x", b"bytes");
    let proxy = format!("http://user:{TOKEN}@127.0.0.1:{}", nginx.port);
    let url = "http://model.invalid/x";
    assert_eq!(open_in_child(url, &[("http_proxy", &proxy)]), "bytes");
    assert_eq!(nginx.log()[0][8], "model.invalid");
    let direct = open_in_child(url, &[("http_proxy", &proxy), ("NO_PROXY", "model.invalid")]);
    assert!(direct.starts_with("Transient"), "{direct}");
    let port = ClosedPort::new();
    let closed = format!("http://user:{TOKEN}@127.0.0.1:{}", port.port());
    let refused = open_in_child(url, &[("http_proxy", &closed)]);
    assert!(refused.starts_with("Transient"), "{refused}");
    shows_no(&refused, &[TOKEN]);
    // Credentials for this machine do not pass a proxy.
    assert_eq!(open_in_child(&nginx.url("x"), &[("http_proxy", &closed), ("ALL_PROXY", &closed)]), "bytes");
    let tunnel = open_in_child("https://model.invalid/x", &[("HTTPS_PROXY", &closed)]);
    assert!(tunnel.starts_with("Transient"), "{tunnel}");
}
