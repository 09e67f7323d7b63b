//! nginx, with a place for each behaviour of servers.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::lifetime::end_with_this_thread;
use super::ports::ClaimedPort;

/// A running nginx: one server with the places below, another server at a second port, and TLS at a third.
pub struct Nginx {
    child: Child,
    dir: TempDir,
    pub port: u16,
    pub other: u16,
    pub tls: u16,
    _claims: [ClaimedPort; 3],
    /// Whether it is neither suspended nor ended.
    is_running: AtomicBool,
    /// The number of markers in its log.
    markers: AtomicU64,
}

/// Waits until a server accepts connections at its ports. `false` if it has ended.
fn listens(child: &mut Child, ports: [u16; 3]) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if ports.iter().all(|port| TcpStream::connect(("127.0.0.1", *port)).is_ok()) {
            return true;
        }
        assert!(Instant::now() < deadline, "nginx does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Time limit for what nginx does without delay, such as starting or writing a line of its log.
const PATIENCE: Duration = Duration::from_secs(120);

/// The token that `/bearer/` wants, and the password of the user `me` at `/basic/`.
pub const TOKEN: &str = "TOKEN-5f0c61";
pub const PASSWORD: &str = "PASSWORD-93bd";

/// Where requests of [`Nginx::log`] go.
const MARKER: &str = "/marker/";

impl Nginx {
    pub fn start() -> Nginx {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("www")).unwrap();
        // Workers would run as another user.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        certificate(dir.path());
        fs::write(dir.path().join("users"), format!("me:{{PLAIN}}{PASSWORD}\n")).unwrap();
        let conf = dir.path().join("nginx.conf");
        // A program that is not a test may take a port in the meantime.
        for _ in 0..10 {
            let claims = [(); 3].map(|()| ClaimedPort::new());
            let [port, other, tls] = claims.each_ref().map(|claim| claim.port);
            fs::write(&conf, config(dir.path(), port, other, tls)).unwrap();
            let mut command = Command::new("nginx");
            command.args(["-e", "stderr", "-p"]).arg(dir.path()).arg("-c").arg(&conf);
            command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null()).stdout(Stdio::null());
            end_with_this_thread(&mut command);
            let mut child = command.spawn().unwrap_or_else(|error| panic!("nginx: {error}; run scripts/servers first"));
            if listens(&mut child, [port, other, tls]) {
                let (is_running, markers) = (true.into(), 0.into());
                let nginx = Nginx { child, dir, port, other, tls, _claims: claims, is_running, markers };
                nginx.mark();
                return nginx;
            }
        }
        panic!("nginx does not start");
    }

    /// Writes a file, which replaces the old one.
    pub fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.dir.path().join("www").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let new = self.dir.path().join("new");
        fs::write(&new, bytes).unwrap();
        fs::rename(new, path).unwrap();
    }

    pub fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join("www").join(name)
    }

    pub fn authority(&self) -> std::path::PathBuf {
        self.dir.path().join("cert.pem")
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}/{path}", self.port)
    }

    /// The requests whose responses have ended: `PORT METHOD URI STATUS RANGE IF-MATCH AUTHORIZATION ACCEPT-ENCODING
    /// HOST QUERY SENT`. The last one is the size of the body in bytes.
    pub fn log(&self) -> Vec<Vec<String>> {
        // A server that is suspended or has ended writes nothing more.
        if self.is_running.load(Ordering::SeqCst) {
            self.mark();
        }
        let lines = self.lines().into_iter();
        lines.filter(|line| !line[2].starts_with(MARKER)).collect()
    }

    /// As [`log`](Self::log), once all responses have ended.
    pub fn log_at_rest(&self) -> Vec<Vec<String>> {
        let deadline = Instant::now() + PATIENCE;
        while self.is_running.load(Ordering::SeqCst) && self.mark() > 0 {
            assert!(Instant::now() < deadline, "nginx still sends responses");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.log()
    }

    fn lines(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default();
        text.lines().map(|line| line.split('|').map(str::to_string).collect()).collect()
    }

    /// Sends a request and waits until it is in the log. nginx writes the line of a request after the response, so a
    /// client may have its response before. nginx runs as one process and writes the lines in order, so the lines of
    /// earlier responses are there when that of the marker is. Returns the number of responses that have not ended.
    fn mark(&self) -> u64 {
        let path = format!("{MARKER}{}", self.markers.fetch_add(1, Ordering::SeqCst));
        let ask = || -> io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        let answer = ask().unwrap_or_else(|error| panic!("nginx does not answer: {error}"));
        let deadline = Instant::now() + PATIENCE;
        while !self.lines().iter().any(|line| line.get(2) == Some(&path)) {
            assert!(Instant::now() < deadline, "{path} is not in the log of nginx");
            std::thread::sleep(Duration::from_millis(1));
        }
        let body = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("nginx answers {answer:?}")).1;
        // The request of the marker itself is counted too.
        body.parse::<u64>().unwrap_or_else(|_| panic!("nginx answers {answer:?}")) - 1
    }
}

impl Nginx {
    /// Whether `/throttled/` refuses requests.
    pub fn throttle(&self, refuses: bool) {
        let switch = self.dir.path().join("throttle");
        match refuses {
            true => fs::write(switch, "").unwrap(),
            false => fs::remove_file(switch).unwrap(),
        }
    }

    /// Whether `/held/` stops after the first 100 KiB of each response: the rest takes days.
    pub fn hold(&self, holds: bool) {
        let switch = self.dir.path().join("hold");
        match holds {
            true => fs::write(switch, "").unwrap(),
            false => fs::remove_file(switch).unwrap(),
        }
    }

    /// Suspends the process, so that connections stay open and nothing is answered, or resumes it.
    pub fn suspend(&self, suspended: bool) {
        if suspended {
            self.complete_log();
        }
        self.signal(if suspended { Signal::SIGSTOP } else { Signal::SIGCONT });
        self.is_running.store(!suspended, Ordering::SeqCst);
    }

    /// Ends the process, so that connections are refused.
    pub fn end(&self) {
        self.complete_log();
        self.signal(Signal::SIGKILL);
        // The ports are closed when the process is gone. It stays a zombie until this value is dropped.
        let stat = format!("/proc/{}/stat", self.child.id());
        let deadline = Instant::now() + PATIENCE;
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(Instant::now() < deadline, "nginx does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the log has all responses that have ended, before the process is suspended or ends.
    fn complete_log(&self) {
        if self.is_running.swap(false, Ordering::SeqCst) {
            self.mark();
        }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn certificate(dir: &Path) {
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=weightfs test", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn config(dir: &Path, port: u16, other: u16, tls: u16) -> String {
    let dir = dir.display();
    let user = if fs::metadata("/root").is_ok_and(|_| fs::read_dir("/root").is_ok()) { "user root;" } else { "" };
    let places = format!(
        r#"
        root {dir}/www;
        location {MARKER} {{ return 200 $connections_writing; }}
        location /held/ {{ limit_rate_after 100k; if (-f {dir}/hold) {{ set $limit_rate 1; }} alias {dir}/www/; }}
        location /noranges/ {{ max_ranges 0; alias {dir}/www/; }}
        location /weak/ {{ etag off; add_header ETag 'W/"weak"'; alias {dir}/www/; }}
        location /undated/ {{ etag off; add_header Last-Modified ""; alias {dir}/www/; }}
        location /encoded/ {{ add_header Content-Encoding gzip; alias {dir}/www/; }}
        location /gzip/ {{ gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any; alias {dir}/www/; }}
        location /slow/ {{ limit_rate 20k; sendfile off; output_buffers 1 4k; alias {dir}/www/; }}
        location /basic/ {{ auth_basic weights; auth_basic_user_file {dir}/users; alias {dir}/www/; }}
        location /bearer/ {{ if ($http_authorization != "Bearer {TOKEN}") {{ return 401; }} alias {dir}/www/; }}
        location /handover/ {{
            if ($http_authorization != "Bearer {TOKEN}") {{ return 401; }}
            rewrite ^/handover/(.*)$ http://127.0.0.1:{other}/$1 redirect;
        }}
        location /elsewhere/ {{ rewrite ^/elsewhere/(.*)$ http://127.0.0.1:{other}/$1 redirect; }}
        location /here/ {{ rewrite ^/here/(.*)$ /$1 redirect; }}
        location /loop/ {{ return 302 $request_uri; }}
        location /ftp/ {{ return 302 ftp://127.0.0.1/x; }}
        location /open/ {{ return 302 http://198.51.100.1/x; }}
        location /busy/ {{ add_header Retry-After 7 always; return 429; }}
        location /throttled/ {{
            if (-f {dir}/throttle) {{ add_header Retry-After 1 always; return 429; }}
            alias {dir}/www/;
        }}
        location /down/ {{ return 503; }}
        location /drop/ {{ return 444; }}
        location /drip/ {{ limit_rate_after 1k; limit_rate 100; alias {dir}/www/; }}
        location /echo/ {{ add_header X-Error-Message "you sent $http_authorization" always; return 403; }}
        location /nohead/ {{ if ($request_method = HEAD) {{ return 403; }} alias {dir}/www/; }}
        location /gone/ {{ return 410; }}
        location /expiring/ {{
            secure_link $arg_md5,$arg_expires;
            secure_link_md5 "$secure_link_expires$uri secret";
            if ($secure_link = "") {{ return 403; }}
            if ($secure_link = "0") {{ return 410; }}
            alias {dir}/www/;
        }}"#
    );
    format!(
        r#"{user}
daemon off;
master_process off;
pid {dir}/pid;
error_log stderr crit;
events {{}}
http {{
    log_format wide escape=none '$server_port|$request_method|$uri|$status|$http_range|$http_if_match|$http_authorization|$http_accept_encoding|$http_host|$args|$body_bytes_sent';
    access_log {dir}/access.log wide;
    client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
    uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
    default_type application/octet-stream;
    server {{ listen 127.0.0.1:{port}; {places} }}
    server {{
        listen 127.0.0.1:{other}; root {dir}/www;
        location /back/ {{ rewrite ^/back/(.*)$ http://127.0.0.1:{port}/$1 redirect; }}
    }}
    server {{ listen 127.0.0.1:{tls} ssl; ssl_certificate {dir}/cert.pem; ssl_certificate_key {dir}/key.pem; {places} }}
}}
"#
    )
}
