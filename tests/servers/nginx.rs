//! nginx, with a place for each behaviour of servers.

use std::fs;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::{Server, free_port};

/// A running nginx: one server with the places below, another server at a second port, and TLS at a third.
pub struct Nginx {
    // Dropped first, so that nginx ends before its directory.
    _server: Server,
    dir: TempDir,
    pub port: u16,
    pub other: u16,
    pub tls: u16,
}

/// The token that `/bearer/` wants, and the password of the user `me` at `/basic/`.
pub const TOKEN: &str = "TOKEN-5f0c61";
pub const PASSWORD: &str = "PASSWORD-93bd";

impl Nginx {
    pub fn start() -> Nginx {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("www")).unwrap();
        // Workers would run as another user.
        fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        certificate(dir.path());
        fs::write(dir.path().join("users"), format!("me:{{PLAIN}}{PASSWORD}\n")).unwrap();
        for _ in 0..5 {
            let (port, other, tls) = (free_port(), free_port(), free_port());
            fs::write(dir.path().join("nginx.conf"), config(dir.path(), port, other, tls)).unwrap();
            let conf = dir.path().join("nginx.conf");
            let prefix = dir.path().to_str().unwrap();
            let command = ["nginx", "-e", "stderr", "-p", prefix, "-c", conf.to_str().unwrap()];
            let mut server = Server::guarded(&command, &[("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")]);
            if [port, other, tls].into_iter().all(|port| server.answers(port)) {
                return Nginx { _server: server, dir, port, other, tls };
            }
        }
        panic!("nginx does not start; run scripts/servers first");
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

    /// The requests so far: `PORT METHOD URI STATUS RANGE IF-MATCH AUTHORIZATION ACCEPT-ENCODING HOST QUERY SENT`. The
    /// last one is the size of the body in bytes.
    pub fn log(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default();
        text.lines().map(|line| line.split('|').map(str::to_string).collect()).collect()
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

    /// Suspends the process, so that connections stay open and nothing is answered, or resumes it.
    pub fn suspend(&self, suspended: bool) {
        self.signal(if suspended { Signal::SIGSTOP } else { Signal::SIGCONT }).unwrap();
    }

    /// Ends the process, so that connections are refused.
    pub fn end(&self) {
        self.signal(Signal::SIGKILL).unwrap();
    }

    fn signal(&self, signal: Signal) -> nix::Result<()> {
        // The file is gone after an orderly end.
        let text = fs::read_to_string(self.dir.path().join("pid")).unwrap_or_default();
        text.trim().parse().map_or(Err(Errno::ESRCH), |pid| kill(Pid::from_raw(pid), signal))
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // A suspended process would not end.
        let _ = self.signal(Signal::SIGCONT);
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
        location /noranges/ {{ max_ranges 0; alias {dir}/www/; }}
        location /weak/ {{ etag off; add_header ETag 'W/"weak"'; alias {dir}/www/; }}
        location /undated/ {{ etag off; add_header Last-Modified ""; alias {dir}/www/; }}
        location /encoded/ {{ add_header Content-Encoding gzip; alias {dir}/www/; }}
        location /gzip/ {{ gzip on; gzip_types *; gzip_min_length 1; gzip_proxied any; alias {dir}/www/; }}
        location /slow/ {{ limit_rate 20k; sendfile off; output_buffers 1 4k; alias {dir}/www/; }}
        location /steady/ {{ limit_rate 256k; sendfile off; output_buffers 1 32k; alias {dir}/www/; }}
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
