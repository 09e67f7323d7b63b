//! The kinds of processes in a sandbox, and their rules of Landlock: which files each opens and how, and which TCP it
//! may use. Signals to other processes and abstract sockets are refused to all.

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, LandlockStatus, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope, make_bitflags,
};
use nix::sys::stat::{FileStat, SFlag, fstat, makedev};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(all(feature = "remote", feature = "serve")), allow(dead_code, reason = "some kinds need a feature"))]
pub enum SandboxTask {
    /// The daemon of a mount. It opens /dev/fuse again, for further threads.
    Mount,
    /// Serves HTTP clients over a socket that listens already.
    Http,
    /// Fetches remote files into the directory of the cache.
    Fetch,
}

/// The newest Landlock ABI that was tested. An older kernel enforces the rights that its own ABI has.
const TESTED: ABI = ABI::V7;

struct FileTable {
    /// The rights to the files that it reads, by their types. Others cannot be opened.
    reads: &'static [FileRule],
    /// The rights to its device or its directory.
    own: &'static [FileRule],
    /// The use of TCP that is refused.
    refused: BitFlags<AccessNet>,
}

/// The rights to a type of file. Those to a directory are also rights to all that is below it.
struct FileRule {
    kind: SFlag,
    /// The only device, of those of this type.
    device: Option<u64>,
    rights: BitFlags<AccessFs>,
}

const fn rule(kind: SFlag, rights: BitFlags<AccessFs>) -> FileRule {
    FileRule { kind, device: None, rights }
}

const REGULAR: FileRule = rule(SFlag::S_IFREG, make_bitflags!(AccessFs::{ReadFile}));

const MOUNT: FileTable = FileTable {
    // A rule for a directory would allow everything below it, and a shard may be a link to the root directory.
    reads: &[REGULAR],
    own: &[rule(SFlag::S_IFCHR, make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev}))],
    refused: make_bitflags!(AccessNet::{BindTcp | ConnectTcp}),
};

const HTTP: FileTable = FileTable { own: &[], ..MOUNT };

/// It cannot listen, and can connect to all ports.
const FETCH: FileTable = FileTable {
    reads: &[
        REGULAR,
        FileRule { kind: SFlag::S_IFCHR, device: Some(RANDOM), ..REGULAR },
        rule(SFlag::S_IFDIR, make_bitflags!(AccessFs::{ReadFile | ReadDir})),
    ],
    // Nothing can be executed, and no devices, sockets, pipes and links can be made.
    own: &[rule(
        SFlag::S_IFDIR,
        make_bitflags!(AccessFs::{
            ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir | Refer
        }),
    )],
    refused: make_bitflags!(AccessNet::{BindTcp}),
};

/// The number of /dev/urandom.
const RANDOM: u64 = makedev(1, 9);

/// The Landlock rules for the files `reads` and for the device or directory `own`. They refer to inodes: all paths are
/// opened here, with O_PATH. A missing path gets no rule, so a file that is created there later cannot be opened.
pub fn file_rules(task: SandboxTask, reads: &[PathBuf], own: Option<&Path>) -> Result<RulesetCreated, RulesetError> {
    let table = match task {
        SandboxTask::Mount => MOUNT,
        SandboxTask::Http => HTTP,
        SandboxTask::Fetch => FETCH,
    };
    let mut created = Ruleset::default()
        .handle_access(AccessFs::from_all(TESTED))?
        .handle_access(table.refused)?
        .scope(Scope::from_all(TESTED))?
        .create()?;
    let reads = reads.iter().map(|path| (&**path, table.reads));
    for (path, rules) in reads.chain(own.map(|own| (own, table.own))) {
        let Ok(file) = PathFd::new(path) else { continue };
        let Ok(stat) = fstat(&file) else { continue };
        if let Some(rule) = rules.iter().find(|rule| rule.is_for(&stat)) {
            created = created.add_rule(PathBeneath::new(file, rule.rights))?;
        }
    }
    Ok(created)
}

impl FileRule {
    fn is_for(&self, stat: &FileStat) -> bool {
        let kind = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits());
        kind == self.kind && self.device.is_none_or(|device| device == stat.st_rdev)
    }
}

/// Restricts the calling thread. Returns what is enforced, or why nothing is.
pub fn restrict_files(rules: Result<RulesetCreated, RulesetError>) -> Result<String, String> {
    let status = rules.and_then(RulesetCreated::restrict_self).map_err(|error| format!("Landlock: {error}"))?;
    match (status.ruleset, status.landlock) {
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => {
            Err("Landlock is not enabled in this kernel (boot it with lsm=landlock,...): other files can be read"
                .into())
        }
        (RulesetStatus::NotEnforced, _) => Err("this kernel has no Landlock: other files can be read".into()),
        (_, LandlockStatus::Available { effective_abi, .. }) => Ok(format!("Landlock (ABI {effective_abi})")),
        _ => Ok("Landlock".into()),
    }
}

/// The Landlock rules that this kernel enforces, or why it enforces nothing. Tries it in a thread of its own.
#[cfg_attr(test, allow(dead_code, reason = "tests/sandbox.rs has a copy of this module"))]
pub fn try_landlock() -> Result<String, String> {
    let attempt = std::thread::Builder::new().spawn(|| restrict_files(file_rules(SandboxTask::Mount, &[], None)));
    attempt.map_err(|error| error.to_string())?.join().map_err(|_| "the thread has ended".to_owned())?
}

/// The files of the system that a process with a network reads: random numbers, and what libc resolves names with.
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
