//! A headless Chromium, driven over the WebDriver protocol of ChromeDriver.

use crate::lifetime::end_with_this_thread;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Chromium starts no connections of its own, and writes below `--user-data-dir` only.
const ARGUMENTS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
];

/// How long the driver may take for an answer, and a page to get into the expected state.
pub const PATIENCE: Duration = Duration::from_secs(240);

pub struct Browser {
    driver: Child,
    port: u16,
    session: String,
    // Removed after the browser has ended.
    _profile: TempDir,
}

impl Browser {
    /// Starts the browser.
    pub fn start() -> Browser {
        let profile = TempDir::new().unwrap();
        // The driver prints the port that it has chosen.
        let mut driver = Command::new("chromedriver");
        end_with_this_thread(&mut driver);
        let mut driver = driver
            .args(["--port=0"])
            .env("HOME", profile.path())
            .env("TMPDIR", profile.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromedriver of the package chromium-driver");
        let output = BufReader::new(driver.stdout.take().unwrap());
        let (sender, ports) = channel();
        // Reads to the end, because the driver must never wait for a reader of what it prints.
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some((_, port)) = line.split_once("successfully on port ") {
                    let _ = sender.send(port.trim_end_matches('.').parse().unwrap());
                }
            }
        });
        let port = ports.recv_timeout(PATIENCE);
        let data = format!("--user-data-dir={}", profile.path().join("data").display());
        let arguments: Vec<&str> = ARGUMENTS.iter().copied().chain([&data[..]]).collect();
        let mut browser = Browser { driver, port: 0, session: String::new(), _profile: profile };
        browser.port = port.expect("chromedriver prints its port");
        let started = browser.call(
            "POST",
            "/session",
            json!({"capabilities": {"alwaysMatch": {
                "browserName": "chrome",
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
                "unhandledPromptBehavior": "ignore",
            }}}),
        );
        browser.session = format!("/session/{}", started["sessionId"].as_str().unwrap());
        browser
    }

    /// Loads a page, and waits until its parts are loaded.
    pub fn open(&self, url: &str) {
        self.post("/url", json!({"url": url}));
    }

    /// The value of a JavaScript expression in the page.
    pub fn value(&self, expression: &str) -> Value {
        self.post("/execute/sync", json!({"script": format!("return {expression}"), "args": []}))
    }

    /// A text in the page.
    pub fn text(&self, expression: &str) -> String {
        let value = self.value(expression);
        value.as_str().unwrap_or_else(|| panic!("{expression}: {value}")).to_owned()
    }

    /// The texts of the elements that match a selector of CSS.
    pub fn texts(&self, selector: &str) -> Vec<String> {
        let value = self.value(&format!("[...document.querySelectorAll({selector:?})].map(e => e.textContent)"));
        serde_json::from_value(value).unwrap()
    }

    /// Waits until an expression is true.
    pub fn wait(&self, expression: &str) {
        let end = Instant::now() + PATIENCE;
        while self.value(expression) != json!(true) {
            assert!(Instant::now() < end, "never true: {expression}\n{}", self.text("document.body.innerText"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Clicks on the element that matches a selector of CSS, as the mouse does.
    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/click"), json!({}));
    }

    /// Types into an element.
    pub fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/value"), json!({"text": text}));
    }

    fn element(&self, selector: &str) -> String {
        let found = self.post("/element", json!({"using": "css selector", "value": selector}));
        found.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned()
    }

    /// A command of the DevTools protocol.
    pub fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.post("/goog/cdp/execute", json!({"cmd": command, "params": parameters}))
    }

    /// Sets the size of the page, in pixels.
    pub fn resize(&self, width: u32, height: u32) {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        );
    }

    /// Turns the scripts of pages off. Expressions of the tests still work.
    pub fn without_scripts(&self) {
        self.devtools("Emulation.setScriptExecutionDisabled", json!({"value": true}));
    }

    /// Messages in the console since the last call: errors of scripts, and what the policy of a page has refused.
    pub fn console(&self) -> Vec<String> {
        let entries = self.post("/se/log", json!({"type": "browser"}));
        entries.as_array().unwrap().iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    /// The URLs that pages requested since the last call. Those of the browser's own first page are left out.
    pub fn requested(&self) -> Vec<String> {
        let entries = self.post("/se/log", json!({"type": "performance"}));
        let events =
            entries.as_array().unwrap().iter().map(|entry| {
                serde_json::from_str::<Value>(entry["message"].as_str().unwrap()).unwrap()["message"].take()
            });
        let requests = events.filter(|event| event["method"] == "Network.requestWillBeSent");
        // Pages of the browser itself, such as that of a new tab: chrome:// and chrome-untrusted://.
        let is_own = |event: &Value| event["params"]["documentURL"].as_str().unwrap().starts_with("chrome");
        requests
            .filter(|event| !is_own(event))
            .map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Whether a dialogue is open.
    pub fn has_dialogue(&self) -> bool {
        self.ask("GET", &format!("{}/alert/text", self.session), Value::Null).is_ok()
    }

    fn post(&self, path: &str, body: Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    fn call(&self, method: &str, path: &str, body: Value) -> Value {
        self.ask(method, path, body.clone()).unwrap_or_else(|error| panic!("{method} {path} {body}: {error}"))
    }

    fn ask(&self, method: &str, path: &str, body: Value) -> Result<Value, Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let body = if body.is_null() { String::new() } else { body.to_string() };
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reader = BufReader::new(stream);
        let (mut status, mut len) = (String::new(), 0);
        reader.read_line(&mut status).unwrap();
        for line in reader.by_ref().lines().map(Result::unwrap).take_while(|line| !line.is_empty()) {
            if let Some((_, value)) = line.split_once(':').filter(|(key, _)| key.eq_ignore_ascii_case("content-length"))
            {
                len = value.trim().parse().unwrap();
            }
        }
        let mut bytes = vec![0; len];
        reader.read_exact(&mut bytes).unwrap();
        let value = serde_json::from_slice::<Value>(&bytes).unwrap()["value"].take();
        if status.contains(" 200 ") { Ok(value) } else { Err(value) }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The end of the session ends the browser. A second panic would abort the test.
        if !self.session.is_empty() {
            let _ = catch_unwind(AssertUnwindSafe(|| self.ask("DELETE", &self.session, Value::Null)));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
