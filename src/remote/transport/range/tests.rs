use proptest::prelude::*;

use super::*;

fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.insert(reqwest::header::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    headers
}

fn run(status: u16, fields: &[(&str, &str)], range: Range<u64>, len: Option<u64>) -> Result<Part, Kind> {
    let pinned = Validator { etag: Some("\"v1\"".into()), ..Validator::default() };
    let validator = len.is_some().then_some(&pinned);
    check(StatusCode::from_u16(status).unwrap(), &headers(fields), &Wanted { range, len, validator })
        .map_err(|error| error.kind())
}

#[test]
fn answers_to_a_pinned_range_are_checked() {
    let good = [("content-range", "bytes 10-19/100"), ("content-length", "10"), ("etag", "\"v1\"")];
    assert_eq!(run(206, &good, 10..20, Some(100)), Ok(Part { range: 10..20, len: Some(100) }));
    let change = |name: &str, value: Option<&'static str>| {
        let mut fields: Vec<_> = good.into_iter().filter(|(field, _)| *field != name).collect();
        fields.extend(value.map(|value| (Box::leak(name.to_string().into_boxed_str()) as &str, value)));
        run(206, &fields, 10..20, Some(100))
    };
    let rows = [
        ("content-range", None, Err(Kind::Protocol)),
        ("content-range", Some("bytes 10-18/100"), Err(Kind::Protocol)),
        ("content-range", Some("bytes 0-19/100"), Err(Kind::Protocol)),
        ("content-range", Some("bytes 10-20/100"), Err(Kind::Protocol)),
        ("content-range", Some("bytes 10-19/101"), Err(Kind::Changed)),
        ("content-range", Some("bytes 10-19/15"), Err(Kind::Protocol)),
        ("content-range", Some("bytes 10-18446744073709551615/*"), Err(Kind::Protocol)),
        ("content-range", Some("items 10-19/100"), Err(Kind::Protocol)),
        ("content-range", Some("bytes */100"), Err(Kind::Protocol)),
        ("content-range", Some("bytes 10-19/*"), Ok(())),
        ("content-length", Some("9"), Err(Kind::Protocol)),
        ("content-length", Some("+10"), Err(Kind::Protocol)),
        ("content-length", None, Ok(())),
        ("etag", Some("\"v2\""), Err(Kind::Changed)),
        ("etag", Some("W/\"v1\""), Err(Kind::Changed)),
        ("etag", None, Err(Kind::Protocol)),
        ("content-encoding", Some("gzip"), Err(Kind::NoRanges)),
        ("content-encoding", Some("identity"), Ok(())),
        ("content-type", Some("multipart/byteranges; boundary=x"), Err(Kind::Protocol)),
    ];
    for (name, value, expected) in rows {
        assert_eq!(change(name, value).map(|_| ()), expected, "{name}: {value:?}");
    }
}

#[test]
fn statuses_have_their_kinds() {
    let rows = [
        (200, Kind::NoRanges),
        (401, Kind::Forbidden),
        (403, Kind::Forbidden),
        (404, Kind::Missing),
        (410, Kind::Missing),
        (412, Kind::Changed),
        (416, Kind::Protocol),
        (429, Kind::Transient { retry_after: None }),
        (500, Kind::Transient { retry_after: None }),
        (503, Kind::Transient { retry_after: None }),
        (501, Kind::Protocol),
        (204, Kind::Protocol),
        (304, Kind::Protocol),
        (400, Kind::Protocol),
    ];
    for (status, kind) in rows {
        assert_eq!(run(status, &[], 10..20, Some(100)), Err(kind), "{status}");
    }
    assert_eq!(run(416, &[("content-range", "bytes */50")], 10..20, Some(100)), Err(Kind::Changed));
    assert_eq!(run(416, &[("content-range", "bytes */100")], 10..20, Some(100)), Err(Kind::Protocol));
}

#[test]
fn the_first_request_learns_the_length() {
    let first = |status, fields: &[(&str, &str)]| run(status, fields, 0..64, None);
    assert_eq!(first(206, &[("content-range", "bytes 0-63/100")]), Ok(Part { range: 0..64, len: Some(100) }));
    assert_eq!(first(206, &[("content-range", "bytes 0-9/10")]), Ok(Part { range: 0..10, len: Some(10) }));
    assert_eq!(first(206, &[("content-range", "bytes 0-63/*")]), Err(Kind::Protocol));
    assert_eq!(first(206, &[("content-range", "bytes 0-9/100")]), Err(Kind::Protocol));
    assert_eq!(first(416, &[("content-range", "bytes */0")]), Ok(Part { range: 0..0, len: Some(0) }));
    assert_eq!(first(416, &[("content-range", "bytes */5")]), Err(Kind::Protocol));
    assert_eq!(first(200, &[("content-length", "64")]), Ok(Part { range: 0..64, len: Some(64) }));
    assert_eq!(first(200, &[("content-length", "65")]), Err(Kind::NoRanges));
    assert_eq!(first(200, &[]), Ok(Part { range: 0..64, len: None }));
    assert_eq!(first(200, &[("content-encoding", "gzip")]), Err(Kind::NoRanges));
}

proptest! {
    #[test]
    fn an_accepted_part_is_what_was_asked_for(
        content_range in "bytes [0-9]{1,3}-[0-9]{1,3}/([0-9]{1,3}|\\*)",
        start in 0u64..50, size in 1u64..50, len in proptest::option::of(1u64..120),
    ) {
        let wanted = Wanted { range: start..start + size, len, validator: None };
        if let Ok(part) = check(StatusCode::PARTIAL_CONTENT, &headers(&[("content-range", &content_range)]), &wanted) {
            let total = part.len.unwrap();
            prop_assert!(len.is_none_or(|len| len == total));
            prop_assert_eq!(part.range, start..(start + size).min(total));
        }
    }

    #[test]
    fn parsing_never_panics(text in "\\PC{0,40}") {
        let _ = parse_content_range(&text);
    }
}
