//! How long a server asks to wait: `Retry-After`, and the rate limit headers of the Hub. Pure.

use std::time::{Duration, SystemTime};

use jiff::{Timestamp, fmt::rfc2822};
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

/// Maximum wait. If the server asks for a longer one, it is shortened to this.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the server asks to wait. On status 429, `RateLimit: "resolvers";r=0;t=55` of the Hub means that the next
/// window starts after 55 seconds; it counts only when nothing remains of the current one.
pub(super) fn wanted_wait(status: u16, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if status == 429
        && let Some(limit) = text("ratelimit")
    {
        let field = |name: &str| {
            limit
                .split(';')
                .find_map(|part| part.trim().strip_prefix(name)?.trim().strip_prefix('=')?.trim().parse().ok())
        };
        if let (Some(0u64), Some(seconds)) = (field("r"), field("t")) {
            return Some(Duration::from_secs(u64::saturating_add(seconds, 1)).min(LONGEST));
        }
    }
    let value = text(RETRY_AFTER.as_str())?;
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(value.parse().map_or(LONGEST, Duration::from_secs).min(LONGEST));
    }
    let date = http_date(value)?;
    // The server's own clock is the one that the date is on.
    let now = text(DATE.as_str()).and_then(http_date).unwrap_or(now);
    Some(date.duration_since(now).unwrap_or(Duration::ZERO).min(LONGEST))
}

/// A date of HTTP, `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(text: &str) -> Option<SystemTime> {
    let timestamp: Timestamp = rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(timestamp.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_from_all_forms() {
        let now = http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        type Row<'a> = (u16, &'a [(&'a str, &'a str)], Option<u64>);
        let rows: [Row<'_>; 12] = [
            (503, &[], None),
            (503, &[("retry-after", "7")], Some(7)),
            (503, &[("retry-after", "-7")], None),
            (503, &[("retry-after", "99999999999999999999999")], Some(24 * 60 * 60)),
            (503, &[("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")], Some(30)),
            (503, &[("retry-after", "Sun, 06 Nov 1994 08:40:00 GMT")], Some(0)),
            (
                503,
                &[("retry-after", "Mon, 07 Nov 1994 00:00:10 GMT"), ("date", "Mon, 07 Nov 1994 00:00:00 GMT")],
                Some(10),
            ),
            (503, &[("retry-after", "soon")], None),
            (429, &[("ratelimit", "\"resolvers\";r=0;t=55"), ("retry-after", "7")], Some(56)),
            (429, &[("ratelimit", "\"resolvers\";r=3;t=55"), ("retry-after", "7")], Some(7)),
            (429, &[("ratelimit", "\"api\"; r = 0 ; t = 18446744073709551615")], Some(24 * 60 * 60)),
            (503, &[("ratelimit", "\"api\";r=0;t=55")], None),
        ];
        for (status, fields, expected) in rows {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.insert(*name, value.parse().unwrap());
            }
            assert_eq!(wanted_wait(status, &headers, now), expected.map(Duration::from_secs), "{fields:?}");
        }
    }
}
