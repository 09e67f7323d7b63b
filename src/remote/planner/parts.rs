//! Parts from their start to their end: progress, stalls, failures and retries.

use super::host::back_off;
use super::part::PlannedPart;
use super::{BLOCK, ObjectId, PartFailure, PartId, Planner, PlannerAction, PlannerTimer, TicketFailure};
use std::ops::Range;
use std::time::Duration;

/// Number of times that a part for which no ticket waits is tried without receiving anything.
const AHEAD_TRIES: u32 = 3;

impl Planner {
    /// Starts a part.
    pub(super) fn start(
        &mut self,
        now: Duration,
        object: ObjectId,
        blocks: Range<u64>,
        is_ahead: bool,
    ) -> Option<PlannerAction> {
        let part = PlannedPart {
            object,
            host: self.objects.get(&object)?.host,
            blocks,
            partial: 0,
            partial_max: 0,
            is_running: true,
            is_ahead,
            failures: 0,
            last: None,
            started: now,
            first: None,
            received: 0,
            progress_at: now,
            timer: now,
        };
        self.run(now, part)
    }

    fn run(&mut self, now: Duration, part: PlannedPart) -> Option<PlannerAction> {
        let id = PartId(self.number());
        let timer = now.saturating_add(self.limits.stall);
        let (partial, received, first) = (0, 0, None);
        let part = PlannedPart { is_running: true, started: now, timer, partial, received, first, ..part };
        let (object, blocks) = (part.object, part.blocks.clone());
        let found = self.objects.get_mut(&object)?;
        found.add_part(&blocks, id);
        let range = found.bytes_of(&blocks);
        if let Some(host) = self.hosts.get_mut(&part.host) {
            host.running += 1;
            host.running_ahead += usize::from(part.is_ahead);
            host.flying += blocks.end - blocks.start;
        }
        self.timers.insert((timer, PlannerTimer::Part(id)));
        self.parts.insert(id, part);
        Some(PlannerAction::Fetch { part: id, object, range })
    }

    /// Ends a part. Its connection and its blocks are free.
    fn stop(&mut self, id: PartId) -> Option<PlannedPart> {
        let part = self.parts.remove(&id)?;
        self.timers.remove(&(part.timer, PlannerTimer::Part(id)));
        if let Some(object) = self.objects.get_mut(&part.object) {
            object.remove_part(&part.blocks);
        }
        if let Some(host) = self.hosts.get_mut(&part.host) {
            host.due.remove(&id);
            if part.is_running {
                host.running -= 1;
                host.running_ahead -= usize::from(part.is_ahead);
                host.flying -= part.blocks.end - part.blocks.start;
            }
        }
        Some(part)
    }

    /// Ends a part that nobody needs.
    pub(super) fn abort(&mut self, id: PartId) {
        if self.stop(id).is_some_and(|part| part.is_running) {
            self.actions.push_back(PlannerAction::Abort { part: id });
        }
    }

    pub(super) fn received(&mut self, now: Duration, id: PartId, bytes: u64, is_fetched: bool) {
        let Some(part) = self.parts.get_mut(&id).filter(|part| part.is_running && bytes > 0) else { return };
        let Some(object) = self.objects.get_mut(&part.object) else { return };
        let Some(host) = self.hosts.get_mut(&part.host) else { return };
        let left = object.bytes_of(&part.blocks);
        let left = left.end - left.start;
        part.partial = part.partial.saturating_add(bytes).min(left);
        let count = if part.partial == left { part.blocks.end - part.blocks.start } else { part.partial / BLOCK };
        part.partial -= part.partial.min(count.saturating_mul(BLOCK));
        if !is_fetched {
            // Says nothing about the host.
        } else if part.first.is_none() {
            part.first = Some(now);
            host.observe_latency(now.saturating_sub(part.started));
        } else {
            part.received = part.received.saturating_add(bytes);
        }
        if count > 0 || part.partial > part.partial_max {
            part.partial_max = part.partial;
            (part.progress_at, host.progress_at) = (now, now);
            (part.failures, host.failures) = (0, 0);
        }
        if count > 0 {
            let blocks = part.blocks.start..part.blocks.start + count;
            object.remove_part(&part.blocks);
            part.blocks.start = blocks.end;
            object.add_part(&part.blocks, id);
            host.flying -= count;
            object.present.insert(blocks.clone());
            let object = part.object;
            self.arrived(object, &blocks);
        }
    }

    pub(super) fn finished(&mut self, now: Duration, id: PartId) {
        let Some(part) = self.parts.get(&id).filter(|part| part.is_running) else { return };
        let (first, received) = (part.first.unwrap_or(part.started), part.received);
        let is_fetched = !part.blocks.is_empty();
        if let Some(host) = self.hosts.get_mut(&part.host) {
            host.observe_bandwidth(received, now.saturating_sub(first));
        }
        self.received(now, id, u64::MAX, is_fetched);
        self.stop(id);
    }

    pub(super) fn failed(&mut self, now: Duration, id: PartId, failure: PartFailure) {
        if !self.parts.get(&id).is_some_and(|part| part.is_running) {
            return;
        }
        let Some(mut part) = self.stop(id) else { return };
        let PartFailure::Transient { retry_after } = failure else {
            return self.give_up(&part, Some(id));
        };
        let random = self.random();
        let Some(object) = self.objects.get_mut(&part.object) else { return };
        let Some(host) = self.hosts.get_mut(&part.host) else { return };
        host.last_failed = Some(id);
        host.failures = host.failures.saturating_add(1);
        part.failures = part.failures.saturating_add(1);
        let is_needed = object.tickets_in(&part.blocks).next().is_some();
        let delay = back_off(part.failures, random);
        // If nothing arrives any more, the parts do not try one by one whether the host is back.
        let is_down = host.failures as usize > self.limits.connections;
        let pause = retry_after.map(|time| time.saturating_add(delay)).or(is_down.then_some(delay));
        if let Some(pause) = pause {
            host.paused_until = host.paused_until.max(now.saturating_add(pause));
            self.timers.insert((host.paused_until, PlannerTimer::Host(part.host)));
        }
        if part.blocks.is_empty() {
            return;
        }
        if !is_needed && part.failures >= AHEAD_TRIES {
            return self.give_up(&part, None);
        }
        (part.is_running, part.last, part.timer) = (false, Some(id), now.saturating_add(delay));
        object.add_part(&part.blocks, id);
        self.timers.insert((part.timer, PlannerTimer::Part(id)));
        self.parts.insert(id, part);
    }

    /// Fails the tickets that wait for a part which has ended, and ends the read-ahead there.
    fn give_up(&mut self, part: &PlannedPart, failed: Option<PartId>) {
        self.runs.cut(part.object, part.blocks.start);
        let Some((object, id)) = self.objects.get(&part.object).zip(failed) else { return };
        let tickets: Vec<_> = object.tickets_in(&part.blocks).map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            self.answer(ticket, PlannerAction::Fail { ticket, why: TicketFailure::Part(id) });
        }
    }

    /// Starts a failed part again, from its first absent block. Returns `None` if nothing is absent.
    pub(super) fn resume(&mut self, now: Duration, id: PartId) -> Option<PlannerAction> {
        let mut part = self.stop(id)?;
        let present = &self.objects.get(&part.object)?.present;
        let start = present.first_absent(part.blocks.clone())?;
        let end = present.next_after(start).map_or(part.blocks.end, |next| next.min(part.blocks.end));
        // What lies after blocks that became present otherwise is left to other parts.
        let (object, rest) = (part.object, end..part.blocks.end);
        part.blocks = start..end;
        let action = self.run(now, part);
        if !rest.is_empty() {
            self.runs.cut(object, rest.start);
            self.enqueue(object, &rest);
        }
        action
    }

    /// Handles the timer of a part: it has stalled, or it is tried again.
    pub(super) fn check_part(&mut self, id: PartId, now: Duration) {
        let Some(part) = self.parts.get_mut(&id) else { return };
        if !part.is_running {
            if let Some(host) = self.hosts.get_mut(&part.host) {
                host.due.insert(id);
            }
            return;
        }
        let timer = part.progress_at.max(part.started).saturating_add(self.limits.stall);
        if timer > now {
            part.timer = timer;
            self.timers.insert((timer, PlannerTimer::Part(id)));
        } else {
            self.actions.push_back(PlannerAction::Abort { part: id });
            self.failed(now, id, PartFailure::Transient { retry_after: None });
        }
    }

    /// Aborts the parts of a range that neither a ticket nor a run needs, unless they are nearly done.
    pub(super) fn abort_unwanted(&mut self, object: ObjectId, blocks: &Range<u64>) {
        let Some(found) = self.objects.get(&object) else { return };
        for id in found.parts_in(blocks) {
            let Some((found, part)) = self.objects.get(&object).zip(self.parts.get(&id)) else { continue };
            let Some(host) = self.hosts.get(&part.host) else { continue };
            let run = self.runs.before((object, part.blocks.start)).map(|(_, run)| run.end..run.ahead);
            let is_ahead = run.is_some_and(|run| run.start.max(part.blocks.start) < run.end.min(part.blocks.end));
            let is_needed = is_ahead || found.tickets_in(&part.blocks).next().is_some();
            let left = (part.blocks.end - part.blocks.start).saturating_mul(BLOCK);
            // A connection that is aborted is lost, so a short rest is cheaper to receive.
            let is_nearly_done = part.first.is_some() && part.is_running && left <= host.request_cost();
            if !is_needed && !is_nearly_done {
                self.abort(id);
            }
        }
    }
}
