//! Values of options.

use bytesize::ByteSize;
use jiff::{Span, Timestamp, tz::TimeZone};
use nix::unistd::{Group, User};
use std::ops::RangeInclusive;
use std::time::SystemTime;
use weightfs::view::{self, ShownViews};

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

/// The time that is as long ago as `text` says. Days have 24 hours.
pub(super) fn parse_age(text: &str) -> Result<SystemTime, String> {
    let span = text.parse::<Span>().ok().filter(|span| !span.is_negative());
    let then = span.and_then(|span| Timestamp::now().to_zoned(TimeZone::UTC).checked_sub(span).ok());
    then.map(|then| then.timestamp().into()).ok_or_else(|| "not an age such as 12h, 30d or 6 months".into())
}

/// The allowed alignments in bytes: from 8, which the official writer uses, to 64 MiB, more than a huge page of 2 MiB.
const ALIGN: RangeInclusive<u64> = 8..=1 << 26;

pub(super) fn parse_align(text: &str) -> Result<u64, String> {
    let align = text.parse().ok().filter(|align: &u64| align.is_power_of_two() && ALIGN.contains(align));
    align.ok_or_else(|| format!("not a power of two from {} to {}", ALIGN.start(), ALIGN.end()))
}

pub(super) fn views_help() -> String {
    let mut names = view::names();
    names.sort_unstable();
    format!("Show only these views: {} [default: all]", names.join(", "))
}

/// Parses view names, separated by commas, or by colons where a comma would end the option, as in
/// `-o views=tensors:tree`.
pub(super) fn parse_views(names: &str) -> Result<ShownViews, String> {
    view::shown_views(names.split([',', ':'])).map_err(|error| error.to_string())
}

pub(super) fn parse_umask(mask: &str) -> Result<u16, String> {
    u16::from_str_radix(mask, 8)
        .ok()
        .filter(|mask| *mask <= 0o777)
        .ok_or_else(|| "not an octal number up to 777".into())
}

pub(super) fn parse_user(user: &str) -> Result<u32, String> {
    let uid = user.parse().ok().filter(|uid| *uid != u32::MAX);
    uid.or_else(|| Some(User::from_name(user).ok()??.uid.as_raw())).ok_or_else(|| "no such user".into())
}

pub(super) fn parse_group(group: &str) -> Result<u32, String> {
    let gid = group.parse().ok().filter(|gid| *gid != u32::MAX);
    gid.or_else(|| Some(Group::from_name(group).ok()??.gid.as_raw())).ok_or_else(|| "no such group".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn ages_have_units() {
        let cases = [
            ("0s", 0),
            ("90 min", 5400),
            ("90m", 5400),
            ("12h", 43_200),
            ("30d", 30 * 86_400),
            ("2 weeks", 14 * 86_400),
            ("1d 1h", 90_000),
        ];
        for (text, seconds) in cases {
            let age = parse_age(text).unwrap().elapsed().unwrap();
            let expected = Duration::from_secs(seconds);
            assert!(age >= expected && age < expected + Duration::from_secs(3600), "{text}: {age:?}");
        }
        let year = parse_age("1y").unwrap().elapsed().unwrap().as_secs() / 86_400;
        assert!((365..=366).contains(&year), "{year} days");
        for text in ["", "30", "d", "-3d", "3 days ago", "3 apples", "99999999999 years"] {
            assert!(parse_age(text).is_err(), "{text}");
        }
    }
}
