//! Sends log messages to the reading process.

use super::super::protocol::{WireChannel, WireReply};
use log::{LevelFilter, Log, Metadata, Record};
use std::sync::Arc;

/// Maximum length of a reason or a message for the log, in bytes.
const TEXT_MAX: usize = 4096;

struct FetchRemarks(Arc<WireChannel>);

/// Sends the messages of weightfs to the other end of `channel` from now on.
pub(super) fn send_to(channel: Arc<WireChannel>) {
    // Fails only if there is a logger already.
    if log::set_boxed_logger(Box::new(FetchRemarks(channel))).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

impl Log for FetchRemarks {
    fn enabled(&self, metadata: &Metadata) -> bool {
        // The messages of libraries may contain URLs with their signatures.
        metadata.target().starts_with("weightfs")
    }

    fn log(&self, record: &Record) {
        if self.enabled(record.metadata()) {
            let mut text = record.args().to_string();
            cut_remark(&mut text);
            let _ = self.0.try_send(&WireReply::Log { level: record.level() as u8, text });
        }
    }

    fn flush(&self) {}
}

/// Shortens a text so that it fits into a message.
pub(super) fn cut_remark(text: &mut String) {
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or_default());
}
