//! Target `protocol`: packets of the process that fetches remote files, and of the process that reads them, give a
//! message or an error. A message that was decoded is decoded to the same one after it was encoded, and its paths,
//! sizes and ranges are safe to use.

use serde::{Serialize, de::DeserializeOwned};
use std::ops::Range;
use weightfs::remote::protocol::{WireReply, WireRequest, decode_message, encode_message};

pub fn run(bytes: &[u8]) -> bool {
    let (request, reply) = (message::<WireRequest>(bytes), message::<WireReply>(bytes));
    match &request {
        Some(WireRequest::Open { path, .. }) => check_path(path),
        Some(WireRequest::Need { range, within, .. }) => [range, within].into_iter().for_each(check_range),
        Some(WireRequest::Touched { within, .. }) => check_range(within),
        _ => {}
    }
    match &reply {
        Some(WireReply::Tree { about, .. }) => check_path(&about.path),
        Some(WireReply::Entries { entries, .. }) => {
            // Each entry has at least two bytes.
            assert!(entries.len() <= bytes.len() / 2);
            for (path, len) in entries {
                assert!(!path.is_empty());
                check_path(path);
                check_size(*len);
            }
        }
        Some(WireReply::File { len, .. }) => check_size(*len),
        _ => {}
    }
    request.is_some() || reply.is_some()
}

fn message<M: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(packet: &[u8]) -> Option<M> {
    let message = decode_message::<M>(packet).ok()?;
    let again = encode_message(&message).unwrap();
    // A number can also be written with more bytes than it needs.
    assert!(again.len() <= packet.len());
    assert_eq!(decode_message::<M>(&again).unwrap(), message);
    Some(message)
}

/// The path stays below the directory to which it is joined.
fn check_path(path: &str) {
    let is_safe = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(char::is_control);
    assert!(path.len() <= 4096 && (path.is_empty() || path.split('/').all(is_safe)), "{path:?}");
}

fn check_size(len: u64) {
    assert!(i64::try_from(len).is_ok());
}

fn check_range(range: &Range<u64>) {
    assert!(range.start <= range.end);
}
