use proptest::prelude::*;

use super::*;

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.insert(reqwest::header::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    headers
}

fn run(status: u16, fields: &[(&str, &str)], range: Range<u64>, len: Option<u64>) -> Result<ResponsePart, ErrorKind> {
    let pinned = VersionValidator { etag: Some("\"v1\"".into()), ..VersionValidator::default() };
    let validator = len.is_some().then_some(pinned);
    check_range(StatusCode::from_u16(status).unwrap(), &headers(fields), &WantedRange { range, len, validator })
        .map_err(|error| error.kind)
}

#[test]
fn answers_to_a_pinned_range_are_checked() {
    let good = [("content-range", "bytes 10-19/100"), ("content-length", "10"), ("etag", "\"v1\"")];
    assert_eq!(run(206, &good, 10..20, Some(100)), Ok(ResponsePart { range: 10..20, len: Some(100) }));
    let short = [("content-range", "bytes 10-14/100"), ("content-length", "5"), ("etag", "\"v1\"")];
    assert_eq!(run(206, &short, 10..20, Some(100)), Ok(ResponsePart { range: 10..15, len: Some(100) }));
    let change = |name: &str, value: Option<&'static str>| {
        let mut fields: Vec<_> = good.into_iter().filter(|(field, _)| *field != name).collect();
        fields.extend(value.map(|value| (Box::leak(name.to_string().into_boxed_str()) as &str, value)));
        run(206, &fields, 10..20, Some(100))
    };
    let rows = [
        ("content-range", None, Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes 10-18/100"), Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes 0-19/100"), Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes 11-19/100"), Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes 10-9/100"), Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes 10-20/100"), Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes 10-19/101"), Err(ErrorKind::Changed)),
        ("content-range", Some("bytes 10-19/15"), Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes 10-18446744073709551615/*"), Err(ErrorKind::Protocol)),
        ("content-range", Some("items 10-19/100"), Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes */100"), Err(ErrorKind::Protocol)),
        ("content-range", Some("bytes 10-19/*"), Ok(())),
        ("content-length", Some("9"), Err(ErrorKind::Protocol)),
        ("content-length", Some("+10"), Err(ErrorKind::Protocol)),
        ("content-length", None, Ok(())),
        ("etag", Some("\"v2\""), Err(ErrorKind::Changed)),
        ("etag", Some("W/\"v1\""), Err(ErrorKind::Changed)),
        ("etag", None, Err(ErrorKind::Protocol)),
        ("content-encoding", Some("gzip"), Err(ErrorKind::NoRanges)),
        ("content-encoding", Some("identity"), Ok(())),
        ("content-type", Some("multipart/byteranges; boundary=x"), Err(ErrorKind::Protocol)),
    ];
    for (name, value, expected) in rows {
        assert_eq!(change(name, value).map(|_| ()), expected, "{name}: {value:?}");
    }
}

#[test]
fn statuses_have_their_kinds() {
    let rows = [
        (200, ErrorKind::NoRanges),
        (401, ErrorKind::Forbidden),
        (403, ErrorKind::Forbidden),
        (404, ErrorKind::Missing),
        (410, ErrorKind::Missing),
        (412, ErrorKind::Changed),
        (416, ErrorKind::Protocol),
        (429, ErrorKind::Transient { retry_after: None }),
        (500, ErrorKind::Transient { retry_after: None }),
        (503, ErrorKind::Transient { retry_after: None }),
        (501, ErrorKind::Protocol),
        (204, ErrorKind::Protocol),
        (304, ErrorKind::Protocol),
        (400, ErrorKind::Protocol),
    ];
    for (status, kind) in rows {
        assert_eq!(run(status, &[], 10..20, Some(100)), Err(kind), "{status}");
    }
    assert_eq!(run(416, &[("content-range", "bytes */50")], 10..20, Some(100)), Err(ErrorKind::Changed));
    assert_eq!(run(416, &[("content-range", "bytes */100")], 10..20, Some(100)), Err(ErrorKind::Protocol));
}

#[test]
fn the_first_request_learns_the_length() {
    let first = |status, fields: &[(&str, &str)]| run(status, fields, 0..64, None);
    assert_eq!(first(206, &[("content-range", "bytes 0-63/100")]), Ok(ResponsePart { range: 0..64, len: Some(100) }));
    assert_eq!(first(206, &[("content-range", "bytes 0-9/10")]), Ok(ResponsePart { range: 0..10, len: Some(10) }));
    assert_eq!(first(206, &[("content-range", "bytes 0-63/*")]), Err(ErrorKind::Protocol));
    assert_eq!(first(206, &[("content-range", "bytes 0-9/100")]), Ok(ResponsePart { range: 0..10, len: Some(100) }));
    assert_eq!(first(416, &[("content-range", "bytes */0")]), Ok(ResponsePart { range: 0..0, len: Some(0) }));
    assert_eq!(first(416, &[("content-range", "bytes */5")]), Err(ErrorKind::Protocol));
    assert_eq!(first(200, &[("content-length", "64")]), Ok(ResponsePart { range: 0..64, len: Some(64) }));
    assert_eq!(first(200, &[("content-length", "65")]), Err(ErrorKind::NoRanges));
    assert_eq!(first(200, &[]), Ok(ResponsePart { range: 0..64, len: None }));
    assert_eq!(first(200, &[("content-encoding", "gzip")]), Err(ErrorKind::NoRanges));
}

proptest! {
    #[test]
    fn an_accepted_part_is_a_start_of_what_was_asked_for(
        content_range in "bytes [0-9]{1,3}-[0-9]{1,3}/([0-9]{1,3}|\\*)",
        start in 0u64..50, size in 1u64..50, len in proptest::option::of(1u64..120),
    ) {
        let wanted = WantedRange { range: start..start + size, len, validator: None };
        if let Ok(part) = check_range(StatusCode::PARTIAL_CONTENT, &headers(&[("content-range", &content_range)]), &wanted) {
            let total = part.len.unwrap();
            prop_assert!(len.is_none_or(|len| len == total));
            prop_assert_eq!(part.range.start, start);
            prop_assert!(!part.range.is_empty() && part.range.end <= (start + size).min(total));
        }
    }

    #[test]
    fn parsing_never_panics(text in "\\PC{0,40}") {
        let _ = parse_content_range(&text);
    }
}

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
        (503, &[("retry-after", "Mon, 07 Nov 1994 00:00:10 GMT"), ("date", "Mon, 07 Nov 1994 00:00:00 GMT")], Some(10)),
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
