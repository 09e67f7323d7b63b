//! weightfs mounts model weights as a read-only file system. The library serves the binary and makes no API promise.
//!
//! # The life of a read
//! 1. `fuse::adapter` takes the request from /dev/fuse. It first tries to answer without waiting, and otherwise on a
//!    worker.
//! 2. [`fs::Superblock::open`] decodes the inode number and returns the [`content::Content`] of the file.
//! 3. [`content::Content::read`] finds the segment that holds the range.
//! 4. [`source::Source::bytes`] returns a slice of the file's map, which goes into the reply untouched.
//!
//! # The layers
//! - [`source`] opens files; [`content`] splices parts of them into files.
//! - [`codec`] converts numbers; [`format`](mod@format) parses headers. Every format is lowered to one
//!   [`format::Header`].
//! - [`model`] is the table of the tensors of one or many files, and finds the models in a directory.
//! - [`view`] is the table of the kinds of files in a mount, with [`stats`] and [`plot`] behind two of them.
//! - [`fs`] arranges them as directories with inode numbers; [`fuse`] connects that to the kernel.
//! - Commands that do not mount use [`inspect`], [`compare`] and [`write`](mod@write).
//! - Everything may use [`text`], [`name`], [`natural`] and [`threads`].
//!
//! `tests/layers.rs` holds the code to these layers.

pub mod codec;
pub mod compare;
pub mod content;
pub mod format;
pub mod fs;
pub mod fuse;
pub mod inspect;
pub mod model;
pub mod name;
pub mod natural;
pub mod plot;
pub mod source;
pub mod stats;
pub mod text;
pub mod threads;
pub mod view;
pub mod write;
