//! Servers written in Python, or started by Python: the stub of the Hub, moto and SeaweedFS for S3, and the emulators
//! of the clouds.

use std::process::Command;

use serde_json::{Value, json};

use super::{Talking, package};

/// A server behind a script of this directory.
pub struct Python {
    talking: Talking,
    /// What the script said when it was ready.
    pub hello: Value,
}

impl Python {
    pub fn start(script: &str) -> Python {
        let mut command = Command::new(package().join(".venv/bin/python"));
        command.arg("-u").arg(package().join("tests/servers").join(script)).env("PYTHONDONTWRITEBYTECODE", "1");
        // Proxies and credentials of whoever runs the tests.
        for (name, _) in std::env::vars() {
            if ["AWS_", "HF_", "AZURE_", "GOOGLE_"].iter().any(|prefix| name.starts_with(prefix))
                || name.to_ascii_lowercase().ends_with("_proxy")
            {
                command.env_remove(name);
            }
        }
        let (talking, hello) = Talking::start(&mut command);
        Python { talking, hello }
    }

    pub fn ask(&mut self, command: Value) -> Value {
        self.talking.ask(command)
    }

    pub fn text(&self, name: &str) -> String {
        self.hello[name].as_str().unwrap_or_else(|| panic!("no {name} in {}", self.hello)).to_string()
    }

    /// The requests since the last call, for the stub of the Hub.
    pub fn take_log(&mut self) -> Vec<Value> {
        self.ask(json!({"do": "log"})).as_array().unwrap().clone()
    }
}
