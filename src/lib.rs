//! weightfs mounts model weights as a read-only file system. The library exists for the binary; its API is not stable.
//!
//! # How a read is served
//! 1. `fuse::adapter` receives the request from /dev/fuse and makes a `ReadOperation` of it, which
//!    `fs::serve_request` runs on the same thread.
//! 2. [`fs::MountedTree`] finds the tree that the inode number belongs to: a tree can be replaced while it is mounted.
//!    [`fs::Superblock::open`] decodes the number and returns the [`content::Content`] of the file, which borrows
//!    nothing from the tree.
//! 3. [`content::Content::plan`] finds the segment that holds the range, and the stored bytes that it needs. The
//!    operation keeps this plan, so that all of this happens once; what depends on values in memory is found again.
//! 4. [`content::ReadPlan::read`] returns the bytes. If they may have to come from a device or have to be computed, it
//!    returns without them. The operation is then parked with the scheduler, and a worker calls `ReadPlan::read` a
//!    second time, which may now wait.
//! 5. [`source::Source::bytes`] returns a slice of the memory map, which is passed to the kernel as it is. Small reads
//!    are copied into a buffer instead, between two `fstat` calls that detect a change of the file; so are files that
//!    are not mapped, and reads that wait for a device.
//! 6. After the reply, `Bytes::verify` detects whether the file was changed or cut while the kernel copied the slice.
//!    If so, the kernel is told to drop the pages that it has cached.
//!
//! # The layers
//! - [`source`] opens files; [`content`] joins parts of them into the files of a mount.
//! - [`codec`] converts numbers; [`format`](mod@format) parses headers. Every format is lowered to one
//!   [`format::Header`].
//! - [`model`] is the table of the tensors of one or more files, which `model::assemble` makes in one of several ways,
//!   and finds the models in a directory.
//! - [`view`] defines the kinds of files in a mount; [`stats`] and [`plot`] compute the contents of two of them.
//! - [`fs`] arranges them as directories with inode numbers; [`fuse`] connects that to the kernel, and `serve` to HTTP
//!   clients.
//! - [`schedule`] continues operations that have to wait for a device or a computation.
//! - Commands that do not mount use [`inspect`], [`compare`] and [`write`](mod@write).
//! - [`references`] writes where the bytes of tensors lie in the files, for readers of Zarr arrays.
//! - [`remote`] makes sources of files on servers: local files that are filled when they are read.
//! - Everything may use [`text`], [`name`], [`natural`], [`kept`], [`parts`], [`rules`], [`threads`] and [`units`].
//!
//! `tests/layers.rs` checks that the code keeps to these layers.

pub mod codec;
pub mod compare;
pub mod content;
pub mod format;
pub mod fs;
pub mod fuse;
pub mod inspect;
pub mod kept;
pub mod model;
pub mod name;
pub mod natural;
pub mod parts;
pub mod plot;
pub mod references;
#[cfg(feature = "remote")]
pub mod remote;
pub mod rules;
pub mod schedule;
#[cfg(feature = "serve")]
pub mod serve;
pub mod source;
pub mod stats;
pub mod text;
pub mod threads;
pub mod units;
pub mod view;
pub mod write;
