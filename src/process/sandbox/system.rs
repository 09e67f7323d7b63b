//! The files of the system that a process with a network reads: random numbers, how to resolve names, and whom to
//! trust.

use nix::sys::stat::makedev;
use std::path::PathBuf;

/// The number of /dev/urandom. No other device can be opened.
pub const RANDOM: u64 = makedev(1, 9);

/// Random numbers, and what libc reads to resolve a name, its libraries included.
const NAMES: &[&str] = &[
    "/dev/urandom",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/nsswitch.conf",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    // /etc/resolv.conf is often a link into one of these, and a file there is replaced when the network changes.
    "/run/NetworkManager",
    "/run/connman",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
];

/// The certificates of authorities, where distributions have them. Keys of servers on this machine are elsewhere.
const CERTIFICATES: &[&str] = &[
    "/etc/ca-certificates",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/certs",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/usr/local/share/ca-certificates",
    "/usr/local/share/certs",
    "/usr/share/ca-certificates",
    "/usr/share/pki",
    "/var/lib/ca-certificates",
];

/// Files, and directories with all that is below them. `SSL_CERT_FILE` and `SSL_CERT_DIR` are among them.
#[cfg_attr(not(feature = "remote"), allow(dead_code, reason = "nothing is fetched"))]
pub fn system_reads() -> Vec<PathBuf> {
    let mut reads: Vec<PathBuf> = NAMES.iter().chain(CERTIFICATES).map(PathBuf::from).collect();
    reads.extend(std::env::var_os("SSL_CERT_FILE").map(PathBuf::from));
    // Several directories, as in PATH.
    reads.extend(std::env::var_os("SSL_CERT_DIR").iter().flat_map(std::env::split_paths));
    reads.retain(|path| path.is_absolute());
    reads
}
