//! Redirects from public servers into the network that they are not in. The addresses exist in a network namespace.

use super::Client;
use crate::support::{detach_others, python, require_root};
use std::path::Path;

/// Runs `weightfs` for each line of `urls`, and prints its status and its last line of output.
const SCRIPT: &str = r#"
    ip link set lo up
    for address in 198.51.100.7 203.0.113.9 10.9.8.7; do ip addr add $address/32 dev lo; done
    printf '127.0.0.1 localhost\n10.9.8.7 inside.example\n203.0.113.9 outside.example\n' >hosts
    mount --bind hosts /etc/hosts
    mkfifo up
    PYTHON SERVER m.safetensors >up &
    server=$!
    trap 'kill $server' EXIT
    read line <up
    while read arguments; do
        weightfs id $arguments >out 2>&1 && echo 0 || echo 1 "$(tail -n 1 out)"
    done <urls
"#;

#[test]
fn public_servers_cannot_redirect_into_the_private_network() {
    require_root!();
    let client = Client::new();
    client.one("m.safetensors", 100, 1);
    let table = [
        ("http://198.51.100.7:8000/to/203.0.113.9", true),
        ("http://198.51.100.7:8000/to/outside.example", true),
        ("http://outside.example:8000/to/198.51.100.7", true),
        ("http://198.51.100.7:8000/to/127.0.0.1", false),
        ("http://198.51.100.7:8000/to/localhost", false),
        ("http://outside.example:8000/to/10.9.8.7", false),
        ("http://outside.example:8000/to/inside.example", false),
        ("http://outside.example:8000/to/169.254.169.254", false),
        ("--allow-redirects-to 127.0.0.1 http://198.51.100.7:8000/to/127.0.0.1", true),
        ("--allow-redirects-to inside.example http://outside.example:8000/to/inside.example", true),
        // A server that is inside itself.
        ("http://10.9.8.7:8000/to/127.0.0.1", true),
        ("http://inside.example:8000/to/127.0.0.1", true),
    ];
    let urls: String = table.iter().map(|(arguments, _)| format!("{arguments}\n")).collect();
    client.write("urls", urls.as_bytes());
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/redirect.py");
    let script = SCRIPT.replace("PYTHON", python().to_str().unwrap()).replace("SERVER", server.to_str().unwrap());
    let script = detach_others(client.scene.dir.path()) + &script;
    client.write("script", script.as_bytes());
    let said = client.ok("unshare --net --mount sh -e script");
    assert_eq!(said.lines().count(), table.len(), "{said}");
    for ((arguments, is_followed), line) in table.iter().zip(said.lines()) {
        if *is_followed {
            assert_eq!(line, "0", "{arguments}");
        } else {
            assert!(line.starts_with('1') && line.contains("--allow-redirects-to HOST"), "{arguments}: {line}");
        }
    }
}
