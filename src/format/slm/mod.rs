//! SLM1, the format of TinyRustLM (`.slm`).
//!
//! A file is a header, a tokenizer, a directory of tensors, and their data, all in little-endian order. The directory
//! has hashes of names, so names are found by hashing the names of the documented architecture. Sources: the
//! documentation on mirust.com, "SLM fixed header layout", "Tensor directory and alignment", "Tensor naming and shape
//! contracts", "BTOK byte tokenizer", "BPE1 tokenizer", "Q8 row scales and Q4 block scales". No file or program is
//! public, so everything here follows from these texts. The constants of the checksum are not published: it is reported
//! as unverified.

mod lint;
mod names;
mod reader;
mod tokenizer;

pub use lint::lint_slm;
pub use names::hash;
pub use reader::{is_slm, parse_slm};

pub const NAME: &str = "slm1";

const MAGIC: &[u8] = b"SLM1";

/// Size of the fixed fields of the header, in bytes. A header may be longer.
const HEADER: u64 = 108;

/// Size of an entry of the directory, in bytes.
const ENTRY: u64 = 64;

/// The data begins at a multiple of this number of bytes.
const ALIGNMENT: u64 = 64;

/// The tokenizer and the directory must end before this offset. The format has no such limit.
const MAX_HEADER: u64 = 128 << 20;

/// Follows the name of a quantized tensor in the name of its scales, which the file does not name.
pub const SCALES: &str = ".slm_scale";

const CHECKSUM_KEY: &str = "slm.checksum";

const UNVERIFIED: &str = "unverified: its constants are not published";
