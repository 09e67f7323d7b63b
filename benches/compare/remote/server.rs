//! The server: nginx on loopback, whose log counts requests and bytes.

use crate::systems::end;
use anyhow::{Context, bail, ensure};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A running nginx. One process, so that none is left when it is killed.
pub struct Server {
    child: Child,
    pub address: SocketAddr,
    log: PathBuf,
    /// The length of the part of the log that was counted.
    counted: u64,
}

/// What a client asked the server for.
#[derive(Clone, Copy, Default)]
pub struct Count {
    pub requests: u64,
    /// Bytes of bodies that were written to sockets. If a client closes a connection in the middle of a body, they
    /// include what it has not read.
    pub bytes: u64,
}

impl Server {
    /// Starts nginx for the files in `root`. Its own files are in `dir`, which must exist.
    pub fn start(root: &Path, dir: &Path) -> anyhow::Result<Self> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, TcpListener::bind("127.0.0.1:0")?.local_addr()?.port()));
        let log = dir.join("access.log");
        File::create(&log)?;
        let temporary =
            ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|kind| format!("{kind}_temp_path t;\n"));
        // Without `tcp_nopush`: it holds back the last packet of a response. Packets of loopback have 64 KiB, and one
        // may not fit into the window of a new connection. The response then ends 40 ms later.
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log error.log;
             events {{ worker_connections 2048; }}
             http {{
                 {temporary}
                 default_type application/octet-stream;
                 log_format counted '$body_bytes_sent $status $request_method $request_uri $http_range';
                 sendfile on; keepalive_requests 1000000; keepalive_timeout 300s;
                 server {{
                     listen {address} backlog=1024; root \"{root}\"; autoindex on; access_log access.log counted;
                     location = /status {{ stub_status; access_log off; }}
                     location /limited/ {{ limit_rate 50000000; alias \"{root}/\"; }}
                 }}
             }}",
            temporary = temporary.concat(),
            root = root.display(),
        );
        let file = dir.join("nginx.conf");
        std::fs::write(&file, config)?;
        // Debian has it where only root looks for programs.
        let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new("nginx");
        command.env("PATH", path).arg("-e").arg(dir.join("error.log")).arg("-p").arg(dir).arg("-c").arg(&file);
        let child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("nginx")?;
        let mut server = Self { child, address, log, counted: 0 };
        let start = Instant::now();
        while server.is_at_rest().is_err() {
            if server.child.try_wait()?.is_some() || start.elapsed() > Duration::from_secs(10) {
                bail!("nginx does not start: {}", std::fs::read_to_string(dir.join("error.log")).unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// The requests that ended since the last call. Waits until none is being answered.
    pub fn count(&mut self) -> anyhow::Result<Count> {
        let start = Instant::now();
        while !self.is_at_rest()? {
            ensure!(start.elapsed() < Duration::from_secs(10), "nginx still answers a request");
            thread::sleep(Duration::from_millis(2));
        }
        let log = File::open(&self.log)?;
        let mut lines = vec![0; (log.metadata()?.len() - self.counted) as usize];
        log.read_exact_at(&mut lines, self.counted)?;
        self.counted += lines.len() as u64;
        let mut count = Count::default();
        for line in String::from_utf8_lossy(&lines).lines() {
            count.requests += 1;
            count.bytes += line.split(' ').next().unwrap_or_default().parse::<u64>().context("the log of nginx")?;
        }
        Ok(count)
    }

    /// Whether no request is being answered but the one that asks.
    fn is_at_rest(&self) -> anyhow::Result<bool> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.write_all(b"GET /status HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.contains("Reading: 0 Writing: 1 "))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(self.child.id());
        let _ = self.child.wait();
    }
}
