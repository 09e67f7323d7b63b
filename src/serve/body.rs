//! Bodies of responses: text, or a part of a file that is read while it is sent.

use super::work::{SiteOperation, SiteWork};
use crate::content::{Content, OperationPlan, ReadRequest};
use crate::fs::{self, Superblock};
use futures_util::{StreamExt, stream};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Size of the pieces in which a file is sent, in bytes. A connection has at most three in memory: one is being sent.
const PIECE: u64 = 256 << 10;

pub(super) type ResponseBody = UnsyncBoxBody<Bytes, io::Error>;

pub(super) fn text_body(text: impl Into<Bytes>) -> ResponseBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The body with the bytes of `range`, which lies inside `content`. Fails if the first piece cannot be read, so that
/// the response says so; later errors go to the log, with `name`.
pub(super) async fn file_body(
    work: Arc<SiteWork>,
    content: Content,
    range: Range<u64>,
    name: String,
) -> Result<ResponseBody, fs::Error> {
    let (end, reading, whole) = (range.end, work.clone(), content.read_whole(&range));
    let pieces = stream::iter(range.step_by(PIECE as usize)).map(move |start| {
        let range = start..end.min(start.saturating_add(PIECE));
        reading.start(PieceRead { content: content.clone(), range, plan: OperationPlan::default() })
    });
    let mut pieces = Box::pin(pieces.buffered(2));
    let first = pieces.next().await.transpose()?;
    let frames = stream::iter(first.map(Ok)).chain(pieces).map(move |piece| {
        // Nothing else is read ahead as long as this is sent.
        let _ = &whole;
        match piece {
            Ok(bytes) => {
                work.superblock().count_served(bytes.len());
                Ok(Frame::data(bytes.into()))
            }
            Err(error) => {
                log::warn!("{name}: {error}");
                // The connection is closed, so that the client sees that bytes are missing.
                Err(io::Error::other(error))
            }
        }
    });
    Ok(StreamBody::new(frames).boxed_unsync())
}

struct PieceRead {
    content: Content,
    /// In bytes, inside the content.
    range: Range<u64>,
    plan: OperationPlan,
}

impl SiteOperation for PieceRead {
    type Output = Vec<u8>;

    fn run(&self, _: &Superblock, request: &ReadRequest) -> Result<Vec<u8>, fs::Error> {
        let plan = self.plan.get(|| Ok::<_, fs::Error>(self.content.plan(self.range.clone())))?;
        Ok(plan.read_owned(request)?)
    }
}
