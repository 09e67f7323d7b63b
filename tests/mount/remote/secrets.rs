//! Credentials go to their server and appear nowhere else.

use super::{Client, files, hub, s3, web};
use crate::servers::nginx::{PASSWORD, TOKEN};
use crate::support::{Mount, require_fuse};
use nix::unistd::Pid;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;

/// The environment and memory of a process are for its user only. What everyone sees are these files in /proc.
const PUBLIC: [&str; 4] = ["cmdline", "status", "comm", "stat"];

/// Everything that shows what a mount of `source` does, under names for messages. The log is that of `-v`.
fn shown(client: &Client, mount: &Mount, source: &str, log_file: &Path) -> Vec<(String, Vec<u8>)> {
    let mut shown: Vec<(String, Vec<u8>)> = files(&mount.point);
    let script = format!("cd {} && getfattr -R -d -m - . && find .", mount.point.display());
    let attributes = client.ok(&script);
    assert!(attributes.contains("user.weightfs.dtype"), "{attributes}");
    shown.push(("names and attributes".into(), attributes.into_bytes()));
    shown.push(("/proc/mounts".into(), fs::read("/proc/mounts").unwrap()));
    let processes = [client.scene.daemons(), client.scene.fetchers(), client.scene.unmounters()].concat();
    assert!(processes.len() >= 3, "{source}: {processes:?}");
    for pid in processes {
        let public = PUBLIC.map(|name| (format!("/proc/{pid}/{name}"), in_proc(pid, name)));
        shown.extend(public);
    }
    shown.push(("standard error".into(), mount.log().into_bytes()));
    shown.push(("the log file".into(), fs::read(log_file).unwrap_or_default()));
    let cached = files(&client.scene.path("bin/cache"));
    assert!(!cached.is_empty(), "{source}");
    shown.extend(cached.iter().map(|(name, bytes)| (format!("cache/{name}"), [name.as_bytes(), bytes].concat())));
    shown
}

fn in_proc(pid: Pid, name: &str) -> Vec<u8> {
    fs::read(format!("/proc/{pid}/{name}")).unwrap()
}

fn contains(bytes: &[u8], secret: &str) -> bool {
    bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
}

/// Mounts `source`, reads all of it, breaks it, and asserts that none of the secrets shows.
fn assert_hidden(client: &Client, source: &str, args: &[&str], secrets: &[&str]) {
    let log_file = client.scene.path("bin/log");
    let _ = fs::remove_file(&log_file);
    let args = [args, &["-v", "--log-file", log_file.to_str().unwrap(), "--timeout", "20"]].concat();
    let mount = client.mount(source, &args);
    let mut found = shown(client, &mount, source, &log_file);
    assert!(contains(&mount.read("index.json"), "source"));
    drop(mount);

    // Commands, and errors of a file that is not there and of a server that refuses.
    let missing = source.replace("m.safetensors", "missing.safetensors");
    for command in [
        format!("weightfs inspect '{source}'"),
        format!("weightfs ls --json '{source}'"),
        format!("weightfs check '{source}'"),
        format!("weightfs inspect --timeout 1 '{missing}'"),
        format!("weightfs diff --timeout 1 '{missing}' '{source}'"),
        format!("weightfs inspect --offline '{missing}'"),
    ] {
        let said = client.sh(&command.replacen("weightfs ", "exec weightfs ", 1));
        found.push((command.replace(source, "SOURCE"), [said.out, said.err].concat().into_bytes()));
    }
    let base64 = secrets.iter().map(|secret| base64::Engine::encode(&super::BASE64_STANDARD, secret));
    let forms: Vec<String> = secrets.iter().map(|secret| secret.to_string()).chain(base64).collect();
    for (place, bytes) in &found {
        for secret in &forms {
            let text = String::from_utf8_lossy(bytes);
            assert!(!contains(bytes, secret), "{secret} shows in {place}: {text:.3000}");
        }
    }
}

#[test]
fn secrets_in_urls_and_files_show_nowhere() {
    require_fuse!();
    let client = Client::new();
    client.one("models/m.safetensors", 1 << 20, 1);
    let nginx = web(&client, "models");
    let url = |place: &str| nginx.url(&format!("{place}m.safetensors"));

    let with_password = url("basic/").replace("http://", &format!("http://me:{PASSWORD}@"));
    assert_hidden(&client, &with_password, &[], &[PASSWORD, &format!("me:{PASSWORD}")]);

    let signed = format!("{}?X-Amz-Signature=SIGNATURE-77a1&X-Amz-Credential=CREDENTIAL-0b&key=QUERY-91", url(""));
    assert_hidden(&client, &signed, &[], &["SIGNATURE-77a1", "CREDENTIAL-0b", "QUERY-91"]);

    let token = client.write("bin/token", TOKEN.as_bytes());
    assert_hidden(&client, &url("bearer/"), &["--token-file", token.to_str().unwrap()], &[TOKEN]);

    client.write("bin/home/.netrc", format!("machine 127.0.0.1 login me password {PASSWORD}\n").as_bytes());
    assert_hidden(&client, &url("basic/"), &[], &[PASSWORD, &format!("me:{PASSWORD}")]);
    // A server that repeats what it was sent.
    let refused = client.sh(&format!("weightfs inspect {}", url("echo/")));
    assert!(refused.code == 1 && refused.err.contains("you sent") && !refused.err.contains("bWU6"), "{refused:?}");
    // The checks can fail: the server has got them.
    let log: String = nginx.log().concat().concat();
    for secret in [TOKEN, "SIGNATURE-77a1", "Basic bWU6"] {
        assert!(log.contains(secret), "{secret}");
    }
}

#[test]
fn keys_and_tokens_of_the_environment_show_nowhere() {
    require_fuse!();
    let mut client = Client::new();
    client.one("models/m.safetensors", 1 << 20, 1);
    let hub = hub(&mut client, "models");
    let token = hub.text("token");
    client.set("HF_TOKEN", &token);
    assert_hidden(&client, "hf://org/private/m.safetensors", &[], &[&token, "Signature="]);
    assert_hidden(&client, "hf://org/private", &[], &[&token, "Signature="]);

    let s3 = s3(&mut client, "models");
    let user = &s3.hello["users"]["reader"];
    let secrets = [user["secret"].as_str().unwrap(), "Signature="];
    assert_hidden(&client, "s3://models/m.safetensors", &[], &secrets);
}

#[test]
fn command_line_of_a_waiting_command_shows_no_secret() {
    require_fuse!();
    let client = Client::new();
    client.one("models/m.safetensors", 1 << 20, 1);
    let nginx = web(&client, "models");
    nginx.suspend(true);
    let url = nginx.url("m.safetensors").replace("http://", &format!("http://me:{PASSWORD}@"));
    let mut command = client.command("weightfs");
    command.args(["inspect", &format!("{url}?sig=QUERY-91")]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    crate::support::wait_until("the process that fetches runs", || client.scene.fetchers().len() == 1);
    let processes = [client.scene.daemons(), client.scene.fetchers()].concat();
    let shown: Vec<u8> = processes.iter().flat_map(|pid| in_proc(*pid, "cmdline")).collect();
    let shown = String::from_utf8_lossy(&shown).replace('\0', " ");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(shown.contains("weightfs inspect http://") && shown.contains("weightfs-fetch"), "{shown}");
    assert!(!shown.contains(PASSWORD) && !shown.contains("QUERY-91"), "{shown}");
}

/// The memory that a process can read without zeros, its environment and its command line.
fn inside(pid: Pid) -> String {
    let memory = fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let mut found = [in_proc(pid, "environ"), in_proc(pid, "cmdline")].concat();
    for line in String::from_utf8(in_proc(pid, "maps")).unwrap().lines().filter(|line| line.contains(" r")) {
        let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [start, end] = [start, end].map(|address| u64::from_str_radix(address, 16).unwrap());
        let mut part = vec![0; (end - start) as usize];
        // Pages of the kernel and of sparse files cannot be read.
        if memory.read_exact_at(&mut part, start).is_ok() {
            found.extend(part.into_iter().filter(|byte| *byte != 0));
        }
    }
    String::from_utf8_lossy(&found).into_owned()
}

#[test]
fn only_the_process_that_fetches_has_secrets() {
    require_fuse!();
    let mut client = Client::new();
    client.one("models/m.safetensors", 1 << 20, 1);
    client.scene.mkdir("mnt");
    let nginx = web(&client, "models");
    let secrets = ["TOKEN-4c1f", "SECRET-9d02", "SESSION-31aa", "PROXY-55e8", "QUERY-91b7", "PASSWORD-0f6e"];
    for (name, secret) in
        ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "FTP_PROXY"].into_iter().zip(secrets)
    {
        client.set(name, secret);
    }
    let url = format!("{}?sig={}", nginx.url("m.safetensors").replace("://", "://me:PASSWORD-0f6e@"), secrets[4]);
    for (source, is_remote) in [(&*url, true), ("models/m.safetensors", false)] {
        for is_mount in [true, false] {
            let serving = if is_mount {
                client.ok(&format!("weightfs '{source}' mnt && cat mnt/tensors/w >/dev/null"));
                None
            } else {
                let mut serve = client.command("weightfs");
                let mut serve = serve.args(["serve", "--port", "0", source]).stdout(Stdio::piped()).spawn().unwrap();
                BufReader::new(serve.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
                Some(serve)
            };
            let readers = [client.scene.daemons(), client.scene.unmounters()].concat();
            assert_eq!((readers.len(), client.scene.fetchers().len()), (1 + usize::from(is_mount), is_remote.into()));
            for pid in readers {
                let found = inside(pid);
                assert!(found.contains("m.safetensors") || client.scene.unmounters().contains(&pid));
                let leaked: Vec<&&str> = secrets.iter().filter(|secret| found.contains(**secret)).collect();
                assert!(leaked.is_empty(), "{source} {is_mount} {pid}: {leaked:?}");
            }
            for pid in client.scene.fetchers() {
                let (found, shown) = (inside(pid), in_proc(pid, "cmdline"));
                assert!(secrets.iter().all(|secret| found.contains(*secret) && !contains(&shown, secret)));
            }
            match serving {
                None => drop(client.ok("weightfs umount mnt")),
                Some(mut serve) => serve.kill().and_then(|()| serve.wait()).map(drop).unwrap(),
            }
            client.scene.wait_for_end();
        }
    }
    let log: String = nginx.log().concat().concat();
    assert!(log.contains("sig=QUERY-91b7"), "{log}");
}
