//! Resource limits of the process.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use weightfs::source::{limit_maps, limit_open_files};

/// Raises the soft limit of open files to the hard limit, and sets the number of open source files to match. The usual
/// soft limit of 1,024 exists for programs that use select(2).
pub fn raise_open_files() {
    /// Descriptors for /dev/fuse in each thread, the log, and files that are read while others are closed.
    const RESERVE: u64 = 48;
    /// Each file also has a map, and a process can have 65,530 maps by default (`vm.max_map_count`).
    const MOST: u64 = 16_384;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let limit = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(soft, |()| hard);
        limit_open_files(limit.saturating_sub(RESERVE).clamp(4, MOST) as usize);
    }
}

/// Lets maps of files take half of the address space and of the number of maps that this process may have. Threads and
/// memory need the rest.
pub fn limit_address_space() {
    const DEFAULT_MAPS: usize = 65_530;
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    let maps: usize = text.trim().parse().unwrap_or(DEFAULT_MAPS);
    let bytes = getrlimit(Resource::RLIMIT_AS).map_or(u64::MAX, |(soft, _)| soft);
    limit_maps(maps / 2, bytes / 2);
}
