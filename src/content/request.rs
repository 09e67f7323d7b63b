//! The limits of an operation, the resources that it waits for, and why it fails.

use crate::source::{self, Source};
use std::fmt;
use std::ops::Range;

/// The resource that an operation waits for. It decides when and on which thread the operation continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitFor {
    pub need: WaitResource,
    /// Identifies the result. One of the operations with the same key makes it, and the others wait for that. `None` if
    /// no other operation can use the result.
    pub key: Option<ResultId>,
}

/// A resource for which operations wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitResource {
    /// A device or a file system, by its number (`st_dev`).
    Device(u64),
    /// A core, for a computation.
    Cores {
        /// Number of bytes that are processed: the expected cost.
        bytes: u64,
        /// The device that holds these bytes, if they are read from a source.
        device: Option<u64>,
    },
}

/// Maximum number of operations that wait for a device at a time: enough requests in flight for an NVMe disk or a
/// network file system. More for remote files, because their requests take longer.
pub fn running_max(device: u64) -> usize {
    if source::is_tree(device) { 64 } else { 16 }
}

/// Identifies a result that several operations may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ResultId {
    /// The number of the model in the mount, or of the folder.
    pub model: u32,
    /// The view, or one of the constants.
    pub kind: u8,
    /// The number of the result.
    pub item: u32,
}

impl ResultId {
    /// The header of a model.
    pub const MODEL: u8 = u8::MAX;
    /// The headers of all models in a folder that are on one device.
    pub const FOLDER: u8 = u8::MAX - 1;
    /// The tables of a model.
    pub const TABLES: u8 = u8::MAX - 2;
    /// The parts of a pipeline that are on one device.
    pub const PARTS: u8 = u8::MAX - 3;
}

/// The limits of an operation: whether it may wait, and whether it was cancelled.
#[derive(Clone, Copy)]
pub struct ReadRequest<'r> {
    may: MayWait,
    is_cancelled: Option<&'r (dyn Fn() -> bool + Sync)>,
}

/// The resources that a request may wait for.
#[derive(Debug, Clone, Copy)]
enum MayWait {
    Nothing,
    Only(WaitFor),
    Everything,
}

impl<'r> ReadRequest<'r> {
    /// Fails with [`Error::WouldBlock`] instead of waiting.
    pub const NOWAIT: Self = Self { may: MayWait::Nothing, is_cancelled: None };

    /// Waits without a time limit.
    pub const WAIT: Self = Self { may: MayWait::Everything, ..Self::NOWAIT };

    /// Waits for one thing, and fails with [`Error::WouldBlock`] instead of waiting for something else.
    pub fn only(wait: WaitFor) -> Self {
        Self { may: MayWait::Only(wait), ..Self::NOWAIT }
    }

    /// The same request, which fails as soon as `is_cancelled` returns true. `is_cancelled` is called often and must be
    /// fast.
    pub fn cancelled_by(self, is_cancelled: &'r (dyn Fn() -> bool + Sync)) -> Self {
        Self { is_cancelled: Some(is_cancelled), ..self }
    }

    /// Fails unless the operation may wait for this.
    pub fn wait(&self, wait: WaitFor) -> Result<(), Error> {
        match self.may {
            MayWait::Everything => Ok(()),
            MayWait::Only(only) if only.need == wait.need && wait.key.is_none() => Ok(()),
            MayWait::Only(only) if only.key.is_some() && only.key == wait.key => Ok(()),
            MayWait::Only(_) | MayWait::Nothing => Err(Error::WouldBlock(wait)),
        }
    }

    /// Fails if the operation should end now. Long operations call this regularly.
    pub fn check(&self) -> Result<(), Error> {
        match self.is_cancelled.is_some_and(|is_cancelled| is_cancelled()) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// Waits until `range` of `source` can be read without waiting, or the operation should end.
    pub(super) fn prepare(&self, source: &dyn Source, range: Range<u64>) -> Result<(), Error> {
        let prepared = source.prepare(range, &|| self.check().is_err());
        self.check()?;
        Ok(prepared?)
    }
}

impl fmt::Debug for ReadRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadRequest {{ may: {:?} }}", self.may)
    }
}

/// Why the content of a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Source(#[from] source::Error),
    /// The content is not available without waiting, and the request does not allow waiting.
    #[error("not available without waiting")]
    WouldBlock(WaitFor),
    #[error("out of memory")]
    NoMemory,
    #[error("interrupted")]
    Interrupted,
    /// The content cannot be computed from the data.
    #[error("{0}")]
    Compute(String),
}

/// Reserves capacity for a total of `len` bytes. Fails if there is not enough memory.
pub fn reserve(bytes: &mut Vec<u8>, len: usize) -> Result<(), Error> {
    bytes.try_reserve_exact(len.saturating_sub(bytes.len())).map_err(|_| Error::NoMemory)
}

/// `len` zeros. Fails if there is not enough memory.
pub fn zeroed(len: usize) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    reserve(&mut bytes, len)?;
    bytes.resize(len, 0);
    Ok(bytes)
}
