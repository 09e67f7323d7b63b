//! Parts from their start to their end: progress, stalls, failures and retries.

use super::host::back_off;
use super::{BLOCK, ObjectId, PartFailure, PartId, PlannedPart, Planner, PlannerAction, PlannerTimer};
use crate::remote::is_progress;
use crate::source::FetchFailure;
use std::ops::Range;
use std::time::Duration;

/// Number of times that a part for which no ticket waits is tried without receiving anything.
const AHEAD_TRIES: u32 = 3;

impl Planner {
    pub(super) fn start(
        &mut self,
        now: Duration,
        object: ObjectId,
        blocks: Range<u64>,
        is_ahead: bool,
    ) -> Option<PlannerAction> {
        let host = self.objects.get(&object)?.host;
        let reached = blocks.start.saturating_mul(BLOCK);
        self.run(
            now,
            PlannedPart { object, host, blocks, is_ahead, reached, progress_at: now, ..PlannedPart::default() },
        )
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
        let arrived = (part.blocks.start + count).saturating_mul(BLOCK).saturating_add(part.partial);
        let gained = arrived.saturating_sub(part.reached);
        if !is_fetched || is_progress(gained, now.saturating_sub(part.progress_at.max(part.started))) {
            part.reached = part.reached.max(arrived);
            (part.progress_at, host.progress_at) = (now, now);
            (part.failures, host.failures) = (0, 0);
        }
        if count > 0 {
            let blocks = part.blocks.start..part.blocks.start + count;
            object.remove_part(&part.blocks);
            part.blocks.start = blocks.end;
            object.add_part(&part.blocks, id);
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
        let PartFailure { failure, retry: Some(asked) } = failure else {
            return self.give_up(&part, Some(failure.failure));
        };
        let random = self.random();
        let Some(object) = self.objects.get_mut(&part.object) else { return };
        let Some(host) = self.hosts.get_mut(&part.host) else { return };
        host.last_failure = Some(failure.clone());
        host.failures = host.failures.saturating_add(1);
        part.failures = part.failures.saturating_add(1);
        let is_needed = object.tickets_in(&part.blocks).next().is_some();
        let delay = back_off(part.failures, random);
        // If nothing arrives any more, the parts do not try one by one whether the host is back.
        let is_down = host.failures as usize > self.limits.connections;
        if is_down || !asked.is_zero() {
            host.paused_until = host.paused_until.max(now.saturating_add(asked).saturating_add(delay));
            self.timers.insert((host.paused_until, PlannerTimer::Host(part.host)));
        }
        if part.blocks.is_empty() {
            return;
        }
        if !is_needed && part.failures >= AHEAD_TRIES {
            return self.give_up(&part, None);
        }
        (part.is_running, part.last_failure, part.timer) = (false, Some(failure), now.saturating_add(delay));
        object.add_part(&part.blocks, id);
        self.timers.insert((part.timer, PlannerTimer::Part(id)));
        self.parts.insert(id, part);
    }

    /// Fails the tickets that wait for a part which has ended, and ends the read-ahead there.
    fn give_up(&mut self, part: &PlannedPart, failure: Option<FetchFailure>) {
        self.runs.cut(part.object, part.blocks.start);
        let Some((object, failure)) = self.objects.get(&part.object).zip(failure) else { return };
        let tickets: Vec<_> = object.tickets_in(&part.blocks).map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            self.answer(ticket, PlannerAction::Fail { ticket, failure: failure.clone() });
        }
    }

    /// Starts a failed part again, from its first absent block. Returns `None` if nothing is absent.
    pub(super) fn resume(&mut self, now: Duration, id: PartId) -> Option<PlannerAction> {
        let mut part = self.stop(id)?;
        let present = &self.objects.get(&part.object)?.present;
        let start = present.first_absent(part.blocks.clone())?;
        let end = present.next_after(start).map_or(part.blocks.end, |next| next.min(part.blocks.end));
        // The blocks after those that became present otherwise are left to other parts.
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
        // A part that is to be tried again waits for a connection.
        let Some(part) = self.parts.get_mut(&id).filter(|part| part.is_running) else { return };
        let timer = part.progress_at.max(part.started).saturating_add(self.limits.stall);
        if timer > now {
            part.timer = timer;
            self.timers.insert((timer, PlannerTimer::Part(id)));
        } else {
            self.actions.push_back(PlannerAction::Abort { part: id });
            let failure = FetchFailure::transient("the transfer failed");
            self.failed(now, id, PartFailure { failure, retry: Some(Duration::ZERO) });
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
