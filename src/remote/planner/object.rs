//! One object: which of its blocks are present, which are being fetched, and which tickets wait for them. Does not
//! decide what to fetch.

use super::ranges::BlockRanges;
use super::{BLOCK, HostId, PartId, TicketId};
use std::collections::BTreeMap;
use std::ops::Range;

/// A remote file. All positions are numbers of blocks unless they are said to be bytes.
#[derive(Debug)]
pub(super) struct PlannedObject {
    /// Length in bytes.
    len: u64,
    pub host: HostId,
    pub present: BlockRanges,
    /// The blocks that each part has yet to receive, by their start: the end and the part. They do not overlap.
    parts: BTreeMap<u64, (u64, PartId)>,
    /// The ranges that tickets wait for, by their start: the end.
    tickets: BTreeMap<(u64, TicketId), u64>,
    /// At least the number of blocks of the longest range in `tickets`.
    longest: u64,
}

impl PlannedObject {
    pub fn new(len: u64, host: HostId) -> Self {
        let (present, parts, tickets) = Default::default();
        Self { len, host, present, parts, tickets, longest: 0 }
    }

    /// The number of blocks. The last one may be short.
    pub fn blocks(&self) -> u64 {
        self.len.div_ceil(BLOCK)
    }

    pub fn blocks_of(&self, bytes: &Range<u64>) -> Range<u64> {
        let end = bytes.end.min(self.len);
        if bytes.start >= end { 0..0 } else { bytes.start / BLOCK..end.div_ceil(BLOCK) }
    }

    pub fn bytes_of(&self, blocks: &Range<u64>) -> Range<u64> {
        let byte = |block: u64| block.saturating_mul(BLOCK).min(self.len);
        byte(blocks.start)..byte(blocks.end)
    }

    /// The first range in `within` that is neither present nor being fetched.
    pub fn first_free(&self, within: Range<u64>) -> Option<Range<u64>> {
        let mut block = within.start;
        while block < within.end {
            if let Some(end) = self.present.end_at(block) {
                block = end;
            } else if let Some((end, _)) = self.part_at(block) {
                block = end;
            } else {
                let present = self.present.next_after(block).unwrap_or(u64::MAX);
                let part = self.parts.range(block..).next().map_or(u64::MAX, |(start, _)| *start);
                return Some(block..within.end.min(present).min(part));
            }
        }
        None
    }

    /// The part that fetches a block, and the end of its range.
    pub fn part_at(&self, block: u64) -> Option<(u64, PartId)> {
        self.parts.range(..=block).next_back().map(|(_, part)| *part).filter(|(end, _)| *end > block)
    }

    pub fn parts_in(&self, range: &Range<u64>) -> Vec<PartId> {
        let before = self.part_at(range.start).map(|(_, part)| part);
        let after =
            (range.start < range.end).then(|| self.parts.range(range.start + 1..range.end.max(range.start + 1)));
        before.into_iter().chain(after.into_iter().flatten().map(|(_, (_, part))| *part)).collect()
    }

    pub fn add_part(&mut self, range: &Range<u64>, part: PartId) {
        if !range.is_empty() {
            self.parts.insert(range.start, (range.end, part));
        }
    }

    pub fn remove_part(&mut self, range: &Range<u64>) {
        if !range.is_empty() {
            self.parts.remove(&range.start);
        }
    }

    pub fn add_ticket(&mut self, range: &Range<u64>, ticket: TicketId) {
        self.tickets.insert((range.start, ticket), range.end);
        self.longest = self.longest.max(range.end - range.start);
    }

    pub fn remove_ticket(&mut self, range: &Range<u64>, ticket: TicketId) {
        self.tickets.remove(&(range.start, ticket));
        if self.tickets.is_empty() {
            self.longest = 0;
        }
    }

    /// The tickets that wait for blocks of a range, by their start: the ticket and its range. The cost depends on the
    /// longest range that a ticket waits for; the reads of a mount are at most 1 MiB.
    pub fn tickets_in(&self, range: &Range<u64>) -> impl Iterator<Item = (TicketId, Range<u64>)> {
        let first = range.start.saturating_sub(self.longest);
        let start = range.start;
        let found = self.tickets.range((first, TicketId(0))..(range.end.max(first), TicketId(0)));
        found.map(|((start, ticket), end)| (*ticket, *start..*end)).filter(move |(_, range)| range.end > start)
    }
}
