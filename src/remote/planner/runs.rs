//! Read-ahead: which ranges were read without a gap, and how far ahead of each one to fetch. Does not fetch.
//!
//! A run is a maximal range of an object that was read without a gap. Reads that arrive out of order, several readers
//! of one object, and one descriptor that is used at many offsets all end in the right runs, because a run belongs to a
//! position and not to a file handle. A run that is read at its end, or from the start of a tensor, is sequential. What
//! is fetched ahead of it is at most [`AHEAD`] times its length, or once its length if it does not begin with the
//! tensor, and a *lead*. So the bytes that are wasted when a reader stops are bounded by the bytes that it has read.
//! The lead depends on what a request costs, because a reader that has caught up waits for a request. If it was read
//! from the start of a tensor, and the rest of the tensor beyond that is no longer than the lead, the rest is fetched
//! too. Reads that stride or go backward do not extend the end of a run, so nothing is fetched ahead of them.
//!
//! Reads of present blocks are not reported, except those of triggers: some blocks ahead of each run. A reader that
//! touches them is followed, and one that appears behind a trigger without having touched it starts a new run.

use super::ranges::BlockRanges;
use super::{BLOCK, ObjectId, PlannerLimits};
use std::collections::BTreeMap;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

/// The blocks fetched ahead of a run from the start of a tensor are at most this multiple of its length, the lead, and
/// a rest as long as the lead.
const AHEAD: u64 = 4;

/// Other runs may be those of readers of rows, which stop somewhere. At most as many blocks as such a run has are
/// fetched ahead of it, and at most this many, besides the lead: 64 MiB. Sixteen connections receive 50 MB/s each for
/// 80 ms meanwhile.
const ROWS_AHEAD_MAX: u64 = (64 << 20) / BLOCK;

/// The lead is this multiple of the cost of a request: several connections fill the time of several round trips,
/// because the first requests also set connections up.
const LEAD: u64 = 4;

/// Bounds of the lead: 4 MiB and 16 MiB.
const LEAD_BLOCKS: RangeInclusive<u64> = (4 << 20) / BLOCK..=(16 << 20) / BLOCK;

/// Nothing is fetched ahead of fewer blocks, so that a look at the first bytes of a tensor costs one block.
const SEQUENTIAL: u64 = 2;

/// Triggers in the first eighth of a window, and in the rest of it. A reader that skips one of them is not sequential.
/// The window is extended in its first eighth, so a reader of every other row must be detected there.
const TRIGGERS: u64 = 7;

/// Maximum number of runs. The one that has been idle for longest is forgotten first.
const RUNS_MAX: usize = 1024;

/// A run that was not read for this time loses its share of the budget when another run needs it.
const IDLE: Duration = Duration::from_secs(2);

/// A run that does not start with its tensor may be that of a reader of rows, until it has this many blocks: 1 MiB. Its
/// lead is short.
const STEADY: u64 = (1 << 20) / BLOCK;

/// The lead of a run of `len` blocks. `cost` is what a connection receives in the time of a request, in blocks.
fn lead(len: u64, starts_tensor: bool, cost: u64) -> u64 {
    let (least, most) = LEAD_BLOCKS.into_inner();
    if starts_tensor || len >= STEADY { cost.saturating_mul(LEAD).clamp(least, most) } else { least }
}

/// Identifies a run by a block at or before which it starts. A key stays valid when runs merge.
pub(super) type RunKey = (ObjectId, u64);

#[derive(Debug)]
pub(super) struct ReadRun {
    /// The end of what was read.
    pub end: u64,
    /// The end of what is to be fetched ahead, at least `end`.
    pub ahead: u64,
    /// The end of what was given to parts. What lies before is not fetched ahead again, even if it is evicted.
    pub issued: u64,
    /// Read-ahead ends here: the end of the tensor.
    limit: u64,
    /// Whether it was read at its end at least twice, or from the start of a tensor.
    sequential: bool,
    starts_tensor: bool,
    used: Duration,
}

impl ReadRun {
    /// Takes over a run that starts in this one, or at its end.
    fn absorb(&mut self, next: ReadRun) {
        if next.end > self.end {
            (self.end, self.limit) = (next.end, next.limit);
        }
        self.ahead = self.ahead.max(next.ahead);
        self.issued = self.issued.max(next.issued);
        self.sequential |= next.sequential;
    }
}

#[derive(Debug)]
pub(super) struct PlannedRead {
    pub object: ObjectId,
    pub blocks: Range<u64>,
    pub within: Range<u64>,
    /// Whether some of its blocks are neither present nor being fetched.
    pub is_lost: bool,
}

#[derive(Debug, Default)]
pub(super) struct ReadRuns {
    map: BTreeMap<RunKey, ReadRun>,
    /// Blocks ahead of runs whose read is to be reported, and whether they are present, so that it will be.
    triggers: BTreeMap<RunKey, bool>,
}

impl ReadRuns {
    /// The last run that starts at or before a block.
    pub fn before(&self, (object, block): RunKey) -> Option<(RunKey, &ReadRun)> {
        self.map.range((object, 0)..=(object, block)).next_back().map(|(key, run)| (*key, run))
    }

    /// The run that has read a block, or is to read it next because the blocks from the end of the run are present and
    /// no trigger among them was skipped.
    fn reaching(&self, key: RunKey, present: &BlockRanges) -> Option<RunKey> {
        let (found, run) = self.before(key)?;
        let is_near = key.1 <= present.end_at(run.end).unwrap_or(run.end);
        let is_skipped = || self.triggers.range((key.0, run.end)..key.max((key.0, run.end))).any(|(_, is_set)| *is_set);
        (key.1 <= run.end || is_near && !is_skipped()).then_some(found)
    }

    /// Registers a read. Returns its run if it was read at its end.
    pub fn read(&mut self, read: PlannedRead, present: &BlockRanges, now: Duration) -> Option<RunKey> {
        let PlannedRead { object, blocks, within, is_lost } = read;
        let mut key = (object, blocks.start);
        let end = blocks.end;
        let limit = if within.start <= end { within.end.max(end) } else { end };
        let starts_tensor = blocks.start == within.start;
        let sequential = starts_tensor;
        let mut run = ReadRun { end, ahead: end, issued: end, limit, sequential, starts_tensor, used: now };
        let mut is_at_end = true;
        if let Some(found) = self.reaching(key, present)
            && let Some(old) = self.map.remove(&found)
        {
            is_at_end = end > old.end;
            if is_at_end {
                (key, run) = (found, ReadRun { end, limit, sequential: true, used: now, ..old });
            } else if !is_lost {
                (key, run) = (found, ReadRun { used: now, ..old });
            }
            // Otherwise a reader started again and what it read before was evicted. The old run is forgotten.
        }
        while let Some((&next, _)) = self.map.range((object, key.1)..=(object, run.end)).next() {
            let Some(next) = self.map.remove(&next) else { break };
            is_at_end &= next.end <= run.end;
            run.absorb(next);
        }
        // Reads that arrive out of order start a run of their own until the blocks before them are there.
        while let Some(before) = self.reaching(key, present)
            && let Some(mut before_run) = self.map.remove(&before)
        {
            before_run.absorb(run);
            (key, run) = (before, ReadRun { sequential: true, used: now, ..before_run });
        }
        run.ahead = run.ahead.max(run.end);
        run.issued = run.issued.max(run.end);
        self.drop_triggers(object, key.1..run.end);
        self.map.insert(key, run);
        is_at_end.then_some(key)
    }

    /// Moves the end of the read-ahead of a run, unless more than three quarters of its window are still ahead of the
    /// reader. A smaller rest would be used up before what is asked for now arrives. `cost` is what a connection
    /// receives in the time of a request, in blocks. Returns the blocks ahead.
    pub fn extend(&mut self, key: RunKey, limits: &PlannerLimits, cost: u64, random: u64) -> Option<Range<u64>> {
        let all = self.ahead();
        let run = self.map.get_mut(&key).filter(|run| run.sequential && run.end - key.1 >= SEQUENTIAL)?;
        let own = run.ahead - run.end;
        let budget = (limits.ahead_total / BLOCK).saturating_sub(all - own);
        let len = run.end - key.1;
        let lead = lead(len, run.starts_tensor, cost);
        let multiple = if run.starts_tensor { len.saturating_mul(AHEAD) } else { len.min(ROWS_AHEAD_MAX) };
        let mut window = multiple.saturating_add(lead);
        let rest = run.limit.saturating_sub(run.end);
        if run.starts_tensor && rest.saturating_sub(window) <= lead {
            // The reader would wait for another request because of a few blocks.
            window = rest;
        }
        let window = window.min(limits.ahead_max / BLOCK).min(budget);
        let ahead = run.limit.min(run.end.saturating_add(window));
        if ahead <= run.ahead || own.saturating_mul(4) > window.saturating_mul(3) {
            return None;
        }
        run.ahead = ahead;
        let (blocks, is_last) = (run.end..ahead, ahead == run.limit);
        self.drop_triggers(key.0, blocks.clone());
        if !is_last {
            // At places that no stride hits again and again.
            let middle = blocks.start + (ahead - blocks.start) / 8;
            let places = [blocks.start..middle, middle..ahead].into_iter().enumerate().flat_map(|(half, part)| {
                let step = (part.end - part.start) / (TRIGGERS + 1);
                let shift = move |at: u64| random.rotate_right(8 * at as u32 + 4 * half as u32) % (step / 2).max(1);
                (1..=TRIGGERS).map(move |at| part.start + at * step - shift(at))
            });
            self.triggers.extend(places.map(|block| ((key.0, block), false)));
        }
        Some(blocks)
    }

    /// The run that has been idle for long enough to lose its read-ahead, if the budget is short.
    pub fn idle(&self, now: Duration, limits: &PlannerLimits) -> Option<RunKey> {
        let is_short = self.ahead() * 4 >= limits.ahead_total / BLOCK * 3;
        let (key, run) = self.map.iter().min_by_key(|(key, run)| (run.used, **key))?;
        (self.map.len() > RUNS_MAX || is_short && run.used + IDLE <= now).then_some(*key)
    }

    /// Blocks that are to be fetched ahead and were not read yet.
    fn ahead(&self) -> u64 {
        self.map.values().map(|run| run.ahead - run.end).sum()
    }

    /// The triggers in `blocks`, which are present. Each is returned once.
    pub fn set_triggers(&mut self, object: ObjectId, blocks: &Range<u64>) -> Vec<u64> {
        let found = self.triggers.range_mut((object, blocks.start)..(object, blocks.end.max(blocks.start)));
        let new = found.filter_map(|((_, block), is_set)| (!std::mem::replace(is_set, true)).then_some(*block));
        new.collect()
    }

    fn drop_triggers(&mut self, object: ObjectId, blocks: Range<u64>) {
        let found = self.triggers.range((object, blocks.start)..(object, blocks.end.max(blocks.start)));
        for key in found.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.triggers.remove(&key);
        }
    }

    /// Marks the blocks up to `end` as given to parts.
    pub fn issue(&mut self, key: RunKey, end: u64) {
        if let Some(run) = self.map.get_mut(&key) {
            run.issued = run.issued.max(end.min(run.ahead));
        }
    }

    /// Ends the read-ahead at a block, because the block cannot be fetched now.
    pub fn cut(&mut self, object: ObjectId, block: u64) {
        let found = self.map.range_mut((object, 0)..=(object, block)).next_back();
        if let Some((_, run)) = found.filter(|(_, run)| run.end <= block && block < run.ahead) {
            run.ahead = block;
            run.issued = run.issued.min(block);
        }
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.map.is_empty() && self.triggers.is_empty()
    }

    pub fn close(&mut self, object: ObjectId) {
        self.map.retain(|key, _| key.0 != object);
        self.drop_triggers(object, 0..u64::MAX);
    }

    /// Forgets a run, and returns the blocks ahead of it.
    pub fn forget(&mut self, key: RunKey) -> Option<Range<u64>> {
        let run = self.map.remove(&key)?;
        self.drop_triggers(key.0, run.end..run.ahead);
        Some(run.end..run.ahead)
    }
}
