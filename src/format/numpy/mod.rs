//! NumPy array files, of one array (`.npy`) or of several in a zip archive (`.npz`).
//!
//! An array is a magic number, a version, the length of the header, the header (a Python dict as text), and
//! the elements. Sources: NumPy Enhancement Proposal 1 and `numpy/lib/format.py`. Arrays of Python objects are refused,
//! because they are pickles.

mod array;
mod descr;
mod literal;
mod npy;
mod npz;

pub use descr::{element_size, is_own};
pub use npy::{is_npy, lint_npy, parse_npy};
pub use npz::{is_npz, lint_npz, parse_npz};

/// Name of the format of a file of one array, in headers and messages.
pub const NPY: &str = "npy";

/// Name of the format of an archive of arrays, in headers and messages.
pub const NPZ: &str = "npz";

/// Follows the name of an array in the name of its entry in an archive.
const SUFFIX: &str = ".npy";

const MAGIC: &[u8] = b"\x93NUMPY";

/// Maximum size of the header of an array in bytes. NumPy itself reads at most 10,000 bytes unless it is told to trust
/// the file.
pub const MAX_HEADER: u64 = 1 << 20;

/// Maximum size of an element in bytes, if elements or their bytes are not in C order.
const ELEMENT_MAX: u64 = 64 << 10;

/// The name of an array that has none: the one that `numpy.savez` gives to its first array without a name.
pub const UNNAMED: &str = "arr_0";
