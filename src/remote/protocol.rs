//! The messages between a process that reads sources and its process that fetches them.
//!
//! Each message is one packet of a sequenced packet socket, encoded by postcard. Descriptors travel beside the message
//! that announces them. Neither side trusts the other: a packet that is not a message ends the connection. The types of
//! the fields check what does not depend on earlier messages: paths, sizes and ranges.
//!
//! Decoding takes memory in proportion to the packet, and at most 1 MiB for a list before its items are there: postcard
//! and serde bound both. Therefore no message has a list whose items can be empty.

use super::location::check_path;
use super::planner::PlannerLimits;
use crate::source::FetchFailure;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::time::Duration;

/// The version of the messages. Both processes run the same program, so a difference means that the program file
/// was replaced in between.
pub const VERSION: u32 = 2;

/// Maximum size of a packet in bytes. Longer lists are sent in parts.
pub const PACKET_MAX: usize = 64 << 10;

/// Maximum number of bytes that are fetched from the start of a file when it is opened. Most headers are shorter.
pub const HEAD: u64 = 512 << 10;

const DESCRIPTORS_MAX: usize = 4;

/// The messages of the reading process. `id` identifies the reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireRequest {
    /// The first message.
    Start(FetchOptions),
    /// Finds out what is at a URL, in its current version. The other process may know secrets that belong into the URL.
    Resolve { id: u64, url: String },
    /// Opens a file of a tree: when it was open before, in the same version. The reply comes when its first `head`
    /// bytes are present.
    Open {
        id: u64,
        tree: u32,
        #[serde(deserialize_with = "wire_path")]
        path: String,
        head: u64,
    },
    /// Makes a range of an object present. Read-ahead may add bytes of `within` after it, usually those of a tensor. If
    /// `within` is empty, the range is fetched by as few requests as possible, and nothing after it.
    Need {
        id: u64,
        object: u32,
        #[serde(deserialize_with = "wire_range")]
        range: Range<u64>,
        #[serde(deserialize_with = "wire_range")]
        within: Range<u64>,
    },
    /// A reader has read a range with a block at which read-ahead is to be extended.
    Touched {
        object: u32,
        #[serde(deserialize_with = "wire_range")]
        range: Range<u64>,
        #[serde(deserialize_with = "wire_range")]
        within: Range<u64>,
    },
    /// Nobody waits for the reply to a request any more.
    Cancel { id: u64 },
    /// An object is not read any more.
    Close { object: u32 },
    /// Asks for [`WireReply::Sealed`]. From then on, the fetching process resolves no URL, and opens only files of
    /// its listings.
    Seal,
}

impl WireRequest {
    pub(super) fn with_url(self, change: fn(String) -> String) -> Self {
        match self {
            Self::Resolve { id, url } => Self::Resolve { id, url: change(url) },
            other => other,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchOptions {
    /// [`VERSION`].
    pub version: u32,
    /// Whether only what was fetched before may be used.
    pub offline: bool,
    /// After this time without success a read fails, in milliseconds.
    pub timeout: Option<u64>,
    pub cache_size: Option<u64>,
    /// The file with a bearer token.
    pub token_file: Option<String>,
    /// Hosts inside of this network to which public servers may redirect.
    pub redirects_to: Vec<String>,
    /// Whether the process enters no sandbox.
    pub no_sandbox: bool,
}

impl FetchOptions {
    /// After this time without success a read fails.
    pub fn timeout(&self) -> Duration {
        self.timeout.map_or(PlannerLimits::default().timeout, Duration::from_millis)
    }
}

/// The messages of the process that fetches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireReply {
    /// The files at a URL. `entries` entries follow.
    Tree { id: u64, tree: u32, about: WireAbout, entries: u64 },
    /// Some files of the tree that was sent for a request: their paths and sizes in bytes.
    Entries {
        id: u64,
        #[serde(deserialize_with = "wire_entries")]
        entries: Vec<(String, u64)>,
    },
    /// An open file, with its data beside it. A file without a number has all of its bytes on this machine. Otherwise,
    /// the map of present blocks, the marks of readers and the lock are beside it too.
    File {
        id: u64,
        object: Option<u32>,
        #[serde(deserialize_with = "message_size")]
        len: u64,
        attributes: WireAttributes,
    },
    /// The range is present.
    Ready { id: u64 },
    /// A request has failed.
    Failed { id: u64, failure: FetchFailure },
    /// A message for the log.
    Log { level: u8, text: String },
    /// The counts of bytes and requests so far.
    Counts(FetchCounts),
    /// The answer to [`WireRequest::Seal`]. The receiver may stop receiving after it.
    Sealed,
}

/// The counts of what was fetched since the process was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchCounts {
    pub requests: u64,
    /// Bytes of files that were received.
    pub bytes: u64,
    /// The time in which at least one transfer was running, in milliseconds.
    pub busy: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireAbout {
    /// The URL of the tree without secrets.
    pub url: String,
    /// The path in the tree that the URL leads to; empty for the tree itself.
    #[serde(deserialize_with = "wire_path")]
    pub path: String,
    pub is_listed: bool,
    pub attributes: WireAttributes,
}

/// The attributes of a file besides its size, or of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireAttributes {
    /// Whether everyone can fetch it, without credentials.
    pub is_public: bool,
    /// When it was last modified, in seconds since 1970.
    pub mtime: i64,
    /// Identifies the version of a file, if every change of it is noticed; `None` for a tree.
    pub version: Option<[u8; 16]>,
}

/// The end is not before the start.
fn wire_range<'de, D: Deserializer<'de>>(from: D) -> Result<Range<u64>, D::Error> {
    let range = Range::deserialize(from)?;
    if range.start <= range.end { Ok(range) } else { Err(D::Error::custom("a range that ends before it starts")) }
}

fn wire_path<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let path = String::deserialize(from)?;
    check_path(&path).map_err(D::Error::custom)?;
    Ok(path)
}

/// Sizes of files fit into `off_t`.
fn message_size<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let size = u64::deserialize(from)?;
    if i64::try_from(size).is_ok() { Ok(size) } else { Err(D::Error::custom("a size that no file has")) }
}

fn wire_entries<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, u64)>, D::Error> {
    #[derive(Deserialize)]
    struct Entry(#[serde(deserialize_with = "wire_path")] String, #[serde(deserialize_with = "message_size")] u64);

    let entries: Vec<Entry> = Vec::deserialize(from)?;
    if entries.iter().any(|entry| entry.0.is_empty()) {
        return Err(D::Error::custom("a file without a path"));
    }
    Ok(entries.into_iter().map(|Entry(path, len)| (path, len)).collect())
}

#[derive(Debug)]
pub struct WireChannel(OwnedFd);

impl WireChannel {
    pub fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    /// Sends a message and descriptors. Waits while the other side is slow to receive.
    pub fn send(&self, message: &impl Serialize, descriptors: &[BorrowedFd]) -> io::Result<()> {
        let packet = encode_message(message)?;
        if descriptors.len() > DESCRIPTORS_MAX {
            return Err(io::Error::new(ErrorKind::InvalidInput, "too many descriptors"));
        }
        // The sandbox of a reader does not allow sendmsg(2), which could name another receiver.
        let sent = match descriptors {
            [] => retry_on_intr(|| send(&self.0, &packet, SendFlags::NOSIGNAL)),
            _ => retry_on_intr(|| self.send_with(&packet, descriptors)),
        };
        Ok(sent.map(drop)?)
    }

    /// Sends a message, unless the other side is so slow to receive that this would wait. Returns whether it was sent.
    pub fn try_send(&self, message: &impl Serialize) -> io::Result<bool> {
        let packet = encode_message(message)?;
        match retry_on_intr(|| send(&self.0, &packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)) {
            Err(Errno::AGAIN) => Ok(false),
            sent => Ok(sent.map(|_| true)?),
        }
    }

    fn send_with(&self, packet: &[u8], descriptors: &[BorrowedFd]) -> rustix::io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(Errno::INVAL);
        }
        sendmsg(&self.0, &[IoSlice::new(packet)], &mut ancillary, SendFlags::NOSIGNAL)
    }

    /// Waits for a message. `None` if the other side has closed the connection.
    pub fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
        let mut packet = vec![0; PACKET_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        });
        let received = match received {
            // The other process has ended before it had read all messages.
            Err(Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        let mut descriptors = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                descriptors.extend(received);
            }
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(ErrorKind::InvalidData, format!("a packet of more than {PACKET_MAX} bytes")));
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        Ok(Some((decode_message(&packet[..received.bytes])?, descriptors)))
    }
}

impl From<OwnedFd> for WireChannel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for WireChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub fn encode_message(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let packet = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if packet.len() > PACKET_MAX {
        return Err(io::Error::new(ErrorKind::InvalidInput, format!("a message of more than {PACKET_MAX} bytes")));
    }
    Ok(packet)
}

/// The message in a packet, which must have no bytes after it.
pub fn decode_message<M: DeserializeOwned>(packet: &[u8]) -> io::Result<M> {
    match postcard::take_from_bytes(packet) {
        Ok((message, [])) => Ok(message),
        _ => Err(io::Error::new(ErrorKind::InvalidData, "a packet that is not a message")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::File;
    use std::io::{Read, Write};

    fn any_request() -> impl Strategy<Value = WireRequest> {
        let range = || {
            let ends = (any::<u64>(), any::<u64>());
            ends.prop_map(|(one, other)| one.min(other)..one.max(other))
        };
        let path = || prop::collection::vec("[^/\\.\\p{Cc}]{1,8}", 0..4).prop_map(|parts| parts.join("/"));
        prop_oneof![
            (any::<u64>(), ".*").prop_map(|(id, url)| WireRequest::Resolve { id, url }),
            (any::<u64>(), any::<u32>(), path(), any::<u64>()).prop_map(|(id, tree, path, head)| WireRequest::Open {
                id,
                tree,
                path,
                head
            }),
            (any::<u64>(), any::<u32>(), range(), range()).prop_map(|(id, object, range, within)| WireRequest::Need {
                id,
                object,
                range,
                within
            }),
            (any::<u32>(), range(), range()).prop_map(|(object, range, within)| WireRequest::Touched {
                object,
                range,
                within
            }),
            any::<u64>().prop_map(|id| WireRequest::Cancel { id }),
        ]
    }

    proptest! {
        #[test]
        fn messages_arrive_as_they_were_sent(requests in prop::collection::vec(any_request(), 1..20)) {
            let (a, b) = WireChannel::pair().unwrap();
            for request in &requests {
                a.send(request, &[]).unwrap();
                let (received, descriptors) = b.receive::<WireRequest>().unwrap().unwrap();
                prop_assert_eq!((&received, descriptors.len()), (request, 0));
            }
            drop(a);
            prop_assert!(b.receive::<WireRequest>().unwrap().is_none());
        }

        #[test]
        fn random_bytes_give_an_error_or_a_message(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_message::<WireRequest>(&bytes);
            let _ = decode_message::<WireReply>(&bytes);
        }
    }

    #[test]
    fn descriptors_travel_with_their_message() {
        let (a, b) = WireChannel::pair().unwrap();
        let (mut reader, mut writer) = io::pipe().unwrap();
        a.send(
            &WireReply::File { id: 1, object: Some(2), len: 3, attributes: WireAttributes::default() },
            &[writer.as_fd()],
        )
        .unwrap();
        writer.write_all(b"one").unwrap();
        drop(writer);
        let (_, mut descriptors) = b.receive::<WireReply>().unwrap().unwrap();
        let mut other = File::from(descriptors.pop().unwrap());
        other.write_all(b"two").unwrap();
        drop(other);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "onetwo");
    }

    #[test]
    fn end_of_the_other_side_is_no_error_if_it_has_unread_messages() {
        let (a, b) = WireChannel::pair().unwrap();
        b.send(&WireRequest::Cancel { id: 5 }, &[]).unwrap();
        drop(a);
        assert!(b.receive::<WireReply>().unwrap().is_none());
    }

    #[test]
    fn packets_that_are_no_messages_are_errors() {
        let (a, b) = WireChannel::pair().unwrap();
        assert!(a.send(&"x".repeat(PACKET_MAX), &[]).is_err());
        a.send(&(77u8, 1u8), &[]).unwrap();
        assert!(b.receive::<WireRequest>().is_err());
        // A message with a byte after it.
        a.send(&(WireRequest::Cancel { id: 5 }, 0u8), &[]).unwrap();
        assert!(b.receive::<WireRequest>().is_err());
    }

    #[test]
    fn hostile_paths_sizes_and_ranges_are_errors() {
        let entry =
            |path: &str, len: u64| WireReply::Entries { id: 1, entries: vec![("x".into(), 1), (path.into(), len)] };
        let open = |path: &str| WireRequest::Open { id: 1, tree: 2, path: path.into(), head: 3 };
        let about = |path: &str| WireAbout { path: path.into(), url: "hf://a/b".into(), ..ABOUT };
        let tree = |path: &str| WireReply::Tree { id: 1, tree: 2, about: about(path), entries: u64::MAX };
        let is_read = |message: &WireReply| {
            decode_message::<WireReply>(&encode_message(message).unwrap()).is_ok_and(|read| read == *message)
        };
        let is_asked = |message: &WireRequest| {
            decode_message::<WireRequest>(&encode_message(message).unwrap()).is_ok_and(|read| read == *message)
        };
        let longest = "x".repeat(4096);
        for path in ["a", "a/b c", "..a/b..", "é%2F", &longest] {
            assert!(is_read(&entry(path, 0)) && is_read(&tree(path)) && is_asked(&open(path)), "{path:?}");
        }
        for path in ["/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0", "a\n", "a\u{9b}", &format!("{longest}x")] {
            assert!(!is_read(&entry(path, 0)) && !is_read(&tree(path)) && !is_asked(&open(path)), "{path:?}");
        }
        assert!(is_read(&tree("")) && is_asked(&open("")) && !is_read(&entry("", 0)));
        for (len, is_valid) in [(0, true), (i64::MAX as u64, true), (1 << 63, false), (u64::MAX, false)] {
            for message in [
                entry("a", len),
                WireReply::File { id: 1, object: Some(2), len, attributes: ABOUT.attributes },
                WireReply::File { id: 1, object: None, len, attributes: ABOUT.attributes },
            ] {
                assert_eq!(is_read(&message), is_valid, "{len}");
            }
        }
        for (start, end) in [(0, 0), (5, 5), (0, u64::MAX), (1, 0), (u64::MAX, 0)] {
            for (range, within) in [(start..end, 0..9), (0..9, start..end)] {
                let need = WireRequest::Need { id: 1, object: 2, range, within };
                assert_eq!(is_asked(&need), start <= end, "{start} {end}");
            }
        }
    }

    const ABOUT: WireAbout = WireAbout {
        url: String::new(),
        path: String::new(),
        is_listed: true,
        attributes: WireAttributes { is_public: true, mtime: 4, version: Some([7; 16]) },
    };

    #[test]
    fn sender_that_does_not_wait_notices_a_full_connection() {
        let (a, b) = WireChannel::pair().unwrap();
        let mut sent = 0u64;
        while a.try_send(&WireRequest::Cancel { id: sent }).unwrap() {
            sent += 1;
        }
        assert!(sent > 0);
        for expected in 0..sent {
            let (received, _) = b.receive::<WireRequest>().unwrap().unwrap();
            assert_eq!(received, WireRequest::Cancel { id: expected });
        }
        assert!(a.try_send(&WireRequest::Cancel { id: 0 }).unwrap());
        drop(b);
        assert!(a.try_send(&WireRequest::Cancel { id: 0 }).is_err());
    }
}
