//! Bodies of responses: text, or a part of a file that is read while it is sent.

use super::work::{SiteOperation, SiteWork};
use crate::content::{Content, ReadRequest};
use crate::fs::{self, Superblock};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use std::fmt;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Size of the pieces in which a file is sent, in bytes. A connection has at most three of them in memory: one that is
/// read, one that waits, and one that is sent.
const PIECE: u64 = 256 << 10;

/// A body.
#[derive(Debug)]
pub(super) enum ResponseBody {
    /// `None` after it was sent.
    Text(Option<Bytes>),
    File(Box<FileBody>),
}

impl ResponseBody {
    pub fn empty() -> Self {
        Self::Text(None)
    }

    pub fn text(text: impl Into<Bytes>) -> Self {
        Self::Text(Some(text.into()).filter(|text| !text.is_empty()))
    }
}

type Reading = Pin<Box<dyn Future<Output = Result<Vec<u8>, fs::Error>> + Send>>;

/// A part of a file.
pub(super) struct FileBody {
    work: Arc<SiteWork>,
    content: Content,
    /// For messages.
    name: String,
    /// The range that is still to be read.
    rest: Range<u64>,
    /// Bytes that are still to be sent.
    unsent: u64,
    /// The piece that is being read. Dropping it cancels reading.
    reading: Option<Reading>,
    /// Called when a piece was read: the client takes what it gets.
    progress: Box<dyn Fn() + Send + Sync>,
}

impl FileBody {
    /// The bytes of `range`, which lies inside `content`.
    pub fn new(
        work: Arc<SiteWork>,
        content: Content,
        name: String,
        range: Range<u64>,
        progress: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let unsent = range.end - range.start;
        Self { work, content, name, rest: range, unsent, reading: None, progress: Box::new(progress) }
    }

    /// Reads the first piece, so that a file that cannot be read has a response that says so.
    pub async fn begin(&mut self) -> Result<(), fs::Error> {
        self.read_next();
        if let Some(reading) = self.reading.take() {
            let first = reading.await?;
            self.reading = Some(Box::pin(std::future::ready(Ok(first))));
        }
        Ok(())
    }

    fn read_next(&mut self) {
        let range = self.rest.start..self.rest.end.min(self.rest.start.saturating_add(PIECE));
        if range.is_empty() {
            return;
        }
        self.rest.start = range.end;
        let read = self.work.start(PieceRead { content: self.content.clone(), range });
        self.reading = Some(Box::pin(read));
    }
}

/// Reads a piece of a file.
struct PieceRead {
    content: Content,
    /// In bytes, inside the content.
    range: Range<u64>,
}

impl SiteOperation for PieceRead {
    type Output = Vec<u8>;

    fn run(&self, _: &Superblock, request: &ReadRequest) -> Result<Vec<u8>, fs::Error> {
        if let Some(wait) = self.content.waits_for(&self.range) {
            request.wait(wait)?;
        }
        let mut bytes = Vec::new();
        self.content.copy(self.range.clone(), request, &mut bytes)?;
        Ok(bytes)
    }
}

impl fmt::Debug for FileBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileBody").field("name", &self.name).field("unsent", &self.unsent).finish_non_exhaustive()
    }
}

impl HttpBody for ResponseBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        match self.get_mut() {
            Self::Text(text) => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::File(file) => {
                if file.reading.is_none() {
                    file.read_next();
                }
                let Some(reading) = &mut file.reading else { return Poll::Ready(None) };
                let read = std::task::ready!(reading.as_mut().poll(context));
                file.reading = None;
                // The next piece is read while this one is sent.
                file.read_next();
                (file.progress)();
                Poll::Ready(Some(match read {
                    Ok(bytes) => {
                        file.unsent -= bytes.len() as u64;
                        file.work.superblock().count_served(bytes.len());
                        Ok(Frame::data(bytes.into()))
                    }
                    Err(error) => {
                        (file.rest.start, file.reading) = (file.rest.end, None);
                        log::warn!("{}: {error}", file.name);
                        // The connection is closed, so that the client sees that bytes are missing.
                        Err(io::Error::other(error))
                    }
                }))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.size_hint().exact() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match self {
            Self::Text(text) => text.as_ref().map_or(0, |text| text.len() as u64),
            Self::File(file) => file.unsent,
        })
    }
}
