//! Remote sources: mounts and commands over real servers on loopback.

mod cache;
mod doctor;
mod faults;
mod limits;
mod quantized;
mod recipes;
mod redirects;
mod references;
mod secrets;
mod sources;
mod status;
mod users;

use crate::servers::nginx::Nginx;
use crate::servers::{self, python::Python};
use crate::support::{Mount, Namespace, Said, Scene, files_below};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A scene whose commands have the environment variables of some servers.
struct Client {
    scene: Scene,
    variables: Vec<(String, String)>,
}

impl Client {
    fn new() -> Self {
        let scene = Scene::new();
        scene.mkdir("bin/home");
        let home = scene.path("bin/home").to_str().unwrap().to_owned();
        Self { scene, variables: vec![("HOME".into(), home)] }
    }

    /// Sets an environment variable of further commands.
    fn set(&mut self, name: &str, value: &str) {
        self.variables.retain(|(old, _)| old != name);
        self.variables.push((name.into(), value.into()));
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.scene.command(program);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    /// As [`Scene::sh`], for five minutes at most.
    fn sh(&self, line: &str) -> Said {
        Said::of(self.command("timeout").args(["300", "sh", "-c", line]))
    }

    /// As [`Scene::ok`].
    fn ok(&self, line: &str) -> String {
        self.sh(line).ok(line)
    }

    /// As [`Client::sh`], in a namespace without the mounts of other tests.
    fn sh_alone(&self, line: &str) -> Said {
        let alone = Namespace::new(&self.scene, "");
        let mut command = alone.command(&format!("exec timeout 300 sh -c '{}'", line.replace('\'', r"'\''")));
        Said::of(command.envs(self.variables.iter().map(|(name, value)| (name, value))))
    }

    /// Mounts `source` on a new directory, served in the foreground by a child process.
    fn mount(&self, source: &str, args: &[&str]) -> Mount {
        Mount::start(self.command("weightfs").arg("-f").args(args).arg(source), &self.scene.mount_point())
    }

    /// The directory of the cache.
    fn cache(&self) -> PathBuf {
        self.scene.path("bin/cache/weightfs")
    }

    /// Writes a file, and the directories above it. Everyone may read it.
    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.scene.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Writes a safetensors file with one tensor `w` of `len` bytes, and returns the bytes of the tensor. They are in
    /// whole blocks, except those in the first one.
    fn one(&self, name: &str, len: usize, seed: u64) -> Vec<u8> {
        let bytes = servers::content(len, seed);
        fs::create_dir_all(self.scene.path(name).parent().unwrap()).unwrap();
        self.scene.model(name, &[("w", Dtype::U8, &[len], bytes.clone())], &[]);
        bytes
    }
}

/// The files below a directory, with their paths in it, sorted.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    files_below(dir).into_iter().map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// An nginx that has the files of a directory of the scene.
fn web(client: &Client, dir: &str) -> Nginx {
    let nginx = Nginx::start();
    for (name, bytes) in files(&client.scene.path(dir)) {
        nginx.put(&name, &bytes);
    }
    nginx
}

/// The requests for a file so far, once no response is under way: the range of each, and the bytes that were sent.
fn requests(nginx: &Nginx, path: &str) -> Vec<(String, u64)> {
    let of_path = nginx.log_at_rest().into_iter().filter(|request| request[2] == format!("/{path}"));
    of_path.map(|request| (request[4].clone(), request.last().unwrap().parse().unwrap())).collect()
}

/// moto with the files of a directory of the scene in the bucket `models`. Its user `reader` may read them.
fn s3(client: &mut Client, dir: &str) -> Python {
    bucket(client, dir, "s3.py")
}

/// As [`s3`], with the server that a script starts.
fn bucket(client: &mut Client, dir: &str, script: &str) -> Python {
    let mut python = Python::start(script);
    upload(client, dir, &mut python);
    let user = &python.hello["users"]["reader"];
    client.set("AWS_ENDPOINT_URL_S3", python.hello["url"].as_str().unwrap());
    client.set("AWS_ACCESS_KEY_ID", user["id"].as_str().unwrap());
    client.set("AWS_SECRET_ACCESS_KEY", user["secret"].as_str().unwrap());
    client.set("AWS_REGION", "us-east-1");
    python
}

/// Puts the files of a directory of the scene into the bucket `models` of a server.
fn upload(client: &Client, dir: &str, server: &mut Python) {
    for (name, bytes) in files(&client.scene.path(dir)) {
        let data = BASE64_STANDARD.encode(bytes);
        let command = json!({"do": "put", "bucket": "models", "key": name, "data": data});
        assert_eq!(server.ask(command), json!({}));
    }
}

/// The stub of the Hub, whose repositories all have the files of a directory of the scene.
fn hub(client: &mut Client, dir: &str) -> Python {
    let mut python = Python::start("hub.py");
    serve(&mut python, &client.scene.path(dir));
    client.set("HF_ENDPOINT", &python.text("url"));
    python
}

/// Replaces the files of the stub of the Hub.
fn serve(hub: &mut Python, dir: &Path) {
    hub.ask(json!({"do": "serve", "folder": dir}));
}

/// The requests to the server of the data since the last call.
fn data_requests(hub: &mut Python) -> Vec<Value> {
    hub.take_log().into_iter().filter(|request| request["server"] == "cdn").collect()
}

/// The number of bytes in the value of a header `Range`.
fn length(range: &str) -> u64 {
    let (first, last) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
    last.parse::<u64>().unwrap() - first.parse::<u64>().unwrap() + 1
}
