//! weightfs mounts model weights as a read-only file system. No API promise: the library serves the binary.
//!
//! # The life of a read
//! 1. `fuse::FuseAdapter::read` takes the request off /dev/fuse and asks
//! 2. [`fs::Superblock::read`], which knows from the inode number which model is meant (`fs/volume.rs`) and which view of which
//!    tensor, has [`view::Views::content`] say what that file consists of, and reads it with
//! 3. [`content::Content::read_at`], which finds the segment that holds the range and takes from
//! 4. [`source::Source::bytes`] the slice of the map, which goes back up untouched and into the reply.
//!
//! # The layers
//! Each knows only those below it: `fuse -> fs -> view -> model -> format`, with `content -> source` underneath; beside
//! stand `name` and `natural`, the spelling and the order of names, `widen`, elements as float32, `stats` and `plot`, values in
//! figures and pictures, `workers` and `reader`, for answers that take long, `sandbox`, what the daemon gives up before it
//! serves, `inspect`, what the commands that do not mount have to say of a model, `compare`, two tensors side by side, and
//! `write`, files on a disk. Two ideas carry them: every format lowers once to one [`format::Header`], and every file is a
//! [`content::Content`], a splice of segments. A test, `tests/layers.rs`, holds the
//! code to this.

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
pub mod reader;
pub mod source;
pub mod stats;
pub mod text;
pub mod threads;
pub mod view;
pub mod widen;
pub mod write;
