//! Chooses the next part when a connection is free, and its size.

use super::{BLOCK, HostId, Planner, PlannerAction, TicketId};
use std::ops::Bound;
use std::time::Duration;

/// A part has at least this many blocks if there is as much to fetch: 1 MiB. New connections are slow at first, so many
/// short parts are faster than a few long ones, but each is a request.
const PART_MIN: u64 = (1 << 20) / BLOCK;

/// One in this many connections is kept free from read-ahead.
const RESERVED: usize = 8;

/// Of the bytes of a part, at most one in this many lies in gaps between what was asked for.
const GAP_SHARE: u64 = 4;

impl Planner {
    pub(super) fn next_part(&mut self, now: Duration) -> Option<PlannerAction> {
        let mut from = HostId(0);
        while let Some((&id, host)) = self.hosts.range(from..).next() {
            let is_open = now >= host.paused_until && self.running(id).count() < self.limits.connections;
            let action = if is_open { self.next_part_of(now, id) } else { None };
            if action.is_some() {
                return action;
            }
            from = HostId(id.0.checked_add(1)?);
        }
        None
    }

    fn next_part_of(&mut self, now: Duration, id: HostId) -> Option<PlannerAction> {
        // Failed parts whose delay is over.
        while let Some((&part, _)) =
            self.parts.iter().find(|(_, part)| part.host == id && !part.is_running && part.timer <= now)
        {
            if let Some(action) = self.resume(now, part) {
                return Some(action);
            }
        }
        while let Some((age, ticket)) = self.hosts.get(&id)?.queue.first().copied() {
            if let Some(action) = self.part_for_ticket(now, ticket) {
                return Some(action);
            }
            self.hosts.get_mut(&id)?.queue.remove(&(age, ticket));
        }
        self.part_ahead(now, id)
    }

    /// The next part for a ticket, or `None` if parts fetch all of it.
    fn part_for_ticket(&mut self, now: Duration, ticket: TicketId) -> Option<PlannerAction> {
        let ticket = self.tickets.get(&ticket)?;
        let id = ticket.object;
        let object = self.objects.get(&id)?;
        let host = self.hosts.get(&object.host)?;
        let first = object.first_free(ticket.blocks.clone())?;
        let start = first.start;
        if ticket.is_single {
            let end = first.end.min(start.saturating_add(self.part_max()));
            return self.start(now, id, start..end, false);
        }
        // The blocks that other tickets wait for behind small gaps, and those to be fetched ahead of them.
        let free = object.first_free(start..start.saturating_add(self.part_max()).min(object.blocks()))?;
        let gap = host.request_cost() / BLOCK;
        let (mut end, mut skipped) = (first.end.min(free.end), 0);
        for (_, range) in object.tickets_in(&free) {
            skipped += range.start.saturating_sub(end);
            if range.start > end + gap || skipped * GAP_SHARE > range.start.max(end) - start {
                break;
            }
            end = end.max(range.end.min(free.end));
        }
        let run = self.runs.before((id, end)).filter(|(_, run)| run.end <= end);
        end = end.max(run.map_or(end, |(_, run)| run.ahead.min(free.end)));
        let run = run.map(|(key, _)| key);
        let blocks = start..start + self.part_size(object.host, end - start, self.limits.connections);
        if let Some(key) = run {
            self.runs.issue(key, blocks.end);
        }
        self.start(now, id, blocks, false)
    }

    /// The next part of read-ahead. Runs take turns.
    fn part_ahead(&mut self, now: Duration, id: HostId) -> Option<PlannerAction> {
        let connections = self.limits.connections - self.limits.connections.div_ceil(RESERVED);
        let connections = connections.max(1);
        if self.running(id).filter(|part| part.is_ahead).count() >= connections {
            return None;
        }
        loop {
            let host = self.hosts.get_mut(&id)?;
            let after = host.ahead_last;
            let next = host.ahead.range((Bound::Excluded(after), Bound::Unbounded)).next();
            let key = *next.or(host.ahead.first())?;
            host.ahead_last = key;
            let run = self.runs.before(key).map(|(key, run)| (key, run.issued.max(run.end)..run.ahead));
            let free = run.and_then(|(key, range)| Some((key, self.objects.get(&key.0)?.first_free(range)?)));
            if let Some((run, free)) = free {
                let size = self.part_size(id, free.end - free.start, connections);
                let blocks = free.start..free.start + size;
                self.runs.issue(run, blocks.end);
                return self.start(now, key.0, blocks, true);
            }
            self.hosts.get_mut(&id)?.ahead.remove(&key);
        }
    }

    /// The blocks of the next part, if `wanted` blocks in sequence are to be fetched. All that is in flight or wanted
    /// is shared evenly among the connections, so that they end at about the same time.
    fn part_size(&self, host: HostId, wanted: u64, connections: usize) -> u64 {
        let in_flight: u64 = self.running(host).map(|part| part.blocks.end - part.blocks.start).sum();
        let share = (wanted + in_flight).div_ceil(connections as u64);
        let size = share.max(PART_MIN).min(self.part_max());
        // A short rest is not left to another request.
        if wanted < size + PART_MIN { wanted.min(self.part_max()) } else { size }
    }

    fn part_max(&self) -> u64 {
        (self.limits.part_max / BLOCK).max(1)
    }
}
