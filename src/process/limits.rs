//! Resource limits of the process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::fs::read_to_string;
use std::path::Path;
use weightfs::source::{limit_fetched_files, limit_maps, limit_open_files};

/// Raises the soft limit of open files to the hard limit, and sets the number of open source files to match. The usual
/// soft limit of 1,024 exists for programs that use select(2).
pub fn raise_open_files() {
    /// Descriptors for /dev/fuse in each thread, the log, and files that are read while others are closed.
    const RESERVE: u64 = 48;
    /// Each file also has a map, and a process can have 65,530 maps by default (`vm.max_map_count`).
    const MOST: u64 = 16_384;
    /// An open remote file takes two descriptors, and seven in the process that fetches it, which has the same limit.
    /// Half as many more files may be opened before they are read. The rest is for sockets and for files that both
    /// processes open for a short time.
    const OF_REMOTE: u64 = 16;
    /// An open remote file has three maps.
    const REMOTE_MOST: u64 = 8_192;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let limit = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(soft, |()| hard);
        limit_open_files(limit.saturating_sub(RESERVE).clamp(4, MOST) as usize);
        limit_fetched_files((limit / OF_REMOTE).clamp(4, REMOTE_MOST) as usize);
    }
}

/// Lets maps of files take half of the address space and of the number of maps. Threads and memory need the rest.
pub fn limit_address_space() {
    const DEFAULT_MAPS: usize = 65_530;
    let text = read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let maps: usize = text.trim().parse().unwrap_or(DEFAULT_MAPS);
    let bytes = getrlimit(Resource::RLIMIT_AS).map_or(u64::MAX, |(soft, _)| soft);
    limit_maps(maps / 2, bytes / 2);
}

/// Limits the number of arenas of glibc. By default, up to eight threads per core have one, and each takes 64 MiB of
/// address space, which RLIMIT_AS counts. Two are enough, because serving reads allocates little memory.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallopt takes no pointers.
        #[allow(unsafe_code)]
        let _ = unsafe { nix::libc::mallopt(nix::libc::M_ARENA_MAX, 2) };
    }
}

/// The memory that this process may use, in bytes: the least of RLIMIT_AS, RLIMIT_DATA and the limits of its control
/// group and of those above it. `None` if there is no limit.
pub fn memory() -> Option<u64> {
    /// Larger values mean that there is no limit: RLIM_INFINITY, and the default of control groups of version 1.
    const UNLIMITED: u64 = 1 << 60;
    let resources = [Resource::RLIMIT_AS, Resource::RLIMIT_DATA].map(|resource| Some(getrlimit(resource).ok()?.0));
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = groups.lines().flat_map(|line| group_limits(line, Path::new("/sys/fs/cgroup")));
    resources.into_iter().flatten().chain(groups).filter(|limit| *limit < UNLIMITED).min()
}

/// The memory limits of a line of /proc/self/cgroup, `NUMBER:CONTROLLERS:PATH`. Control groups are mounted at `root`.
fn group_limits(line: &str, root: &Path) -> Vec<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return Vec::new() };
    let (root, file) = match controllers {
        "" => (root.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), "memory.limit_in_bytes"),
        _ => return Vec::new(),
    };
    let group = Path::new(path.trim_start_matches('/'));
    let limits = group.ancestors().map(|group| read_to_string(root.join(group).join(file)).unwrap_or_default());
    limits.filter_map(|limit| limit.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_all_groups_above_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            std::fs::create_dir_all(dir.path().join(path).parent().unwrap()).unwrap();
            std::fs::write(dir.path().join(path), text).unwrap();
        };
        write("a/b/memory.max", "max\n");
        write("a/memory.max", "268435456\n");
        write("memory/x/memory.limit_in_bytes", "1000\n");
        assert_eq!(group_limits("0::/a/b", dir.path()), [268_435_456]);
        assert_eq!(group_limits("4:cpu,memory:/x", dir.path()), [1000]);
        assert_eq!(group_limits("3:cpu:/x", dir.path()), [0; 0]);
        assert_eq!(group_limits("", dir.path()), [0; 0]);
    }
}
