//! Values of options: whole numbers and sizes.

use bytesize::ByteSize;
use std::ops::RangeInclusive;

/// Parses a whole number in `range`.
pub(super) fn parse_number<T: TryFrom<u64>>(range: RangeInclusive<u64>) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("not a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Parses a number of bytes, such as 4096 or 1MiB.
pub(super) fn parse_bytes(text: &str) -> Result<ByteSize, String> {
    // The error of the library names its own types.
    text.parse().map_err(|_| "not a number of bytes such as 4096, 500MB or 1MiB".into())
}

/// Parses a size, such as 50GB.
pub(super) fn parse_size(text: &str) -> Result<ByteSize, String> {
    match text.parse() {
        Ok(ByteSize(0)) => Err("must be more than 0 bytes".into()),
        Ok(size) => Ok(size),
        // The error of the library names its own types.
        Err(_) => Err("not a size such as 500MB, 50GB or 1TiB".into()),
    }
}
