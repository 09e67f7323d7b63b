//! Google Cloud Storage and Azure, against their emulators.

use base64::Engine;
use serde_json::json;
use weightfs::remote::transport::{Certainty, Client, Kind};

use crate::servers::content;
use crate::servers::python::Python;
use crate::support::*;

fn put(server: &mut Python, key: &str, bytes: &[u8]) {
    let data = base64::prelude::BASE64_STANDARD.encode(bytes);
    assert_eq!(server.ask(json!({"do": "put", "bucket": "models", "key": key, "data": data})), json!({}));
}

/// What every store must do; `scheme` is that of its locations.
async fn reads_a_tree(server: &mut Python, client: &Client, scheme: &str) {
    let big = content(300_000, 1);
    put(server, "llama/model.safetensors", &big);
    put(server, "llama/sub/a b+%ü.gguf", b"odd");
    put(server, "llama-2/x.gguf", b"other");
    let tree = resolve(client, &format!("{scheme}://models/llama")).await.unwrap();
    let listed: Vec<_> = tree.files().iter().map(|file| (file.path.as_str(), file.len.unwrap())).collect();
    assert_eq!(listed, [("model.safetensors", 300_000), ("sub/a b+%ü.gguf", 3)]);
    let object = tree.file("model.safetensors").unwrap().object.clone().unwrap();
    assert_eq!(object.certainty(), Certainty::Exact);
    let place = tree.folder().join("model.safetensors").unwrap();
    assert_eq!(client.identity(&place).unwrap(), object.identity());
    for range in [0..1, 1000..200_000, 0..300_000] {
        assert!(fetch(client, &object, range.clone()).await.unwrap() == big[range.start as usize..range.end as usize]);
    }
    let (_, head) = client.probe(&tree, "sub/a b+%ü.gguf", 100).await.unwrap();
    assert_eq!(head, b"odd");
    let tree = resolve(client, &format!("{scheme}://models/llama/model.safetensors")).await.unwrap();
    let (_, head) = client.probe(&tree, "sub/a b+%ü.gguf", 2).await.unwrap();
    assert_eq!(head, b"od");
    failure(resolve(client, &format!("{scheme}://models/nothing")).await, Kind::Missing, &[]);
}

#[tokio::test]
async fn google_cloud_storage_is_read() {
    let mut server = Python::start("gcs.py");
    let client = client(&[("STORAGE_EMULATOR_HOST", &server.text("url"))]);
    reads_a_tree(&mut server, &client, "gs").await;
    put(&mut server, "m", &content(5000, 1));
    let (object, _) = open(&client, "gs://models/m", 10).await.unwrap();
    put(&mut server, "m", &content(5000, 2));
    // The pinned generation, if the emulator still has it.
    match fetch(&client, &object, 100..200).await {
        Ok(bytes) => assert_eq!(bytes, content(5000, 1)[100..200]),
        Err(error) => assert_eq!(error.kind(), Kind::Changed),
    }
}

#[tokio::test]
async fn azure_is_read_with_a_shared_key() {
    let mut server = Python::start("azurite.py");
    let key = server.text("key");
    let variables = [
        ("AZURE_STORAGE_ACCOUNT", server.text("account")),
        ("AZURE_STORAGE_KEY", key.clone()),
        ("AZURE_STORAGE_ENDPOINT", server.text("url")),
    ];
    let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let reader = client(&variables);
    reads_a_tree(&mut server, &reader, "az").await;
    put(&mut server, "m", &content(5000, 1));
    let (object, _) = open(&reader, "az://models/m", 10).await.unwrap();
    put(&mut server, "m", &content(5000, 2));
    failure(fetch(&reader, &object, 100..200).await, Kind::Changed, &[&key]);

    shows_no(&format!("{reader:?} {object:?} {} {}", object.identity(), object.validator()), &[&key]);
    let wrong = "V1JPTkctS0VZLVdST05HLUtFWQ==";
    let mut variables = variables.clone();
    variables[1].1 = wrong;
    failure(resolve(&client(&variables), "az://models/m").await, Kind::Forbidden, &[wrong, &key]);
    log_shows_no(&[&key, wrong]);
    let none = client(&[("AZURE_STORAGE_KEY", &key)]);
    failure(resolve(&none, "az://models/m").await, Kind::Credentials, &[&key]);
}
