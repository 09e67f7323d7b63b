//! Owner and permissions of files and directories, and the permissions that several of them have in common.

use rustix::fs::{AtFlags, StatxFlags, statx};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;
use xattr::FileExt;

/// The extended attribute with the access control list of a file or directory.
pub(super) const ACL: &str = "system.posix_acl_access";

/// Device and inode number of a file.
pub type FileId = (u64, u64);

/// The number of an open file or directory.
pub(super) fn id_of(file: &File) -> io::Result<FileId> {
    let metadata = file.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Identifies a directory. A number alone may later be that of another directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryVersion {
    pub id: FileId,
    owner: (u32, u32),
    mode: u32,
    /// When it was made, in seconds and nanoseconds since 1970. Zeros on file systems that do not know.
    born: (i64, u32),
}

impl DirectoryVersion {
    pub(super) fn of(dir: &File) -> io::Result<Self> {
        let found = statx(dir, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let born = (found.stx_btime.tv_sec, found.stx_btime.tv_nsec);
        let owner = (found.stx_uid, found.stx_gid);
        Ok(Self { id: id_of(dir)?, owner, mode: found.stx_mode.into(), born })
    }
}

/// Owner, permissions and times: the attributes that the files of a mount inherit from a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceStat {
    pub uid: u32,
    pub gid: u32,
    /// Permission bits, the lower twelve of `st_mode`.
    pub mode: u16,
    pub mtime: SystemTime,
    /// When the bytes or the attributes of a file of this machine were last changed, in seconds and nanoseconds since
    /// 1970; zeros for others. Unlike the modification time, no program can set it.
    pub ctime: (i64, i64),
}

impl SourceStat {
    /// The attributes of an open file or directory. If it has an access control list, the bits for the group and for
    /// others are what the list gives to all of them, so no user whom the list names gets more than the list says.
    pub fn of(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        Ok(Self::new(&metadata, file.get_xattr(ACL)))
    }

    pub(super) fn new(metadata: &Metadata, acl: io::Result<Option<Vec<u8>>>) -> Self {
        let mode = (metadata.mode() & 0o7777) as u16;
        let mode = match acl {
            Ok(None) => mode,
            Ok(Some(acl)) => narrow(mode, &acl).unwrap_or(mode & 0o700),
            // The file system has no access control lists.
            Err(error) if error.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => mode,
            // There may be a list that denies access to anyone but the owner.
            Err(_) => mode & 0o700,
        };
        Self {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode,
            mtime: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Owner and permissions that give every user at most what both give. The owner, the group and the time are those
    /// of `self`.
    ///
    /// If the owners or groups differ, it is unknown which users are in which group, so a permission remains only if
    /// the user has it in any case.
    pub fn and(self, other: Self) -> Self {
        let (same_owner, same_group) = (self.uid == other.uid, self.gid == other.gid);
        let [user, group, rest] = [6, 3, 0].map(|shift| other.mode >> shift & 0o7);
        // The rights that `other` gives to the owner of `self`, to its group, and to all others. The owner of `other`
        // may be among the last two.
        let to_user = if same_owner { user } else { group & rest };
        let owner = if same_owner { 0o7 } else { user };
        let to_group = owner & if same_group { group } else { group & rest };
        let to_rest = owner & if same_group { rest } else { group & rest };
        Self { mode: self.mode & (to_user << 6 | to_group << 3 | to_rest), ..self }
    }

    /// The permissions for what lies in this directory: everything for those who may search the directory, and nothing
    /// for others.
    pub fn search(self) -> Self {
        Self { mode: (self.mode & 0o111) * 0o7, ..self }
    }
}

/// `mode` with the bits for the group and for others replaced by those of the access control list `acl`: what all users
/// of the class have, whether they are named in the list or not. `None` if the list is malformed. Sources:
/// `include/uapi/linux/posix_acl_xattr.h` and acl(5).
fn narrow(mode: u16, acl: &[u8]) -> Option<u16> {
    const VERSION: u32 = 2;
    const USER_OBJ: u16 = 0x01;
    const USER: u16 = 0x02;
    const GROUP_OBJ: u16 = 0x04;
    const GROUP: u16 = 0x08;
    const MASK: u16 = 0x10;
    const OTHER: u16 = 0x20;
    let (version, entries) = acl.split_first_chunk()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let (mut group, mut rest, mut mask, mut named) = (mode >> 3 & 0o7, mode & 0o7, 0o7, None);
    for entry in entries.chunks_exact(8) {
        let (tag, perm) = (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]]) & 0o7);
        match tag {
            USER_OBJ => {}
            USER | GROUP => named = Some(named.unwrap_or(0o7) & perm),
            GROUP_OBJ => group = perm,
            MASK => mask = perm,
            OTHER => rest = perm,
            _ => return None,
        }
    }
    // The mask does not apply to the owner and to others.
    let named = named.map_or(0o7, |named| named & mask);
    Some(mode & 0o7700 | (group & mask & named) << 3 | rest & named)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(uid: u32, gid: u32, mode: u16) -> SourceStat {
        SourceStat { uid, gid, mode, mtime: SystemTime::UNIX_EPOCH, ctime: (0, 0) }
    }

    #[test]
    fn combined_permissions_grant_only_what_both_grant() {
        let grants = |stat: SourceStat, user: u32, groups: &[u32]| match () {
            () if stat.uid == user => stat.mode >> 6 & 0o4 != 0,
            () if groups.contains(&stat.gid) => stat.mode >> 3 & 0o4 != 0,
            () => stat.mode & 0o4 != 0,
        };
        // All read bits, for two owners and two groups.
        let modes = (0..8u16).map(|bits| (bits & 4) << 6 | (bits & 2) << 4 | (bits & 1) << 2);
        let owners = [(1, 1), (1, 2), (2, 1), (2, 2)];
        let stats: Vec<SourceStat> = modes.flat_map(|mode| owners.map(|(uid, gid)| stat(uid, gid, mode))).collect();
        for (a, b) in stats.iter().flat_map(|a| stats.iter().map(move |b| (*a, *b))) {
            for (user, groups) in
                [1, 2, 3].iter().flat_map(|user| [&[][..], &[1], &[2], &[1, 2]].map(|groups| (*user, groups)))
            {
                let (both, found) =
                    (grants(a, user, groups) && grants(b, user, groups), grants(a.and(b), user, groups));
                assert!(both || !found, "{a:?} {b:?} {user} {groups:?}");
                assert!(both == found || (a.uid, a.gid) != (b.uid, b.gid), "{a:?} {b:?} {user} {groups:?}");
            }
        }
        // Files of a user in directories of root.
        assert_eq!(stat(5, 5, 0o644).and(stat(0, 0, 0o755).search()).mode, 0o644);
        assert_eq!(stat(5, 5, 0o644).and(stat(0, 0, 0o744).search()).mode, 0);
        assert_eq!(stat(5, 5, 0o644).and(stat(5, 5, 0o700).search()).mode, 0o600);
    }

    #[test]
    fn access_control_list_is_reduced_to_what_all_users_of_a_class_have() {
        let acl = |entries: &[(u16, u16)]| {
            let entry =
                |(tag, perm): &(u16, u16)| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &[9, 0, 0, 0]].concat();
            [&2u32.to_le_bytes()[..], &entries.iter().flat_map(entry).collect::<Vec<u8>>()].concat()
        };
        for (mode, entries, expected) in [
            (0o644, &[(1, 6), (4, 4), (0x20, 4)][..], 0o644),
            // The bits of the group are those of the mask.
            (0o640, &[(1, 6), (2, 4), (4, 0), (0x10, 4), (0x20, 0)], 0o600),
            (0o664, &[(1, 6), (2, 6), (4, 4), (0x10, 6), (0x20, 4)], 0o644),
            (0o644, &[(1, 6), (2, 0), (4, 4), (0x10, 4), (0x20, 4)], 0o600),
            (0o644, &[(1, 6), (4, 4), (8, 0), (0x10, 4), (0x20, 4)], 0o600),
            (0o604, &[(1, 6), (2, 4), (4, 4), (0x10, 0), (0x20, 4)], 0o600),
            (0o604, &[(1, 6), (4, 4), (0x10, 0), (0x20, 4)], 0o604),
        ] {
            assert_eq!(narrow(mode, &acl(entries)), Some(expected), "{mode:o} {entries:?}");
        }
        for malformed in [&[][..], &[1, 0, 0, 0], &[2, 0, 0, 0, 1], &[2, 0, 0, 0, 99, 0, 0, 0, 0, 0, 0, 0]] {
            assert_eq!(narrow(0o644, malformed), None);
        }
    }
}
