//! Tests from inside the sandbox what it allows and what it refuses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::libc::{self, c_int, c_long};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::Resource;
use nix::sys::signal;
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::{CommandExt, parent_id};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};
#[path = "../src/process/sandbox/mod.rs"]
mod sandbox;

use sandbox::Sandbox;
use sandbox::files::{SandboxTask, system_reads};

/// The environment variable that tells [`inside`] and [`inside_fetching`] the directory of their attempts.
const DIR: &str = "WEIGHTFS_TEST_SANDBOX";

/// The environment variable that tells [`inside_any`] its kind of process.
const KIND: &str = "WEIGHTFS_TEST_KIND";

/// The environment variable that tells [`inside_fetching`] a port of this machine.
const PORT: &str = "WEIGHTFS_TEST_PORT";

/// The result of each attempt.
type Attempts = BTreeMap<&'static str, Result<(), Errno>>;

#[test]
#[ignore = "run by another test in a separate process"]
fn inside() {
    inside_serving(|reads| Sandbox::new(SandboxTask::Mount, reads, Some(Path::new("/dev/zero"))));
}

#[test]
#[ignore = "run by another test in a separate process"]
fn inside_listening() {
    inside_serving(|reads| Sandbox::new(SandboxTask::Http, reads, None));
}

fn inside_serving(sandbox: impl FnOnce(&[PathBuf]) -> Sandbox) {
    let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
    let open = Open::new(&dir);
    let reads = ["source", "folder/deep/file", "link", "absent", "shard"].map(|name| dir.join(name));
    let mut log = File::open(dir.join("log")).unwrap();
    log::set_boxed_logger(Box::new(ToLog(open.log.try_clone().unwrap()))).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let enforced = sandbox(&reads).enter();
    let here = attempts(&dir, &open);
    // New threads inherit the sandbox.
    let there = std::thread::scope(|scope| scope.spawn(|| attempts(&dir, &open)).join().unwrap());
    assert_eq!(here, there);
    // A thread logs refused calls.
    wait_for_log(&mut log, enforced.missing.len() < 2, libc::SYS_vhangup);
    // The log was opened before the sandbox was entered.
    (&open.log).write_all(report(&enforced, here).as_bytes()).unwrap();
}

/// What a process in the sandbox tells the test that started it.
fn report(enforced: &sandbox::EnforcedLimits, attempts: Attempts) -> String {
    let mut report = format!("in force: {enforced}\n");
    for missing in &enforced.missing {
        report += &format!("missing: {missing}\n");
    }
    for (name, result) in attempts {
        let result = result.map_or_else(|errno| format!("{errno:?}"), |()| "done".into());
        report += &format!("{name}: {result}\n");
    }
    report
}

/// Waits until the log says that a call was refused, if it `is_refused`.
fn wait_for_log(log: &mut File, is_refused: bool, call: c_long) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut logged = String::new();
    while is_refused && !logged.contains(&format!("system call {call} ")) {
        assert!(Instant::now() < deadline, "{logged}");
        log.read_to_string(&mut logged).unwrap();
    }
}

#[test]
#[ignore = "run by another test in a separate process"]
fn inside_fetching() {
    let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
    let port = std::env::var(PORT).unwrap().parse().unwrap();
    let mut reads = system_reads();
    reads.extend(["token", "certs", "absent"].map(|name| dir.join(name)));
    let out = File::options().append(true).open(dir.join("log")).unwrap();
    let mut log = File::open(dir.join("log")).unwrap();
    log::set_boxed_logger(Box::new(ToLog(out.try_clone().unwrap()))).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let enforced = Sandbox::new(SandboxTask::Fetch, &reads, Some(&dir.join("cache"))).enter();
    let here = attempts_fetching(&dir, port);
    let there = std::thread::scope(|scope| scope.spawn(|| attempts_fetching(&dir, port)).join().unwrap());
    assert_eq!(here, there);
    wait_for_log(&mut log, enforced.missing.len() < 2, libc::SYS_vhangup);
    (&out).write_all(report(&enforced, here).as_bytes()).unwrap();
}

/// Writes messages to a file.
struct ToLog(File);

impl log::Log for ToLog {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }

    fn log(&self, record: &log::Record) {
        (&self.0).write_all(format!("logged: {}\n", record.args()).as_bytes()).unwrap();
    }

    fn flush(&self) {}
}

/// What is open when the sandbox is entered.
struct Open {
    source: File,
    log: File,
    stream: (UnixStream, UnixStream),
    datagram: UnixDatagram,
    listener: TcpListener,
    /// One for each thread that accepts.
    _clients: [TcpStream; 2],
}

impl Open {
    fn new(dir: &Path) -> Self {
        let source = File::open(dir.join("source")).unwrap();
        let log = File::options().append(true).open(dir.join("log")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _clients = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let (stream, datagram) = (UnixStream::pair().unwrap(), UnixDatagram::unbound().unwrap());
        Self { source, log, stream, datagram, listener, _clients }
    }
}

/// Makes a raw system call.
fn call(number: c_long, arguments: [c_long; 6]) -> io::Result<()> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the calls below only test whether they are refused. They fail or have no effect on the memory of this
    // process: pointers are invalid, or to what the kernel only reads.
    #[allow(unsafe_code)]
    let returned = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    Errno::result(returned).map(drop).map_err(io::Error::from)
}

fn attempts(dir: &Path, open: &Open) -> Attempts {
    let path = |name: &str| dir.join(name);
    let read = |path: PathBuf| File::open(path)?.read_to_end(&mut Vec::new()).map(drop);
    let parent = parent_id() as i32;
    let own = std::process::id() as c_long;
    let mut attempts = Attempts::new();
    let mut attempt = |name: &'static str, result: io::Result<()>| {
        let result = result.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_else(|| panic!("{error}"))));
        assert!(attempts.insert(name, result).is_none(), "{name} is attempted twice");
    };
    attempt("read the source", read(path("source")));
    attempt("read behind a link", read(path("link")));
    attempt("read below the folder", read(path("folder/deep/file")));
    attempt("read an open file", open.source.read_exact_at(&mut [0], 0));
    attempt("write to the log", (&open.log).write_all(b""));
    attempt("use an open socket", (&open.stream.0).write_all(b"x").and((&open.stream.1).read_exact(&mut [0])));
    attempt("start a thread", std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join().unwrap()));
    attempt("open the device", File::options().read(true).write(true).open("/dev/zero").map(drop));
    attempt("stat another file", fs::metadata(path("other")).map(drop));
    attempt("signal itself", call(libc::SYS_tgkill, [own, own, 0, 0, 0, 0]));
    attempt("lower its priority", call(libc::SYS_setpriority, [0, 0, 5, 0, 0, 0]));
    attempt(
        "read its limits",
        nix::sys::resource::getrlimit(Resource::RLIMIT_NOFILE).map(drop).map_err(io::Error::from),
    );
    attempt("name a thread", nix::sys::prctl::set_name(c"name").map_err(io::Error::from));

    attempt("read another file", read(path("other")));
    attempt("read another file below /", read("/etc/passwd".into()));
    attempt("read /proc/self", read("/proc/self/maps".into()));
    attempt("read through an unlisted link", read(path("stray")));
    attempt("open another device", File::open("/dev/null").map(drop));
    attempt("list a directory", fs::read_dir(dir).map(drop));
    attempt("read beside a file in the folder", read(path("folder/deep/beside")));
    attempt("read a file behind a directory link", read(path("folder/etc/passwd")));
    attempt("read below a directory with the name of a shard", read(path("shard/file")));
    attempt("list the folder", fs::read_dir(path("folder")).map(drop));
    attempt("open the source for writing", File::options().write(true).open(path("source")).map(drop));
    attempt("open the log again", File::options().append(true).open(path("log")).map(drop));
    attempt("make a file", File::create(path("new")).map(drop));
    attempt("make a file in the folder", File::create(path("folder/new")).map(drop));
    attempt("make a directory", fs::create_dir(path("new")));
    attempt("make a link", symlink("source", path("new")));
    attempt("remove a file", fs::remove_file(path("source")));
    attempt("rename a file", fs::rename(path("source"), path("new")));
    attempt("change permissions", fs::set_permissions(path("source"), Permissions::from_mode(0o777)));
    attempt("change owners", std::os::unix::fs::chown(path("source"), Some(1), None));
    attempt("change times", open.source.set_modified(SystemTime::UNIX_EPOCH));
    attempt("truncate the log", open.log.set_len(0));

    attempt("accept a connection", open.listener.accept().map(drop));
    attempt("listen on TCP", TcpListener::bind("127.0.0.1:0").map(drop));
    attempt("connect by TCP", TcpStream::connect("127.0.0.1:9").map(drop));
    attempt("open a UDP socket", UdpSocket::bind("127.0.0.1:0").map(drop));
    attempt("make a socket pair", UnixStream::pair().map(drop));
    attempt("connect a socket", open.datagram.connect(path("socket")));
    attempt("send to another socket", open.datagram.send_to(b"x", path("socket")).map(drop));

    attempt("run a program", Command::new("/bin/true").spawn().map(drop));
    attempt("execute a program", Err(Command::new("/bin/true").exec()));
    attempt("execute an open file", call(libc::SYS_execveat, [open.source.as_raw_fd().into(), 0, 0, 0, 0, 0]));
    attempt("start a process", call(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0, 0]));
    attempt("signal another process", signal::kill(Pid::from_raw(parent), None).map_err(io::Error::from));
    attempt("signal another thread", call(libc::SYS_tgkill, [parent.into(), parent.into(), 0, 0, 0, 0]));
    attempt("trace another process", call(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), parent.into(), 0, 0, 0, 0]));
    attempt("read another process", call(libc::SYS_process_vm_readv, [parent.into(), 0, 0, 0, 0, 0]));
    let executable = (libc::PROT_READ | libc::PROT_EXEC).into();
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).into();
    attempt("limit another process", call(libc::SYS_prlimit64, [parent.into(), 7, 0, 0, 0, 0]));
    attempt("change its own limits", call(libc::SYS_prlimit64, [0, 7, 1, 0, 0, 0]));
    attempt("change the priority of another process", call(libc::SYS_setpriority, [0, parent.into(), 5, 0, 0, 0]));
    attempt("change the priority of a user", call(libc::SYS_setpriority, [2, 0, 5, 0, 0, 0]));
    attempt("bind another process to a core", call(libc::SYS_sched_setaffinity, [parent.into(), 0, 0, 0, 0, 0]));
    attempt("schedule another process", call(libc::SYS_sched_setscheduler, [parent.into(), 0, 0, 0, 0, 0]));
    attempt("schedule another process by attributes", call(libc::SYS_sched_setattr, [parent.into(), 0, 0, 0, 0, 0]));
    attempt("set the priority of I/O", call(libc::SYS_ioprio_set, [1, parent.into(), 0, 0, 0, 0]));
    attempt("get signals for a descriptor", call(libc::SYS_fcntl, [0, libc::F_SETOWN.into(), parent.into(), 0, 0, 0]));
    attempt(
        "send signals to a terminal",
        call(libc::SYS_fcntl, [0, libc::F_SETFL.into(), libc::O_ASYNC.into(), 0, 0, 0]),
    );
    attempt(
        "lease a file",
        call(libc::SYS_fcntl, [open.source.as_raw_fd().into(), libc::F_SETLEASE.into(), 0, 0, 0, 0]),
    );
    attempt("send to a message queue", call(libc::SYS_msgsnd, [0; 6]));
    attempt("receive from a message queue", call(libc::SYS_msgrcv, [0; 6]));
    attempt("remove a message queue", call(libc::SYS_msgctl, [0; 6]));
    attempt("change a semaphore", call(libc::SYS_semop, [0; 6]));
    attempt("remove a semaphore", call(libc::SYS_semctl, [0; 6]));
    attempt("get a semaphore", call(libc::SYS_semget, [0; 6]));
    attempt("attach shared memory", call(libc::SYS_shmat, [0; 6]));
    attempt("remove shared memory", call(libc::SYS_shmctl, [0; 6]));
    attempt("open a POSIX message queue", call(libc::SYS_mq_open, [0; 6]));
    attempt("send to a POSIX message queue", call(libc::SYS_mq_timedsend, [0; 6]));
    attempt("remove a POSIX message queue", call(libc::SYS_mq_unlink, [0; 6]));
    let secret = CString::new(path("secret").as_os_str().as_bytes()).unwrap();
    let attribute = c"user.secret".as_ptr() as c_long;
    attempt("read an attribute", call(libc::SYS_getxattr, [secret.as_ptr() as c_long, attribute, 0, 0, 0, 0]));
    attempt("list attributes", call(libc::SYS_listxattr, [secret.as_ptr() as c_long, 0, 0, 0, 0, 0]));
    attempt("change the personality", call(libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0]));
    attempt("start a thread in a namespace", {
        let flags = libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM | libc::CLONE_NEWNET;
        call(libc::SYS_clone, [flags.into(), 0, 0, 0, 0, 0])
    });
    attempt("make memory with a protection key executable", call(libc::SYS_pkey_mprotect, [0, 0, 4, 0, 0, 0]));
    attempt("move memory into a pipe", call(libc::SYS_vmsplice, [0; 6]));
    attempt("watch a directory", call(libc::SYS_inotify_init1, [0; 6]));
    attempt("hang up the terminal", call(libc::SYS_vhangup, [0; 6]));
    attempt("map executable memory", call(libc::SYS_mmap, [0, 4096, executable, anonymous, -1, 0]));
    attempt("make memory executable", call(libc::SYS_mprotect, [0, 0, executable, 0, 0, 0]));
    attempt("simulate terminal input", call(libc::SYS_ioctl, [0, libc::TIOCSTI as c_long, 0, 0, 0, 0]));

    let unmount = nix::mount::umount2(&path("folder"), nix::mount::MntFlags::empty());
    attempt("unmount", unmount.map_err(io::Error::from));
    attempt("mount", call(libc::SYS_mount, [0; 6]));
    attempt("open a mount tree", call(libc::SYS_open_tree, [0; 6]));
    attempt("enter a namespace", call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0, 0]));
    attempt("open by handle", call(libc::SYS_open_by_handle_at, [0; 6]));
    attempt("change the root", nix::unistd::chroot(dir).map_err(io::Error::from));
    attempt("use io_uring", call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0]));
    attempt("use bpf", call(libc::SYS_bpf, [0; 6]));
    attempt("use kernel keys", call(libc::SYS_keyctl, [0; 6]));
    attempt("open performance counters", call(libc::SYS_perf_event_open, [0; 6]));
    attempt("start a process by clone3", call(libc::SYS_clone3, [0; 6]));
    attempt("make an unlisted system call", call(libc::SYS_landlock_restrict_self + 6, [-1; 6]));
    // getpid in the x32 table of system calls.
    attempt("call through the x32 ABI", call(0x4000_0000 + 39, [0; 6]));
    attempts
}

/// Runs one of the ignored tests in another process, and returns its report; `None` if the kernel lacks a part of the
/// sandbox.
fn run_inside(test: &str, dir: &Path, port: u16) -> Option<String> {
    run_inside_kind(test, dir, port, "")
}

/// As [`run_inside`], for a kind of process.
fn run_inside_kind(test: &str, dir: &Path, port: u16, kind: &str) -> Option<String> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(KIND, kind)
        .env(PORT, port.to_string())
        .output()
        .unwrap();
    let report = fs::read_to_string(dir.join("log")).unwrap();
    assert!(output.status.success(), "{output:?}\n{report}");
    let lines = |prefix: &str| -> Vec<&str> { report.lines().filter_map(|line| line.strip_prefix(prefix)).collect() };
    // The thread of the test harness runs before the sandbox is entered.
    let missing = lines("missing: ");
    let without = missing.iter().find(|missing| !missing.starts_with("1 other threads run already"));
    if let Some(without) = without {
        assert!(std::env::var_os("REQUIRE_FUSE").is_none_or(|value| value != "1"), "REQUIRE_FUSE=1, but {without}");
        let _ = writeln!(io::stderr(), "skipped: {without}");
        return None;
    }
    let in_force = lines("in force: ").pop().unwrap();
    let (landlock, rest) = in_force.split_once("), ").unwrap();
    assert!(landlock.starts_with("Landlock (ABI "), "{in_force}");
    assert_eq!(rest, "no new privileges, no capabilities, seccomp");
    Some(report)
}

/// What a process that fetches tries. The names of those that must succeed begin with `may`.
fn attempts_fetching(dir: &Path, port: u16) -> Attempts {
    let path = |name: &str| dir.join(name);
    let read = |path: PathBuf| File::open(path)?.read_to_end(&mut Vec::new()).map(drop);
    let write = |path: PathBuf| File::options().write(true).open(path).map(drop);
    let socket = |family: c_int, kind: c_int| call(libc::SYS_socket, [family.into(), kind.into(), 0, 0, 0, 0]);
    let parent = parent_id() as i32;
    let mut attempts = Attempts::new();
    let mut attempt = |name: &'static str, result: io::Result<()>| {
        let result = result.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_else(|| panic!("{error}"))));
        assert!(attempts.insert(name, result).is_none(), "{name} is attempted twice");
    };
    attempt("may read credentials", read(path("token")));
    attempt("may read below a directory", read(path("certs/ca.pem")));
    attempt("may read random numbers", File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut [0; 9])));
    attempt("may list a directory", fs::read_dir(path("certs")).map(drop));
    attempt("may read the cache", read(path("cache/old")));
    attempt("may list the cache", fs::read_dir(path("cache")).map(drop));
    attempt("may write into the cache", {
        let fill = || {
            fs::create_dir_all(path("cache/objects"))?;
            let file = File::options().create(true).truncate(true).write(true).open(path("cache/objects/new"))?;
            file.set_len(1 << 20)?;
            file.write_all_at(b"bytes", 9)?;
            let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            fallocate(&file, punch, 0, 65536)?;
            // SAFETY: a lock of zeros is valid, and covers the whole file.
            #[allow(unsafe_code)]
            let mut lock: libc::flock = unsafe { std::mem::zeroed() };
            lock.l_type = libc::F_WRLCK as libc::c_short;
            fcntl(&file, FcntlArg::F_OFD_SETLK(&lock))?;
            file.sync_data()?;
            fs::rename(path("cache/objects/new"), path("cache/objects/renamed"))?;
            fs::remove_file(path("cache/objects/renamed"))?;
            fs::remove_dir(path("cache/objects"))
        };
        fill()
    });
    attempt("may share sealed memory", {
        let memory = memfd_create("test", MFdFlags::MFD_ALLOW_SEALING).map_err(io::Error::from);
        memory.and_then(|memory| Ok(fcntl(&memory, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).map(drop)?))
    });
    attempt("may resolve a name", ("localhost", port).to_socket_addrs().map(drop));
    attempt("may connect by TCP", TcpStream::connect(("localhost", port)).map(drop));
    attempt("may send by UDP", {
        let sent = UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.send_to(b"x", ("127.0.0.1", port)));
        sent.map(drop)
    });
    attempt("may start a thread", std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join().unwrap()));

    attempt("open the FUSE device", File::options().read(true).write(true).open("/dev/fuse").map(drop));
    attempt("read the FUSE device", read("/dev/fuse".into()));
    attempt("read another device", read("/dev/null".into()));
    attempt("read the passwords", read("/etc/shadow".into()));
    attempt("read the users", read("/etc/passwd".into()));
    attempt("read another file", read(path("outside")));
    attempt("list another directory", fs::read_dir(dir).map(drop));
    attempt("read behind a link in the cache", read(path("cache/link")));
    attempt("read its own environment", read("/proc/self/environ".into()));
    attempt("write to another file", write(path("outside")));
    attempt("write to the credentials", write(path("token")));
    attempt("write to the log", write(path("log")));
    attempt("make a file", File::create(path("new")).map(drop));
    attempt("make a file beside a certificate", File::create(path("certs/new")).map(drop));
    attempt("move a file out of the cache", fs::rename(path("cache/old"), path("new")));
    attempt("move a file into the cache", fs::rename(path("outside"), path("cache/new")));
    attempt("make a hard link", fs::hard_link(path("outside"), path("cache/new")));
    attempt("make a link", symlink("/etc/shadow", path("cache/new")));
    attempt("remove a file", fs::remove_file(path("outside")));
    attempt("make a pipe with a name", nix::unistd::mkfifo(&path("cache/new"), Mode::S_IRWXU).map_err(io::Error::from));
    attempt("change an owner", std::os::unix::fs::chown(path("outside"), Some(1), None));
    attempt("change permissions", fs::set_permissions(path("outside"), Permissions::from_mode(0o777)));
    let token = File::open(path("token")).unwrap();
    attempt("change permissions of an open file", token.set_permissions(Permissions::from_mode(0o666)));
    let times = [libc::timespec { tv_sec: 0, tv_nsec: libc::UTIME_NOW }; 2];
    let (outside, now) = (CString::new(path("outside").as_os_str().as_bytes()).unwrap(), times.as_ptr() as c_long);
    attempt("change times", call(libc::SYS_utimensat, [-100, outside.as_ptr() as c_long, now, 0, 0, 0]));
    let old = File::options().write(true).open(path("cache/old")).unwrap();
    attempt("may change the times of a file of the cache", old.set_modified(SystemTime::now()));

    attempt("listen on TCP", TcpListener::bind("127.0.0.1:0").map(drop));
    attempt("connect to a local socket", UnixStream::connect(path("socket")).map(drop));
    attempt(
        "send to a local socket",
        UnixDatagram::unbound().and_then(|from| from.send_to(b"x", path("socket"))).map(drop),
    );
    attempt("make a raw socket", socket(libc::AF_INET, libc::SOCK_RAW));
    attempt("make a packet socket", socket(libc::AF_PACKET, libc::SOCK_RAW));
    attempt("make a virtual machine socket", socket(libc::AF_VSOCK, libc::SOCK_STREAM));
    attempt("make a socket for cryptography", socket(libc::AF_ALG, libc::SOCK_SEQPACKET));

    attempt("run a program", Command::new("/bin/true").spawn().map(drop));
    attempt("execute a program", Err(Command::new("/bin/true").exec()));
    attempt("execute a file of the cache", Err(Command::new(path("cache/program")).exec()));
    attempt("start a process", call(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0, 0]));
    attempt("signal another process", signal::kill(Pid::from_raw(parent), None).map_err(io::Error::from));
    attempt("signal another thread", call(libc::SYS_tgkill, [parent.into(), parent.into(), 0, 0, 0, 0]));
    attempt("trace another process", call(libc::SYS_ptrace, [libc::PTRACE_SEIZE.into(), parent.into(), 0, 0, 0, 0]));
    attempt("read another process", call(libc::SYS_process_vm_readv, [parent.into(), 0, 0, 0, 0, 0]));
    attempt("limit another process", call(libc::SYS_prlimit64, [parent.into(), 7, 0, 0, 0, 0]));
    attempt("get signals for a descriptor", call(libc::SYS_fcntl, [0, libc::F_SETOWN.into(), parent.into(), 0, 0, 0]));
    let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).into();
    let executable = (libc::PROT_READ | libc::PROT_EXEC).into();
    attempt("map executable memory", call(libc::SYS_mmap, [0, 4096, executable, anonymous, -1, 0]));
    attempt("make memory executable", call(libc::SYS_mprotect, [0, 0, executable, 0, 0, 0]));
    let changing = (libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC).into();
    attempt("map code that can be changed", call(libc::SYS_mmap, [0, 4096, changing, libc::MAP_PRIVATE.into(), -1, 0]));
    attempt("simulate terminal input", call(libc::SYS_ioctl, [0, libc::TIOCSTI as c_long, 0, 0, 0, 0]));
    attempt("mount", call(libc::SYS_mount, [0; 6]));
    attempt("unmount", call(libc::SYS_umount2, [0; 6]));
    attempt("enter a namespace", call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0, 0]));
    attempt("open by handle", call(libc::SYS_open_by_handle_at, [0; 6]));
    attempt("change the root", nix::unistd::chroot(dir).map_err(io::Error::from));
    attempt("use io_uring", call(libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0]));
    attempt("use bpf", call(libc::SYS_bpf, [0; 6]));
    attempt("use kernel keys", call(libc::SYS_keyctl, [0; 6]));
    attempt("open performance counters", call(libc::SYS_perf_event_open, [0; 6]));
    attempt("hang up the terminal", call(libc::SYS_vhangup, [0; 6]));
    attempts
}

#[test]
fn only_what_fetching_needs_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir(path("cache")).unwrap();
    fs::create_dir(path("certs")).unwrap();
    for file in ["token", "certs/ca.pem", "outside", "log", "cache/old"] {
        fs::write(path(file), if file == "log" { "" } else { "bytes" }).unwrap();
    }
    fs::copy("/bin/true", path("cache/program")).unwrap();
    symlink("../outside", path("cache/link")).unwrap();
    let _socket = UnixDatagram::bind(path("socket")).unwrap();
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listening.local_addr().unwrap().port();
    let Some(report) = run_inside("inside_fetching", dir.path(), port) else { return };
    let attempts: Vec<(&str, &str)> = report.lines().filter_map(|line| line.split_once(": ")).collect();
    let attempts: Vec<_> =
        attempts.into_iter().filter(|(name, _)| !["missing", "in force", "logged"].contains(name)).collect();
    assert!(attempts.len() > 60, "{report}");
    for (name, result) in attempts {
        let is_refused = ["EACCES", "EPERM", "ENOSYS", "EXDEV", "EAFNOSUPPORT"].contains(&result);
        assert!(if name.starts_with("may ") { result == "done" } else { is_refused }, "{name}: {result}");
    }
    // Looking for services of this machine, as libc does, is no reason for a message.
    let logged: Vec<&str> = report.lines().filter(|line| line.starts_with("logged: ")).collect();
    let said = |call: c_long| logged.iter().filter(|line| line.contains(&format!("system call {call} "))).count();
    assert_eq!([libc::SYS_ptrace, libc::SYS_socket, libc::SYS_openat].map(said), [1, 1, 0], "{logged:#?}");
    assert_eq!(fs::read(path("outside")).unwrap(), b"bytes");
    let left: Vec<_> = fs::read_dir(path("cache")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn only_what_the_daemon_needs_is_allowed() {
    check_serving("inside", &["open the device"]);
}

#[test]
fn only_what_the_http_server_needs_is_allowed() {
    check_serving("inside_listening", &["accept a connection", "make a socket pair"]);
}

/// Checks what a process in a sandbox for serving may do. `more` is what only this one may.
fn check_serving(test: &str, more: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("folder/deep")).unwrap();
    fs::create_dir(path("directory")).unwrap();
    symlink("directory", path("shard")).unwrap();
    for file in
        ["source", "other", "behind", "log", "secret", "directory/file", "folder/deep/file", "folder/deep/beside"]
    {
        fs::write(path(file), if file == "log" { "" } else { "bytes" }).unwrap();
    }
    symlink("behind", path("link")).unwrap();
    symlink("/etc/passwd", path("stray")).unwrap();
    symlink("/etc", path("folder/etc")).unwrap();
    fs::set_permissions(path("secret"), Permissions::from_mode(0o600)).unwrap();
    let _socket = UnixDatagram::bind(path("socket")).unwrap();
    let _listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let Some(report) = run_inside(test, dir.path(), 0) else { return };
    let mut allowed = vec![
        "read the source",
        "read behind a link",
        "read below the folder",
        "read an open file",
        "lower its priority",
        "read its limits",
        "name a thread",
        "write to the log",
        "use an open socket",
        "start a thread",
        "stat another file",
        "signal itself",
    ];
    allowed.extend(more);
    let unknown = ["start a process by clone3", "make an unlisted system call", "call through the x32 ABI"];
    let attempts: Vec<(&str, &str)> = report.lines().filter_map(|line| line.split_once(": ")).collect();
    let attempts: Vec<_> =
        attempts.into_iter().filter(|(name, _)| !["missing", "in force", "logged"].contains(name)).collect();
    let was_tried = |name: &&str| attempts.iter().any(|(tried, _)| tried == name);
    assert!(allowed.iter().chain(&unknown).all(was_tried) && attempts.len() > 85, "{report}");
    for (name, result) in attempts {
        let expected: &[&str] = match () {
            () if allowed.contains(&name) => &["done"],
            () if unknown.contains(&name) => &["ENOSYS"],
            // From Landlock; from seccomp because of the arguments, and for calls that are not on its list.
            () => &["EACCES", "EPERM", "ENOSYS"],
        };
        assert!(expected.contains(&result), "{name}: {result}");
    }
    // Each refused call is logged once, although it was made by two threads.
    let logged: Vec<&str> = report.lines().filter_map(|line| line.strip_prefix("logged: ")).collect();
    for (call, times) in [
        (libc::SYS_execve, 1),
        (libc::SYS_prlimit64, 1),
        (libc::SYS_personality, 1),
        (libc::SYS_getxattr, 1),
        (libc::SYS_shmctl, 1),
        (libc::SYS_openat, 0),
        (libc::SYS_tgkill, 1),
    ] {
        let said = format!("the sandbox refused system call {call} ({}): ", std::env::consts::ARCH);
        assert_eq!(logged.iter().filter(|line| line.starts_with(&said)).count(), times, "{said}: {logged:#?}");
    }
    assert_eq!(fs::read(path("source")).unwrap(), b"bytes");
    assert!(!path("new").exists() && !path("folder/new").exists());
}

/// The numbers of the system calls that the documentation names, on x86-64.
#[cfg(target_arch = "x86_64")]
fn call_number(name: &str) -> c_long {
    macro_rules! numbers {
        ($($number:ident)*) => { [$((stringify!($number), libc::$number)),*] };
    }
    let known = numbers!(
        SYS_accept SYS_accept4 SYS_access SYS_bind SYS_brk SYS_chdir SYS_clock_getres SYS_clock_gettime SYS_clock_nanosleep SYS_clone SYS_close SYS_close_range SYS_connect SYS_dup SYS_dup2 SYS_dup3 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait SYS_epoll_pwait2 SYS_epoll_wait SYS_eventfd2 SYS_exit SYS_exit_group SYS_faccessat SYS_faccessat2 SYS_fadvise64 SYS_fallocate SYS_fcntl SYS_fdatasync SYS_fgetxattr SYS_fstat SYS_fstatfs SYS_fsync SYS_ftruncate SYS_futex SYS_futex_waitv SYS_getcpu SYS_getcwd SYS_getdents64 SYS_getegid SYS_geteuid SYS_getgid SYS_getpeername SYS_getpid SYS_getppid SYS_getpriority SYS_getrandom SYS_getsockname SYS_getsockopt SYS_gettid SYS_gettimeofday SYS_getuid SYS_ioctl SYS_lseek SYS_lstat SYS_madvise SYS_membarrier SYS_memfd_create SYS_mincore SYS_mkdir SYS_mkdirat SYS_mmap SYS_mprotect SYS_mremap SYS_munmap SYS_name_to_handle_at SYS_nanosleep SYS_newfstatat SYS_open SYS_openat SYS_openat2 SYS_pause SYS_pipe SYS_pipe2 SYS_poll SYS_ppoll SYS_prctl SYS_pread64 SYS_preadv SYS_preadv2 SYS_prlimit64 SYS_pwrite64 SYS_pwritev SYS_read SYS_readahead SYS_readlink SYS_readlinkat SYS_readv SYS_recvfrom SYS_recvmmsg SYS_recvmsg SYS_rename SYS_renameat SYS_renameat2 SYS_restart_syscall SYS_rmdir SYS_rseq SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_rt_sigtimedwait SYS_sched_getaffinity SYS_sched_yield SYS_sendmmsg SYS_sendmsg SYS_sendto SYS_set_robust_list SYS_set_tid_address SYS_setpriority SYS_setsid SYS_setsockopt SYS_shutdown SYS_sigaltstack SYS_socket SYS_socketpair SYS_stat SYS_statfs SYS_statx SYS_sysinfo SYS_tgkill SYS_time SYS_uname SYS_unlink SYS_unlinkat SYS_utimensat SYS_write SYS_writev
    );
    let newer = [("SYS_cachestat", 451), ("SYS_futex_wake", 454), ("SYS_futex_wait", 455), ("SYS_futex_requeue", 456)];
    let found = known.iter().chain(&newer).find(|(known, _)| known.strip_prefix("SYS_") == Some(name));
    found.unwrap_or_else(|| panic!("{name}: no number")).1
}

/// The numbers that are passed to the kernel: those of Linux 6.18, and some beyond.
#[cfg(target_arch = "x86_64")]
const NUMBERS: std::ops::Range<c_long> = 0..480;

/// Calls that are not injected. The first end or suspend the caller whatever the arguments are; the next start
/// processes, and are refused without a message; the last two are for probes of the kernel, which sends SIGILL, and
/// pass all filters.
#[cfg(target_arch = "x86_64")]
const NOT_INJECTED: [c_long; 8] = [
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
    libc::SYS_pause,
    libc::SYS_clone,
    libc::SYS_clone3,
    335,
    336,
];

#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "run by another test in a separate process"]
fn inside_any() {
    let dir = PathBuf::from(std::env::var_os(DIR).unwrap());
    let task = match &*std::env::var(KIND).unwrap() {
        "mount" => SandboxTask::Mount,
        "serve" => SandboxTask::Http,
        _ => SandboxTask::Fetch,
    };
    let out = File::options().append(true).open(dir.join("log")).unwrap();
    let mut log = File::open(dir.join("log")).unwrap();
    log::set_boxed_logger(Box::new(ToLog(out.try_clone().unwrap()))).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let enforced = Sandbox::new(task, &[], None).enter();
    let is_refused = !enforced.missing.iter().any(|missing| missing.contains("seccomp"));
    for number in NUMBERS.filter(|number| !NOT_INJECTED.contains(number) && *number != libc::SYS_vhangup) {
        let _ = call(number, [-1; 6]);
    }
    // Messages are in the order of the calls.
    let _ = call(libc::SYS_vhangup, [-1; 6]);
    wait_for_log(&mut log, is_refused, libc::SYS_vhangup);
    (&out).write_all(report(&enforced, Attempts::new()).as_bytes()).unwrap();
    // Some calls have changed what the test harness needs.
    std::process::exit(0);
}

/// Passes every system call to the kernel, from each kind of process, and compares what was refused with the tables of
/// docs/reliability.md.
#[cfg(target_arch = "x86_64")]
#[test]
fn system_calls_are_those_that_the_documentation_lists() {
    let text = include_str!("../docs/reliability.md");
    let listed = |kind: &str, column: usize| -> Vec<c_long> {
        let rows = text
            .lines()
            .filter(|line| ["| all |".to_owned(), format!("| {kind} |")].iter().any(|row| line.starts_with(row)));
        let names = rows.flat_map(|row| row.split('|').nth(column).unwrap().split_whitespace());
        names.map(|name| call_number(name.trim_matches('`'))).collect()
    };
    for kind in ["mount", "serve", "fetch"] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("log"), "").unwrap();
        let Some(report) = run_inside_kind("inside_any", dir.path(), 0, kind) else { return };
        let is_logged = |number: c_long| report.contains(&format!("refused system call {number} "));
        let (free, restricted) = (listed(kind, 2), listed(kind, 3));
        assert!(free.len() > 60 && restricted.len() > 8, "{free:?} {restricted:?}");
        for number in NUMBERS.filter(|number| !NOT_INJECTED.contains(number)) {
            // One that is allowed with some arguments may be allowed with these.
            let expected = !free.contains(&number);
            assert!(is_logged(number) == expected || restricted.contains(&number), "{kind}: system call {number}");
        }
    }
}
