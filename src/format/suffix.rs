//! Suffixes of file names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A name without a suffix, which may be in upper case.
pub fn strip_suffix<'n>(name: &'n OsStr, suffix: &str) -> Option<&'n OsStr> {
    let (stem, end) = name.as_bytes().split_at_checked(name.len().checked_sub(suffix.len())?)?;
    end.eq_ignore_ascii_case(suffix.as_bytes()).then(|| OsStr::from_bytes(stem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_stripped_in_any_case() {
        let stem = |name: &'static str| strip_suffix(name.as_ref(), ".sft").map(|stem| stem.to_str().unwrap());
        assert_eq!((stem("a.sft"), stem("a.SfT"), stem(".sft")), (Some("a"), Some("a"), Some("")));
        assert_eq!((stem("a.safetensors"), stem("sft"), stem("")), (None, None, None));
    }
}
