use super::*;
use std::path::Path;

/// Variables, a URL, and the place of the credentials for it.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, String);

/// The place of the credentials for `url`, in a home directory.
fn found(home: &Path, variables: &[(&str, &str)], url: &str) -> Result<Option<String>, String> {
    let home = [("HOME", home.to_str().unwrap())];
    let environment = home.iter().chain(variables).map(|(name, value)| (*name, *value)).collect();
    let options = TransportOptions { environment, ..TransportOptions::default() };
    credentials(&options, &RemoteLocation::parse(url).unwrap().unwrap()).map_err(|error| error.to_string())
}

#[test]
fn the_place_of_credentials_is_named_and_their_value_is_not() {
    let home = tempfile::tempdir().unwrap();
    let path = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let none: &[(&str, &str)] = &[("AWS_EC2_METADATA_DISABLED", "true")];
    for url in ["hf://a/b", "https://h.example/x", "s3://b/x"] {
        assert_eq!(found(home.path(), none, url), Ok(None), "{url}");
    }
    std::fs::create_dir_all(path(".cache/huggingface")).unwrap();
    std::fs::create_dir(path(".aws")).unwrap();
    for (name, text) in [
        (".cache/huggingface/token", "SECRET"),
        (".netrc", "machine h.example login SECRET password SECRET"),
        (".aws/credentials", "[default]\naws_access_key_id=SECRET\naws_secret_access_key=SECRET\n"),
        ("account.json", "SECRET"),
    ] {
        std::fs::write(path(name), text).unwrap();
    }
    let account = path("account.json");
    let keys = [("AWS_ACCESS_KEY_ID", "SECRET"), ("AWS_SECRET_ACCESS_KEY", "SECRET")];
    let cases: [Case; 9] = [
        (&[("HF_TOKEN", "SECRET")], "hf://a/b", "HF_TOKEN".into()),
        (&[], "hf://a/b", path(".cache/huggingface/token")),
        (&[], "https://h.example/x", path(".netrc")),
        (&[], "https://SECRET:SECRET@h.example/x", "the URL".into()),
        (&keys, "s3://b/x", "AWS_ACCESS_KEY_ID".into()),
        (&[], "s3://b/x", "the AWS profile default".into()),
        (&[("GOOGLE_APPLICATION_CREDENTIALS", &account)], "gs://b/x", account.clone()),
        (&[("AZURE_STORAGE_KEY", "SECRET")], "az://b/x", "AZURE_STORAGE_KEY".into()),
        (&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://x")], "s3://b/x", "the AWS profile default".into()),
    ];
    for (variables, url, expected) in cases {
        let place = found(home.path(), variables, url).unwrap().unwrap();
        assert!(place.contains(&expected) && !place.contains("SECRET"), "{url}: {place}");
    }
    assert_eq!(found(home.path(), &[], "https://other.example/x"), Ok(None));
    let missing = found(home.path(), &[("AWS_PROFILE", "absent")], "s3://b/x").unwrap_err();
    assert!(missing.contains("absent"), "{missing}");
}
