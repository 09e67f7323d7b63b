//! Google Cloud Storage and Azure: against their emulators, and their tokens against servers with given answers.

use std::path::Path;
use std::process::Command;

use base64::Engine;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use serde_json::{Value, json};
use weightfs::remote::transport::{ChangeCertainty, ErrorKind, TransportClient};

use crate::servers::canned::{Then, in_turn, serve};
use crate::servers::content;
use crate::servers::python::Python;
use crate::support::*;

fn put(server: &mut Python, key: &str, bytes: &[u8]) {
    let data = BASE64_STANDARD.encode(bytes);
    assert_eq!(server.ask(json!({"do": "put", "bucket": "models", "key": key, "data": data})), json!({}));
}

/// What every store must do; `scheme` is that of its locations.
async fn reads_a_tree(server: &mut Python, client: &TransportClient, scheme: &str) {
    let big = content(300_000, 1);
    put(server, "llama/model.safetensors", &big);
    put(server, "llama/sub/a b+%ü.gguf", b"odd");
    put(server, "llama-2/x.gguf", b"other");
    let tree = resolve(client, &format!("{scheme}://models/llama")).await.unwrap();
    let listed: Vec<_> =
        tree.files.iter().map(|(path, object)| (path.as_str(), object.as_ref().unwrap().len)).collect();
    assert_eq!(listed, [("model.safetensors", 300_000), ("sub/a b+%ü.gguf", 3)]);
    let object = tree.object("model.safetensors").unwrap().clone();
    assert_eq!(object.certainty(), ChangeCertainty::Exact);
    let place = tree.folder.join("model.safetensors").unwrap();
    assert_eq!(client.identity(&place).unwrap(), object.version.identity);
    for range in [0..1, 1000..200_000, 0..300_000] {
        assert!(fetch(client, &object, range.clone()).await.unwrap() == big[range.start as usize..range.end as usize]);
    }
    let (_, head) = probe(client, &tree, "sub/a b+%ü.gguf", 100).await.unwrap();
    assert_eq!(head, b"odd");
    let tree = resolve(client, &format!("{scheme}://models/llama/model.safetensors")).await.unwrap();
    let (_, head) = probe(client, &tree, "sub/a b+%ü.gguf", 2).await.unwrap();
    assert_eq!(head, b"od");
    failure(resolve(client, &format!("{scheme}://models/nothing")).await, ErrorKind::Missing, &[]);

    for key in ["odd//empty", "odd/tab\tx", "odd/x", "odd/x/model.safetensors", "odd/y"] {
        put(server, key, b"bytes");
    }
    let tree = resolve(client, &format!("{scheme}://models/odd")).await.unwrap();
    assert_eq!(tree.files.keys().collect::<Vec<_>>(), ["x/model.safetensors", "y"]);
    let [keys, objects] = [r#""odd//empty", "odd/tab\tx""#, r#""x""#];
    log_shows(&format!("a slash at the end are not shown (2 in all): {keys}"));
    log_shows(&format!(
        "{scheme}://models/odd: objects with other keys below theirs are not shown (1 in all): {objects}"
    ));
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
        Err(error) => assert_eq!(error.kind, ErrorKind::Changed),
    }
}

#[tokio::test]
async fn azure_is_read_with_a_shared_key_or_signature() {
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
    failure(fetch(&reader, &object, 100..200).await, ErrorKind::Changed, &[&key]);

    shows_no(&format!("{reader:?} {object:?} {} {}", object.version.identity, object.version.validator), &[&key]);
    let wrong = "V1JPTkctS0VZLVdST05HLUtFWQ==";
    let mut variables = variables.clone();
    variables[1].1 = wrong;
    failure(resolve(&client(&variables), "az://models/m").await, ErrorKind::Forbidden, &[wrong, &key]);
    log_shows_no(&[&key, wrong]);
    let sas = server.text("sas");
    let signature = sas.split('&').find(|pair| pair.starts_with("sig=")).unwrap();
    variables[1] = ("AZURE_STORAGE_SAS_TOKEN", &sas);
    let reader = client(&variables);
    let (object, head) = open(&reader, "az://models/m", 10).await.unwrap();
    assert_eq!(head, content(5000, 2)[..10]);
    assert_eq!(fetch(&reader, &object, 100..200).await.unwrap(), content(5000, 2)[100..200]);
    shows_no(&format!("{reader:?} {object:?} {} {}", object.version.identity, object.version.validator), &[signature]);
    let cut = sas.replace(signature, "sig=V1JPTkc%3D");
    variables[1].1 = &cut;
    failure(resolve(&client(&variables), "az://models/m").await, ErrorKind::Forbidden, &[&key, "V1JPTkc"]);
    log_shows_no(&[signature]);
    let none = client(&[("AZURE_STORAGE_KEY", &key)]);
    failure(resolve(&none, "az://models/m").await, ErrorKind::Credentials, &[&key]);
}

/// The answer of a store that has a file of 100 bytes.
const HEAD: &str = "HTTP/1.1 200 OK\r\nETag: \"v1\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
    x-goog-generation: 7\r\nContent-Length: 100\r\nConnection: close\r\n\r\n";

/// An answer with a body of JSON.
fn answer(status: &str, body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

#[tokio::test]
async fn azure_identities_get_a_token_for_the_store_alone() {
    record_log();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "FEDERATED-TOKEN-1").unwrap();
    let file = file.path().to_str().unwrap();
    let secrets = ["CLIENT-SECRET-1", "FEDERATED-TOKEN-1", "ACCESS-TOKEN-1"];
    let principal = ["POST /tenant-1/oauth2/v2.0/token ", "client_id=client-1", "storage.azure.com"];
    // Variables, the one with the address of the service, and what the service is asked.
    type Row<'a> = (&'a [(&'a str, &'a str)], &'a str, &'a [&'a str]);
    let rows: [Row; 3] = [
        (
            &[("AZURE_TENANT_ID", "tenant-1"), ("AZURE_CLIENT_SECRET", "CLIENT-SECRET-1")],
            "AZURE_AUTHORITY_HOST",
            &[&principal[..], &["grant_type=client_credentials", "client_secret=CLIENT-SECRET-1"]].concat(),
        ),
        (
            &[("AZURE_TENANT_ID", "tenant-1"), ("AZURE_FEDERATED_TOKEN_FILE", file)],
            "AZURE_AUTHORITY_HOST",
            &[&principal[..], &["grant_type=client_credentials", "client_assertion=FEDERATED-TOKEN-1"]].concat(),
        ),
        (&[], "AZURE_MSI_ENDPOINT", &["GET /?", "client_id=client-1", "storage.azure.com", "metadata: true"]),
    ];
    for (variables, place, expected) in rows {
        let given = json!({"access_token": "ACCESS-TOKEN-1", "expires_in": 3600, "expires_on": "4102444800"});
        let said = json!({"error": "invalid_client", "said": secrets.join(" ")});
        let (gives, asked) = in_turn(&[&answer("200 OK", &given)], Then::Close);
        let refuses = serve(answer("401 Unauthorized", &said).into_bytes(), Then::Close);
        let (store, read) = in_turn(&[HEAD], Then::Close);
        let store = format!("http://{store}");
        let client = |service| {
            let service = format!("http://{service}");
            let places = [
                ("AZURE_STORAGE_ACCOUNT", "models"),
                ("AZURE_STORAGE_ENDPOINT", &store),
                ("AZURE_CLIENT_ID", "client-1"),
                (place, &service),
            ];
            client(&[&places[..], variables].concat())
        };
        let refused = client(refuses);
        // At its own address, a refusal of the managed identity is like that of any server.
        let kind = if place == "AZURE_MSI_ENDPOINT" { ErrorKind::Forbidden } else { ErrorKind::Credentials };
        failure(resolve(&refused, "az://models/m").await, kind, &secrets);
        assert!(read.try_recv().is_err(), "the store is not asked without a token");
        let given = client(gives);
        assert_eq!(resolve(&given, "az://models/m").await.unwrap().object("m").unwrap().len, 100);
        let (asked, read) = (asked.recv().unwrap(), read.recv().unwrap());
        for text in expected {
            assert!(asked.contains(text), "{text} in {asked}");
        }
        assert!(read.contains("authorization: Bearer ACCESS-TOKEN-1\r\n"), "{read}");
        shows_no(&read, &secrets[..2]);
        shows_no(&format!("{refused:?} {given:?}"), &secrets);
    }
    log_shows_no(&secrets);
}

/// Runs openssl in a directory.
fn openssl(dir: &Path, args: &str) {
    let output = Command::new("openssl").args(args.split(' ')).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn service_account_of_google_signs_its_token() {
    record_log();
    let dir = tempfile::tempdir().unwrap();
    openssl(dir.path(), "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out key.pem");
    openssl(dir.path(), "pkey -in key.pem -pubout -out public.pem");
    let key = std::fs::read_to_string(dir.path().join("key.pem")).unwrap();
    let secrets = key.lines().skip(1).take(10).collect::<Vec<_>>();
    let email = "reader@models.iam.gserviceaccount.com";
    let account =
        json!({"type": "service_account", "private_key_id": "key-1", "private_key": key, "client_email": email});
    let file = dir.path().join("account.json");
    std::fs::write(&file, account.to_string()).unwrap();
    for (name, value) in [
        ("GOOGLE_APPLICATION_CREDENTIALS", file.to_str().unwrap()),
        ("GOOGLE_SERVICE_ACCOUNT", file.to_str().unwrap()),
        ("GOOGLE_SERVICE_ACCOUNT_KEY", &account.to_string()),
    ] {
        let (store, read) = in_turn(&[HEAD], Then::Close);
        let client = client(&[("GOOGLE_BASE_URL", &format!("http://{store}")), (name, value)]);
        let found = resolve(&client, "gs://models/m").await;
        assert_eq!(found.unwrap().object("m").unwrap().len, 100, "{name}");
        let read = read.recv().unwrap();
        let token = read.lines().find_map(|line| line.strip_prefix("authorization: Bearer ")).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let (head, claims) = signed.split_once('.').unwrap();
        let json = |part| serde_json::from_slice::<Value>(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap();
        let (head, claims) = (json(head), json(claims));
        assert_eq!([&head["alg"], &head["kid"], &claims["iss"]], ["RS256", "key-1", email], "{name}");
        let lasts = claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap();
        assert!((1..=3600).contains(&lasts), "{lasts}");
        std::fs::write(dir.path().join("signed"), signed).unwrap();
        std::fs::write(dir.path().join("signature"), BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap()).unwrap();
        openssl(dir.path(), "dgst -sha256 -verify public.pem -signature signature signed");
        shows_no(&format!("{client:?}"), &secrets);
    }
    log_shows_no(&secrets);
}
