use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> RemoteLocation {
    RemoteLocation::parse(text).unwrap().unwrap()
}

fn hub(text: &str) -> (String, String, Option<String>, String) {
    match parse(text) {
        RemoteLocation::Hub(hub) => (hub.kind.plural().to_string(), hub.repo, hub.revision, hub.path),
        other => panic!("{other} is not on the Hub"),
    }
}

#[test]
fn hub_locations_have_kind_repository_revision_and_path() {
    let rows = [
        ("hf://a/b", "models", "a/b", None, ""),
        ("hf://models/a/b", "models", "a/b", None, ""),
        ("HF://a/b/", "models", "a/b", None, ""),
        ("hf://datasets/a/b/x/y.parquet", "datasets", "a/b", None, "x/y.parquet"),
        ("hf://spaces/a/b@v1.0/x", "spaces", "a/b", Some("v1.0"), "x"),
        ("hf://a/b@refs/pr/12/x/y", "models", "a/b", Some("refs/pr/12"), "x/y"),
        ("hf://a/b@refs/convert/parquet", "models", "a/b", Some("refs/convert/parquet"), ""),
        ("hf://a/b@refs/heads/x", "models", "a/b", Some("refs"), "heads/x"),
        ("hf://a/b@%72efs/pr/1", "models", "a/b", Some("refs"), "pr/1"),
        ("hf://a/b@feature%2Fx/y", "models", "a/b", Some("feature/x"), "y"),
        ("hf://a/b/dir@x/y", "models", "a/b", None, "dir@x/y"),
        ("hf://a/b/100%25.gguf", "models", "a/b", None, "100%25.gguf"),
        ("https://huggingface.co/a/b", "models", "a/b", None, ""),
        ("https://huggingface.co/a/b/tree/main/", "models", "a/b", Some("main"), ""),
        ("https://huggingface.co/a/b/blob/main/x%20y.gguf?download=true", "models", "a/b", Some("main"), "x y.gguf"),
        ("https://hf.co/datasets/a/b/resolve/refs%2Fpr%2F3/x", "datasets", "a/b", Some("refs/pr/3"), "x"),
        ("https://huggingface.co/a/b/raw/refs/pr/3/x/y#L3", "models", "a/b", Some("refs/pr/3"), "x/y"),
        ("http://huggingface.co/a/b/blame/v1/x", "models", "a/b", Some("v1"), "x"),
    ];
    for (text, kind, repo, revision, path) in rows {
        let expected = (kind.to_string(), repo.to_string(), revision.map(str::to_string), path.to_string());
        assert_eq!(hub(text), expected, "{text}");
        assert_eq!(parse(&parse(text).to_string()), parse(text), "{text} printed and parsed again");
    }
}

#[test]
fn texts_that_are_not_locations_are_refused_without_repeating_secrets() {
    for text in [
        "hf://gpt2",
        "hf://",
        "hf://a/",
        "hf:///b",
        "hf://a/b@",
        "hf://a/b@../x",
        "hf://a/b@%2e%2e",
        "hf://a/b@%ff",
        "hf://a/b@x%00",
        "hf://a/b//x",
        "hf://a/b/../x",
        "hf://a b/c",
        "hf://buckets/",
        "https://huggingface.co/docs/hub",
        "https://huggingface.co/a",
        "https://huggingface.co/a/b/discussions/1",
        "https://",
        "https://user:SECRET@/x?SECRET",
        "https://host/%ff?SECRET",
        "https://host/a%0ab?SECRET",
        "https://host:99999/x?SECRET",
        "s3://",
        "s3:///key",
        "s3://user:SECRET@bucket/key",
        "s3://bucket//key",
        "s3://bucket/a/../b",
        "s3://bucket/a//",
        "gs://?x=SECRET",
        "az://a b/c",
        "file:///etc/passwd",
        "ftp://host/file?SECRET",
        "s3://bucket/a\nb",
    ] {
        let error = RemoteLocation::parse(text).expect_err(text);
        assert!(!format!("{error} {error:?}").contains("SECRET"), "{error}");
    }
}

#[test]
fn paths_are_as_long_as_those_of_linux_at_most() {
    for base in ["hf://a/b/", "https://example.org/", "s3://bucket/"] {
        for (len, fits) in [(4000, true), (5000, false)] {
            let name = "x".repeat(len);
            assert_eq!(RemoteLocation::parse(&format!("{base}{name}")).is_ok(), fits, "{base} {len}");
            assert_eq!(parse(base).join(&name).is_ok(), fits, "{base} {len}");
        }
    }
}

#[test]
fn local_paths_are_not_locations() {
    for text in ["model.safetensors", "/a/b", "./hf:/x", "a/b://c", "", "://", "1x://y", "-://y"] {
        assert_eq!(RemoteLocation::parse(text), Ok(None), "{text}");
    }
}

#[test]
fn urls_are_shown_without_user_and_query() {
    let text = "https://user:SECRET@example.org:8443/a%20b/c.gguf?X-Amz-Signature=SECRET#SECRET";
    let location = parse(text);
    assert_eq!(location.to_string(), "https://example.org:8443/a%20b/c.gguf");
    let sibling = location.parent().unwrap().join("d e?.gguf").unwrap();
    assert_eq!(sibling.to_string(), "https://example.org:8443/a%20b/d%20e%3F.gguf");
    assert!(!format!("{location:?} {sibling:?} {location:#?}").contains("SECRET"));
    let RemoteLocation::Web(sibling) = sibling else { panic!() };
    assert_eq!(sibling.url().query(), Some("X-Amz-Signature=SECRET"));
}

#[test]
fn unencrypted_requests_to_other_hosts_are_insecure() {
    for (text, insecure) in [
        ("http://example.org/x", true),
        ("https://example.org/x", false),
        ("http://127.0.0.1:80/x", false),
        ("http://[::1]/x", false),
        ("http://localhost/x", false),
        ("http://localhost.example.org/x", true),
        ("http://128.0.0.1/x", true),
        ("http://huggingface.co/a/b", false),
        ("s3://a/b", false),
    ] {
        assert_eq!(parse(text).is_insecure(), insecure, "{text}");
    }
}

/// Bases of every kind, as directories.
fn folders() -> impl Strategy<Value = RemoteLocation> {
    prop_oneof![
        Just("hf://a/b"),
        Just("hf://datasets/a/b@refs/pr/1"),
        Just("hf://a/b@refs"),
        Just("https://example.org/"),
        Just("https://example.org/x%2Fy/?q"),
        Just("https://example.org/a%2520b/mo+del 100%ü/"),
        Just("hf://a/b/a%20b/mo+del 100%ü#1?"),
        Just("s3://bucket/a%20b/mo+del 100%ü#1?/"),
        Just("s3://bucket/"),
        Just("gs://bucket/x/"),
        Just("az://c/x/y/"),
    ]
    .prop_map(parse)
}

/// One component of a path, with many characters that URLs treat specially.
fn component() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z%?#@:+&= ./\\\\é~.-]{1,8}",
        "\\PC{1,8}",
        Just("pr".into()),
        Just("1".into()),
        Just("%2e%2E".into())
    ]
    .prop_filter("one component", |name: &String| {
        !name.contains('/') && name != "." && name != ".." && !name.chars().any(char::is_control)
    })
}

proptest! {
    #[test]
    fn parse_never_panics_and_prints_what_parses(text in "(hf|https?|s3|gs|az)://\\PC{0,40}|\\PC{0,60}") {
        if let Ok(Some(location)) = RemoteLocation::parse(&text) {
            let printed = location.to_string();
            let again = parse(&printed);
            prop_assert_eq!(again.to_string(), printed);
            if !matches!(location, RemoteLocation::Web(_)) {
                prop_assert_eq!(again, location.clone());
            }
            let _ = (location.file_name(), location.parent(), location.join("x"), location.is_insecure());
        }
    }

    #[test]
    fn join_is_undone_by_parent_and_file_name(folder in folders(), name in component()) {
        let file = folder.join(&name).unwrap();
        let again = parse(&file.to_string());
        prop_assert_eq!(again.file_name(), Some(name.clone()));
        prop_assert_eq!(again.to_string(), file.to_string());
        prop_assert_eq!(file.file_name(), Some(name));
        prop_assert_eq!(file.parent(), Some(folder));
        if !matches!(file, RemoteLocation::Web(_)) {
            prop_assert_eq!(again, file);
        }
    }

    #[test]
    fn different_names_are_different_locations(
        folder in folders(),
        a in proptest::collection::vec(component(), 1..4),
        b in proptest::collection::vec(component(), 1..4),
    ) {
        let (one, other) = (folder.join(&a.join("/")).unwrap(), folder.join(&b.join("/")).unwrap());
        prop_assert_eq!(a == b, one == other);
        prop_assert_eq!(a == b, one.to_string() == other.to_string());
    }
}
