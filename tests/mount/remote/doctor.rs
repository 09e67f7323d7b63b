//! What `weightfs doctor URL` says of servers that cannot be reached, refuse, or cannot be used.

use super::{Client, hub, web};
use crate::servers::nginx::TOKEN;
use crate::support::require_root;
use serde_json::Value;

#[test]
fn what_is_wrong_with_a_url_is_found_with_a_remedy() {
    require_root!();
    let mut client = Client::new();
    client.one("models/m.safetensors", 1 << 20, 1);
    client.write("models/config.json", b"{}");
    let nginx = web(&client, "models");
    let hub = hub(&mut client, "models");
    client.write("right", TOKEN.as_bytes());
    client.write("wrong", b"WRONG");
    let on = |place: &str| nginx.url(&format!("{place}m.safetensors"));
    // Arguments, URL, the check that fails, and a part of its finding and of its remedy.
    let table = [
        ("", on(""), "", "", ""),
        ("--token-file right", on("bearer/"), "", "", ""),
        ("", "hf://org/model".into(), "", "", ""),
        ("", on("missing/"), "source", "404", "check the URL"),
        ("", on("basic/"), "credentials", "401", "a line for the host into ~/.netrc"),
        ("--token-file wrong", on("bearer/"), "credentials", "401", "credentials from the token file wrong are valid"),
        ("--token-file absent", on("bearer/"), "credentials", "absent", "correct that file"),
        ("", "hf://org/private".into(), "credentials", "org/private", "run `hf auth login`"),
        ("", on("noranges/"), "server", "whole files only", "download the file"),
        ("--timeout 1", on("down/"), "network", "503", "try again later"),
        (
            "--timeout 1",
            "http://127.0.0.1:1/m.safetensors".into(),
            "network",
            "127.0.0.1:1",
            "check the name of the host",
        ),
        (
            "--timeout 1",
            "https://host.invalid/m.safetensors".into(),
            "network",
            "host.invalid",
            "check the name of the host",
        ),
    ];
    for (args, url, check, text, remedy) in table {
        let said = client.sh_alone(&format!("timeout 60 weightfs doctor --json {args} '{url}'"));
        let value: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        let failures: Vec<&Value> =
            value["findings"].as_array().unwrap().iter().filter(|finding| finding["state"] == "failure").collect();
        if check.is_empty() {
            assert!(said.code == 0 && failures.is_empty(), "{url}: {said:?}");
            let last = value["findings"].as_array().unwrap().last().unwrap();
            assert!(last["finding"].as_str().unwrap().ends_with("safetensors, 1 tensor"), "{url}: {last}");
            continue;
        }
        assert_eq!((said.code, value["ok"].as_bool()), (1, Some(false)), "{url}: {said:?}");
        let contains = |finding: &Value, name: &str, part: &str| finding[name].as_str().unwrap().contains(part);
        assert!(
            failures.iter().any(|finding| finding["check"] == check
                && contains(finding, "finding", text)
                && contains(finding, "remedy", remedy)),
            "{url}: {said:?}"
        );
        assert!(failures.iter().all(|finding| finding["remedy"].is_string()), "{url}: {said:?}");
    }
    for secret in [TOKEN, &hub.text("token")] {
        let said = client.sh(&format!(
            "HF_TOKEN={secret} weightfs doctor 'hf://org/model'; weightfs doctor '{}?key={secret}'",
            on("")
        ));
        assert!(said.out.contains("from the variable HF_TOKEN"), "{said:?}");
        assert!(!said.out.contains(secret) && !said.err.contains(secret), "{said:?}");
    }
}

/// Nobody listens on port 1 of this machine, and no name ends in `.invalid` (RFC 2606). The usual time limit of
/// requests is a minute.
#[test]
fn without_a_network_commands_fail_soon_and_say_what_they_wait_for() {
    require_root!();
    let client = Client::new();
    for url in ["http://127.0.0.1:1/m.safetensors", "https://host.invalid/m.safetensors"] {
        for command in ["inspect", "ls", "check", "doctor"] {
            let said = client.sh(&format!("timeout 20 weightfs {command} {url}"));
            assert!([1, 2].contains(&said.code), "{command} {url}: {said:?}");
            assert!((said.out + &said.err).contains("cannot connect"), "{command} {url}");
        }
    }
    let shown = client.sh("script --quiet --command 'weightfs ls http://127.0.0.1:1/m.safetensors' /dev/null").out;
    assert!(shown.contains("connecting to 127.0.0.1:1 ... (attempt "), "{shown:?}");
    // The line is erased before the error is printed.
    let (before, error) = shown.split_once("weightfs: ").unwrap();
    assert!(before.ends_with("\u{1b}[2K") || before.ends_with('\r'), "{shown:?}");
    assert!(error.contains("cannot connect"), "{shown:?}");

    // The checks of this machine are printed before the network is asked.
    let shown = client.sh_alone("{ timeout 1 weightfs doctor http://127.0.0.1:1/m.safetensors; } | head -n 5").out;
    assert!(shown.contains("seccomp"), "{shown:?}");
}
