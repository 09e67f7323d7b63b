use super::super::super::error::ErrorKind;
use super::*;

fn environment(dir: &std::path::Path, config: &str, credentials: &str, more: &[(&str, &str)]) -> EnvironmentCopy {
    let home = dir.join(".aws");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("config"), config).unwrap();
    fs::write(home.join("credentials"), credentials).unwrap();
    let variables = more.iter().copied().chain([("HOME", dir.to_str().unwrap())]);
    variables.collect()
}

#[test]
fn profiles_join_both_files() {
    let dir = tempfile::tempdir().unwrap();
    let config = "# c\n[default]\nregion = eu-west-1 # here\n[profile \"dev\"]\nRegion=us-west-2\nservices = local\n\
        s3 =\n  addressing_style = path\naws_access_key_id = CONFIG\n[services local]\ns3 =\n  endpoint_url = http://h:1\n\
        sqs =\n  endpoint_url = http://h:2\n[profile bare]\noutput=json\n[broken\nx";
    let credentials = "[dev]\naws_access_key_id=ID\naws_secret_access_key=a#b=c==\n[half]\naws_access_key_id=ID\n";
    let load = |more: &[(&str, &str)]| AwsProfile::load(&environment(dir.path(), config, credentials, more));
    let default = load(&[]).unwrap();
    assert_eq!((default.get("region"), default.get("endpoint_url")), (Some("eu-west-1"), None));
    let dev = load(&[("AWS_PROFILE", "dev")]).unwrap();
    assert_eq!((dev.get("region"), dev.get("endpoint_url")), (Some("us-west-2"), Some("http://h:1")));
    assert_eq!(dev.get("s3.addressing_style"), Some("path"));
    assert_eq!((dev.get("aws_access_key_id"), dev.get("aws_secret_access_key")), (Some("ID"), Some("a#b=c==")));
    assert!(!format!("{dev:?}").contains("a#b"));
    let none = EnvironmentCopy::default();
    assert!(ProfileProvider::of(&default, &none).unwrap().is_none());
    assert!(ProfileProvider::of(&load(&[("AWS_DEFAULT_PROFILE", "bare")]).unwrap(), &none).unwrap().is_none());
    let half = ProfileProvider::of(&load(&[("AWS_PROFILE", "half")]).unwrap(), &none).unwrap_err();
    assert_eq!(half.kind, ErrorKind::Credentials);
    assert_eq!(load(&[("AWS_PROFILE", "missing")]).unwrap_err().kind, ErrorKind::Credentials);
}

#[tokio::test]
async fn a_process_gives_keys_until_they_expire() {
    let dir = tempfile::tempdir().unwrap();
    let count = dir.path().join("count");
    let keys = |expiration: &str| {
        format!(
            "echo x >> {}; echo '{{\"Version\": 1, \"AccessKeyId\": \"ID\", \"SecretAccessKey\": \"SECRET\", \
             \"SessionToken\": \"T\", \"Expiration\": \"{expiration}\"}}'",
            count.display()
        )
    };
    let provider = |process: &str| {
        let config = format!("[default]\ncredential_process = {process}\n");
        let profile = AwsProfile::load(&environment(dir.path(), &config, "", &[])).unwrap();
        ProfileProvider::of(&profile, &EnvironmentCopy::default()).unwrap().unwrap()
    };
    let lasting = provider(&keys("2999-01-01T00:00:00Z"));
    for _ in 0..3 {
        let keys = lasting.keys().await.unwrap();
        assert_eq!(
            (keys.key_id.as_str(), keys.secret_key.as_str(), keys.token.as_deref()),
            ("ID", "SECRET", Some("T"))
        );
    }
    assert_eq!(fs::read_to_string(&count).unwrap(), "x\n");
    let expired = provider(&keys("2000-01-01T00:00:00Z"));
    expired.keys().await.unwrap();
    expired.keys().await.unwrap();
    assert_eq!(fs::read_to_string(&count).unwrap(), "x\n".repeat(3));
    assert!(!format!("{lasting:?}").contains("SECRET"));

    for process in ["echo SECRET", "exit 3 # SECRET", "echo '{\"AccessKeyId\": \"SECRET\"}'"] {
        let error = provider(process).keys().await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Credentials);
        assert!(!format!("{error} {error:?}").contains("SECRET"), "{error}");
    }
}

#[tokio::test]
async fn logins_and_roles_are_left_to_the_aws_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let config =
        "[profile sso]\nsso_session = x\n[profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = sso\n";
    let program = dir.path().join("aws");
    let script = "#!/bin/sh\necho \"$*\" >&2; case \"$*\" in *--profile\\ role*) id=ROLE;; *) id=SSO;; esac\n\
        echo \"{\\\"Version\\\": 1, \\\"AccessKeyId\\\": \\\"$id\\\", \\\"SecretAccessKey\\\": \\\"x\\\"}\"\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (name, id) in [("sso", "SSO"), ("role", "ROLE")] {
        let environment =
            environment(dir.path(), config, "", &[("AWS_PROFILE", name), ("AWS_CLI", program.to_str().unwrap())]);
        let provider = ProfileProvider::of(&AwsProfile::load(&environment).unwrap(), &environment).unwrap().unwrap();
        assert_eq!(provider.keys().await.unwrap().key_id, id);
    }
    let environment = environment(dir.path(), config, "", &[("AWS_PROFILE", "sso"), ("AWS_CLI", "/nonexistent/aws")]);
    let provider = ProfileProvider::of(&AwsProfile::load(&environment).unwrap(), &environment).unwrap().unwrap();
    assert!(provider.keys().await.unwrap_err().to_string().contains("not installed"));
}
