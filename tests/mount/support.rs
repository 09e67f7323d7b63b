//! Helpers of the mount tests: models to mount, and mounts that are removed when the test ends.

use nix::unistd::Pid;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The program under test.
pub const WEIGHTFS: &str = env!("CARGO_BIN_EXE_weightfs");

/// Skips the test with a message if this process cannot mount. With `REQUIRE_FUSE=1`, the test fails instead.
macro_rules! require_fuse {
    () => {
        if crate::support::is_skipped(crate::support::no_fuse()) {
            return;
        }
    };
}
pub(crate) use require_fuse;

/// Skips the test with a message if this process cannot mount, or is not root: the test makes namespaces or other file
/// systems, or acts as several users. With `REQUIRE_FUSE=1`, the test fails instead.
macro_rules! require_root {
    () => {
        if crate::support::is_skipped(crate::support::not_root().or_else(crate::support::no_fuse)) {
            return;
        }
    };
}
pub(crate) use require_root;

/// Why this process is not permitted what only root is.
pub fn not_root() -> Option<String> {
    (!nix::unistd::geteuid().is_root()).then(|| "not root".to_owned())
}

/// Why this process cannot mount, if it cannot: it needs /dev/fuse, and users other than root need fusermount3.
pub fn no_fuse() -> Option<String> {
    if let Err(error) = File::options().read(true).write(true).open("/dev/fuse") {
        return Some(format!("/dev/fuse: {error}"));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_here = std::env::split_paths(&path).any(|dir| dir.join("fusermount3").exists());
    (not_root().is_some() && !is_here).then(|| "neither root nor fusermount3 is here".to_owned())
}

/// Whether there is a reason to skip the test, which is printed.
pub fn is_skipped(reason: Option<String>) -> bool {
    let Some(reason) = reason else { return false };
    assert!(std::env::var_os("REQUIRE_FUSE").is_none_or(|value| value != "1"), "REQUIRE_FUSE=1, but {reason}");
    // Written directly, because the test harness hides what `eprintln!` prints in a passing test.
    // In one piece, because other tests write too.
    let line = format!("{}: skipped: {reason}\n", std::thread::current().name().unwrap_or_default());
    let _ = std::io::stderr().write_all(line.as_bytes());
    true
}

/// A temporary directory for one test, with models and mount points. On drop, its mounts are detached, and the
/// processes that [`Scene::command`] started are killed with their descendants.
pub struct Scene {
    pub dir: TempDir,
}

/// Shell commands that print the path, inode, mode, links, size, modification time and SHA-256 of everything in a
/// scene, except sizes and times of directories.
pub const STATE: &str = r"
    find . -path ./bin -prune -o -printf '%p %i %m %n ' \( -type d -printf '\n' -o -printf '%s %T@\n' \) | sort
    find . -path ./bin -prune -o -type f -exec sha256sum {} + | sort
";

/// The environment variable that marks the processes of a scene. Background daemons inherit it.
const MARK: &str = "WEIGHTFS_TEST_SCENE";

/// A tensor to write: name, dtype, shape, bytes.
pub type Tensor<'a> = (&'a str, Dtype, &'a [usize], Vec<u8>);

impl Scene {
    pub fn new() -> Self {
        let scene = Self { dir: TempDir::new().unwrap() };
        // Other users must be able to run the program, wherever it was built.
        let program = scene.mkdir("bin").join("weightfs");
        if std::fs::hard_link(WEIGHTFS, &program).is_err() {
            // A process of its own writes the copy: a process that another test forks meanwhile would inherit our
            // descriptor, and a program that is open for writing cannot be executed.
            run_ok("cp", [Path::new(WEIGHTFS), &program]);
        }
        std::os::unix::fs::symlink("weightfs", scene.path("bin/mount.weightfs")).unwrap();
        scene
    }

    /// A command that runs in the scene's directory, with `weightfs` in `PATH`, the ids of the scene's daemons in
    /// `DAEMON`, caches of its own, and without the proxies and credentials of whoever runs the tests.
    pub fn command(&self, program: &str) -> Command {
        // Tests that a script runs in the background ignore SIGINT, and their children would inherit that.
        let mut command = Command::new("env");
        let path = [self.path("bin").into_os_string(), std::env::var_os("PATH").unwrap_or_default()].join(":".as_ref());
        let daemons: Vec<_> = self.daemons().iter().map(Pid::to_string).collect();
        command.arg("--default-signal=HUP,INT,TERM").arg(program).current_dir(self.dir.path());
        for (name, _) in std::env::vars_os() {
            if is_personal(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
        command.env(MARK, self.dir.path()).env("PATH", path).env("LC_ALL", "C").env("DAEMON", daemons.join(" "));
        command.env("XDG_CACHE_HOME", self.path("bin/cache"));
        command.stdin(Stdio::null());
        command
    }

    /// Runs a line of shell to its end. If that takes more than four minutes, the processes of the scene are killed.
    pub fn sh(&self, line: &str) -> Said {
        self.say(self.command("sh").args(["-c", line]))
    }

    /// Runs a command of this scene to its end, as [`Scene::sh`].
    fn say(&self, command: &mut Command) -> Said {
        let (ended, end) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                if end.recv_timeout(Duration::from_secs(240)) == Err(RecvTimeoutError::Timeout) {
                    self.kill();
                }
            });
            // Dropped at the end, also on a panic.
            let _ended = ended;
            Said::of(command)
        })
    }

    /// Kills the processes of this scene.
    fn kill(&self) {
        for pid in self.processes() {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }

    /// Runs a line of shell that must succeed with an empty standard error, and returns its standard output.
    pub fn ok(&self, line: &str) -> String {
        self.sh(line).ok(line)
    }

    /// The running processes of this scene.
    pub fn processes(&self) -> Vec<Pid> {
        let mark = format!("{MARK}={}", self.dir.path().display());
        let marked = |pid: &Pid| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        };
        let entries = std::fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).map(Pid::from_raw);
        pids.filter(marked).collect()
    }

    /// The processes of this scene that serve a mount.
    pub fn daemons(&self) -> Vec<Pid> {
        self.named("weightfs")
    }

    /// The helper processes of this scene that unmount for a daemon.
    pub fn unmounters(&self) -> Vec<Pid> {
        self.named("weightfs-umount")
    }

    /// The processes of this scene that fetch remote files.
    #[cfg(feature = "remote")]
    pub fn fetchers(&self) -> Vec<Pid> {
        self.named("weightfs-fetch")
    }

    fn named(&self, name: &str) -> Vec<Pid> {
        let comm = |pid: &Pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.processes().into_iter().filter(|pid| comm(pid).trim_end() == name).collect()
    }

    /// The lines of /proc/mounts whose mount points are in this scene.
    pub fn mounts(&self) -> Vec<String> {
        mounts_in(self.dir.path(), "self")
    }

    /// Waits until every process of the scene has ended. A daemon ends shortly after its mount.
    pub fn wait_for_end(&self) {
        wait_until("every process has ended", || self.processes().is_empty());
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Creates a directory.
    pub fn mkdir(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir(&path).unwrap();
        path
    }

    /// Writes a file with the official crate.
    pub fn model(&self, name: &str, tensors: &[Tensor], metadata: &[(&str, &str)]) -> PathBuf {
        let path = self.path(name);
        let views = tensors
            .iter()
            .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
        let metadata: HashMap<_, _> =
            metadata.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        safetensors::serialize_to_file(views, (!metadata.is_empty()).then_some(metadata), &path).unwrap();
        path
    }

    /// Writes a file from a header and data, which need not be valid.
    pub fn raw(&self, name: &str, header: &[u8], data: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header, data].concat()).unwrap();
        path
    }

    /// Writes a small model with dtypes, shapes and names of many kinds.
    pub fn sample(&self) -> PathBuf {
        let big = pattern(3 << 20);
        self.model(
            "sample.safetensors",
            &[
                ("model.embed.weight", Dtype::F32, &[768, 1024], big),
                ("model.layers.2.w", Dtype::BF16, &[3, 5], pattern(30)),
                ("model.layers.10.w", Dtype::BF16, &[3, 5], pattern(30)),
                ("model.layers.10", Dtype::U8, &[7], pattern(7)),
                ("slash/and%percent", Dtype::F8_E4M3, &[2, 2], pattern(4)),
                ("..", Dtype::BOOL, &[1], vec![1]),
                ("", Dtype::I64, &[], pattern(8)),
                ("empty", Dtype::F16, &[0, 3], vec![]),
            ],
            &[("format", "pt"), ("a/key", "line\nline\0"), ("empty", "")],
        )
    }

    /// Mounts `source` on a new directory `mntN`, served in the foreground by a child process.
    pub fn mount(&self, source: &Path, args: &[&str]) -> Mount {
        Mount::new(source, &self.mount_point(), args)
    }

    /// Creates a directory `mntN`.
    pub fn mount_point(&self) -> PathBuf {
        let mut number = 0;
        loop {
            let point = self.path(format!("mnt{number}"));
            match std::fs::create_dir(&point) {
                Ok(()) => return point,
                Err(_) => number += 1,
            }
        }
    }
}

/// Whether an environment variable is a proxy, or is for the Hub or an object store.
fn is_personal(name: &str) -> bool {
    const PREFIXES: [&str; 7] = ["AWS_", "AZURE_", "CLOUDSDK_", "GOOGLE_", "HF_", "HUGGING_FACE_", "STORAGE_EMULATOR_"];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || name.to_ascii_lowercase().ends_with("_proxy")
        || ["NETRC", "TRANSFORMERS_OFFLINE"].contains(&name)
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.kill();
        for line in self.mounts().iter().rev() {
            let point = line.split(' ').nth(1).unwrap_or_default();
            detach(Path::new(&point.replace(r"\040", " ")));
        }
        // Where there is no syslog, a daemon leaves its messages in a file, whose first line names the mount point.
        let files = std::fs::read_dir("/run/weightfs").into_iter().flatten();
        for file in files.filter_map(|entry| Some(entry.ok()?.path())) {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            if text.lines().next().is_some_and(|line| line.contains(&*self.dir.path().to_string_lossy())) {
                let _ = std::fs::remove_file(file);
            }
        }
    }
}

/// Standard output, standard error and exit code of a command.
#[derive(Debug, PartialEq, Eq)]
pub struct Said {
    /// The exit code, or the negated number of the signal that ended the command.
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(command: &mut Command) -> Self {
        let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().or(output.status.signal().map(|signal| -signal)).unwrap();
        Self { code, out: text(output.stdout), err: text(output.stderr) }
    }

    /// Standard output of a command that must succeed with an empty standard error.
    pub fn ok(self, line: &str) -> String {
        assert!(self.code == 0 && self.err.is_empty(), "{line}: {self:?}");
        self.out
    }
}

/// A separate mount namespace, whose mounts are invisible outside of it. It ends with its last process.
pub struct Namespace<'s> {
    scene: &'s Scene,
    holder: Child,
}

impl<'s> Namespace<'s> {
    /// Creates a namespace and runs the script `setup` in it.
    pub fn new(scene: &'s Scene, setup: &str) -> Self {
        // The process ends when its standard input is closed, so it ends even if the test is killed.
        let dir = scene.dir.path();
        let leave = detach_others(dir);
        let script = format!("{leave}\ncd '{}'\n{setup}\necho ready\nread end || true", dir.display());
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-ec", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let namespace = Self { scene, holder };
        assert_eq!(line, "ready\n", "{setup}");
        namespace
    }

    /// A command that runs a line of shell in the namespace. If the line ends in `exec PROGRAM`, the child process
    /// becomes that program.
    pub fn command(&self, line: &str) -> Command {
        let line = format!("cd '{}' && {line}", self.scene.dir.path().display());
        let mut command = self.scene.command("nsenter");
        command.args(["--mount", "--target", &self.holder.id().to_string(), "sh", "-c", &line]);
        command
    }

    /// As [`Scene::sh`].
    pub fn sh(&self, line: &str) -> Said {
        self.scene.say(&mut self.command(line))
    }

    /// As [`Scene::ok`].
    pub fn ok(&self, line: &str) -> String {
        self.sh(line).ok(line)
    }

    /// As [`Scene::mounts`].
    pub fn mounts(&self) -> Vec<String> {
        mounts_in(self.scene.dir.path(), &self.holder.id().to_string())
    }
}

impl Drop for Namespace<'_> {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Lines of shell that detach the mounts of other scenes, for a new mount namespace. It begins with copies of all
/// mounts, which would keep the file systems of other tests in use, also after those have unmounted them.
pub fn detach_others(dir: &Path) -> String {
    // The mount points in the list are escaped as printf understands it. A daemon may not answer, so nothing but umount
    // may look at them. A test that ends removes its directory, and the kernel then detaches the copies of its mounts
    // here too.
    format!(
        r#"tac /proc/self/mounts | while read -r source point rest; do
            case $point in
                '{dir}' | '{dir}'/*) ;;
                '{all}'/*)
                    umount --no-canonicalize --lazy "$(printf %b "$point")" ||
                        ! grep --quiet --fixed-strings " $point " /proc/self/mounts ;;
            esac
        done"#,
        dir = dir.display(),
        all = std::env::temp_dir().display(),
    )
}

/// The lines of `/proc/PROCESS/mounts` whose mount points are in `dir`.
fn mounts_in(dir: &Path, process: &str) -> Vec<String> {
    let list = std::fs::read_to_string(format!("/proc/{process}/mounts")).unwrap();
    let inside = |line: &&str| line.split(' ').nth(1).is_some_and(|point| Path::new(point).starts_with(dir));
    list.lines().filter(inside).map(str::to_owned).collect()
}

/// Waits until `done` returns true. Panics after 60 seconds.
pub fn wait_until(condition: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "timed out waiting until {condition}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The files below a directory, by their paths in it; symlinks are followed.
pub fn files_below(dir: &Path) -> BTreeMap<String, PathBuf> {
    let (mut found, mut dirs) = (BTreeMap::new(), vec![dir.to_owned()]);
    while let Some(next) = dirs.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => dirs.push(path),
                false => {
                    let name = path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned();
                    assert!(found.insert(name, path).is_none());
                }
            }
        }
    }
    found
}

/// Bytes in an irregular pattern, so that a read at a wrong offset is detected.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// A mount served in the foreground by a child process. On drop, it is detached and the process is killed.
pub struct Mount {
    pub point: PathBuf,
    pub child: Child,
    log: PathBuf,
}

impl Mount {
    pub fn new(source: &Path, point: &Path, args: &[&str]) -> Self {
        Self::start(Command::new(WEIGHTFS).arg("-f").args(args).arg(source), point)
    }

    /// Starts a command that mounts something in the foreground. `point` becomes its last argument.
    pub fn start(command: &mut Command, point: &Path) -> Self {
        let log = point.with_extension("log");
        command.arg(point).stdout(Stdio::piped()).stderr(File::create(&log).unwrap());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let mount = Self { point: point.to_owned(), child, log };
        assert!(line.contains(" is mounted on "), "{line:?} {}", mount.log());
        mount
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    pub fn read(&self, name: impl AsRef<Path>) -> Vec<u8> {
        let path = self.path(name);
        std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The file names in a directory, in the order of readdir.
    pub fn list(&self, name: impl AsRef<Path>) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// What the daemon has written to standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        detach(&self.point);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Detaches every mount on `point`.
pub fn detach(point: &Path) {
    match not_root() {
        None => while nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH).is_ok() {},
        // It fails when nothing is mounted there any more.
        Some(_) => while run("fusermount3", ["-uzq".as_ref(), point.as_os_str()]).status.success() {},
    }
}

/// The processor time that a process has used.
pub fn processor_time(pid: impl std::fmt::Display) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    // The fields after the name of the program begin with the state. These two are in clock ticks, of which Linux shows
    // 100 in a second.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<u64>().unwrap();
    Duration::from_millis((ticks(11) + ticks(12)) * 10)
}

/// Waits until no thread of a process runs and its processor time stays the same. On a busy machine, a thread that has
/// work to do waits for a core, which counts as running.
pub fn wait_until_idle(pid: impl std::fmt::Display) {
    // The state of each thread, and its processor time in clock ticks in user mode and in the kernel.
    let threads = || -> Vec<(String, String, String)> {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).ok();
        let field = |stat: String| {
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
            (fields[0].to_owned(), fields[11].to_owned(), fields[12].to_owned())
        };
        tasks.filter_map(|task| Some(field(stat(task.unwrap())?))).collect()
    };
    wait_until("a process has nothing to do", || {
        let before = threads();
        std::thread::sleep(Duration::from_millis(300));
        before == threads() && before.iter().all(|(state, ..)| state == "S")
    });
}

/// A mount that a background process serves. On drop, it is detached, and that process ends by itself.
pub struct Detached(pub PathBuf);

impl Drop for Detached {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

/// A number in `/proc/PROCESS/status`. Sizes of memory are in kB of 1,024 bytes.
pub fn status(pid: impl std::fmt::Display, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.split_whitespace().next()).unwrap().parse().unwrap()
}

/// The number of cores that this process, and a daemon that it starts, may use.
pub fn cores() -> u64 {
    std::thread::available_parallelism().unwrap().get() as u64
}

/// The maximum number of threads of a daemon: those that serve, those of the scheduler, and for each core a thread that
/// computes and up to three that pause.
pub fn threads_max() -> u64 {
    24 + 4 * cores()
}

/// Runs a command to its end.
pub fn run<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs a command that must succeed, and returns what it printed.
pub fn run_ok<S: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = S>) -> String {
    let output = run(program, args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{program}: {} {}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// Returns a path that scripts/test creates. Panics if it does not exist.
pub fn installed(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing: run scripts/test, which installs it", path.display());
    path
}

/// The Python that scripts/test sets up, or the one that `WEIGHTFS_PYTHON` names.
pub fn python() -> PathBuf {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
    installed(std::env::var_os("WEIGHTFS_PYTHON").map_or_else(default, PathBuf::from))
}

/// One of the real models that scripts/test fetches.
pub fn real_model(name: &str) -> PathBuf {
    real_file(&format!("{name}.safetensors"))
}

/// A file or directory among the real models that scripts/test fetches.
pub fn real_file(name: &str) -> PathBuf {
    installed(Path::new(env!("CARGO_MANIFEST_DIR")).join(".cache/models").join(name))
}
