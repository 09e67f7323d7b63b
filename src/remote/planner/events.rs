//! Takes in events of the reader and of the store: tickets, reads and present blocks.

use super::runs::{PlannedRead, RunKey};
use super::{BLOCK, ObjectId, Planner, PlannerAction, PlannerEvent, PlannerTicket, PlannerTimer, TicketId};
use super::{PlannedHost, PlannedObject};
use crate::source::FetchFailure;
use std::ops::Range;
use std::time::Duration;

impl Planner {
    /// Updates the plan after an event. `now` never decreases.
    pub fn handle(&mut self, now: Duration, event: PlannerEvent) {
        match event {
            PlannerEvent::Opened { object, len, host } => {
                self.hosts.entry(host).or_insert_with(PlannedHost::unmeasured);
                self.objects.entry(object).or_insert_with(|| PlannedObject::new(len, host));
            }
            PlannerEvent::Closed { object } => self.close(object),
            PlannerEvent::Need { ticket, object, range, within } => self.need(now, ticket, object, &range, &within),
            PlannerEvent::Cancel { ticket } => self.cancel(ticket),
            PlannerEvent::Touched { object, range, within } => {
                let Some(found) = self.objects.get(&object) else { return };
                let blocks = found.blocks_of(&range);
                let within = found.blocks_of(&within);
                if !blocks.is_empty() {
                    self.read(now, PlannedRead { object, blocks, within, is_lost: false });
                }
            }
            PlannerEvent::Present { object, blocks } => {
                let Some(found) = self.objects.get_mut(&object) else { return };
                let blocks = blocks.start..blocks.end.min(found.blocks());
                if !blocks.is_empty() {
                    found.present.insert(blocks.clone());
                    self.arrived(object, &blocks);
                }
            }
            PlannerEvent::Evicted { object, blocks } => {
                let Some(found) = self.objects.get_mut(&object) else { return };
                found.present.remove(blocks.clone());
                self.enqueue(object, &blocks);
            }
            PlannerEvent::Received { part, bytes } => self.received(now, part, bytes, true),
            PlannerEvent::Skipped { part, bytes } => self.received(now, part, bytes, false),
            PlannerEvent::Finished { part } => self.finished(now, part),
            PlannerEvent::Failed { part, failure } => self.failed(now, part, failure),
        }
    }

    fn need(&mut self, now: Duration, ticket: TicketId, object: ObjectId, range: &Range<u64>, within: &Range<u64>) {
        if self.tickets.contains_key(&ticket) {
            return;
        }
        let Some(found) = self.objects.get_mut(&object) else {
            return self.actions.push_back(not_open(ticket));
        };
        let is_single = within.is_empty();
        let (blocks, within) = (found.blocks_of(range), found.blocks_of(within));
        if blocks.is_empty() {
            return self.actions.push_back(PlannerAction::Ready { ticket });
        }
        let is_free = found.first_free(blocks.clone()).is_some();
        if found.present.first_absent(blocks.clone()).is_none() {
            self.actions.push_back(PlannerAction::Ready { ticket });
        } else if self.tickets.len() >= self.limits.tickets {
            let failure = FetchFailure::transient("too many reads wait already");
            return self.actions.push_back(PlannerAction::Fail { ticket, failure });
        } else {
            found.add_ticket(&blocks, ticket);
            let (age, timer) = (self.number(), now.saturating_add(self.limits.timeout));
            self.tickets
                .insert(ticket, PlannerTicket { object, blocks: blocks.clone(), is_single, age, since: now, timer });
            self.timers.insert((timer, PlannerTimer::Ticket(ticket)));
            if is_free {
                self.enqueue(object, &blocks);
            }
        }
        if !is_single {
            self.read(now, PlannedRead { object, blocks, within, is_lost: is_free });
        }
    }

    /// Registers a read, and extends the read-ahead of its run.
    fn read(&mut self, now: Duration, read: PlannedRead) {
        let object = read.object;
        let Some(found) = self.objects.get(&object) else { return };
        let Some(key) = self.runs.read(read, &found.present, now) else { return };
        while let Some(idle) = self.runs.idle(now, &self.limits).filter(|idle| *idle != key) {
            self.forget(idle);
        }
        let random = self.random();
        let Some(found) = self.objects.get(&object) else { return };
        let Some(host) = self.hosts.get_mut(&found.host) else { return };
        let cost = host.request_cost() / BLOCK;
        let Some(ahead) = self.runs.extend(key, &self.limits, cost, random) else { return };
        host.ahead.insert(key);
        for range in found.present.ranges_in(&ahead) {
            self.set_triggers(object, &range);
        }
    }

    /// Answers tickets after blocks became present.
    pub(super) fn arrived(&mut self, object: ObjectId, blocks: &Range<u64>) {
        // Before the reader continues.
        self.set_triggers(object, blocks);
        let Some(found) = self.objects.get(&object) else { return };
        let waiting = found.tickets_in(blocks);
        let ready = waiting.filter(|(_, range)| found.present.first_absent(range.clone()).is_none());
        for ticket in ready.map(|(ticket, _)| ticket).collect::<Vec<_>>() {
            self.answer(ticket, PlannerAction::Ready { ticket });
        }
    }

    fn set_triggers(&mut self, object: ObjectId, present: &Range<u64>) {
        let triggers = self.runs.set_triggers(object, present).into_iter();
        self.actions.extend(triggers.map(|block| PlannerAction::Trigger { object, block }));
    }

    /// Makes the tickets that wait for blocks of a range wait for a part.
    pub(super) fn enqueue(&mut self, object: ObjectId, blocks: &Range<u64>) {
        let Some(found) = self.objects.get(&object) else { return };
        let Some(host) = self.hosts.get_mut(&found.host) else { return };
        let ages = found.tickets_in(blocks).filter_map(|(id, _)| Some((self.tickets.get(&id)?.age, id)));
        host.queue.extend(ages);
    }

    /// Ends a ticket. Returns its object and blocks.
    fn take_ticket(&mut self, id: TicketId) -> Option<(ObjectId, Range<u64>)> {
        let ticket = self.tickets.remove(&id)?;
        self.timers.remove(&(ticket.timer, PlannerTimer::Ticket(id)));
        if let Some(object) = self.objects.get_mut(&ticket.object) {
            object.remove_ticket(&ticket.blocks, id);
            if let Some(host) = self.hosts.get_mut(&object.host) {
                host.queue.remove(&(ticket.age, id));
            }
        }
        Some((ticket.object, ticket.blocks))
    }

    pub(super) fn answer(&mut self, ticket: TicketId, answer: PlannerAction) {
        if self.take_ticket(ticket).is_some() {
            self.actions.push_back(answer);
        }
    }

    /// The reader of a ticket has gone, so its run ends too.
    fn cancel(&mut self, ticket: TicketId) {
        let Some((object, blocks)) = self.take_ticket(ticket) else { return };
        if let Some((key, _)) = self.runs.before((object, blocks.start)).filter(|(_, run)| blocks.start < run.end) {
            self.forget(key);
        }
        self.abort_unwanted(object, &blocks);
    }

    /// Ends a run and its read-ahead.
    fn forget(&mut self, key: RunKey) {
        if let Some(ahead) = self.runs.forget(key) {
            let host = self.objects.get(&key.0).map(|object| object.host);
            if let Some(host) = host.and_then(|host| self.hosts.get_mut(&host)) {
                host.ahead.remove(&key);
            }
            self.abort_unwanted(key.0, &ahead);
        }
    }

    /// Fails a ticket if it has timed out.
    pub(super) fn check_ticket(&mut self, id: TicketId, now: Duration) {
        let Some(ticket) = self.tickets.get(&id) else { return };
        let Some(object) = self.objects.get(&ticket.object) else { return };
        let Some(host) = self.hosts.get(&object.host) else { return };
        let part = object.present.first_absent(ticket.blocks.clone()).and_then(|block| object.part_at(block));
        let part = part.and_then(|(_, part)| self.parts.get(&part));
        let last = part.and_then(|part| part.last_failure.as_ref()).or(host.last_failure.as_ref());
        // If it waits for a connection, what counts is whether the others receive anything.
        let progress_at = part.map_or(host.progress_at, |part| part.progress_at);
        let timer = progress_at.max(ticket.since).saturating_add(self.limits.timeout);
        if timer <= now {
            let last = last.map(|last| format!(": {}", last.reason)).unwrap_or_default();
            let seconds = self.limits.timeout.as_secs_f32();
            let failure = FetchFailure::transient(format!("nothing arrived for {seconds} s{last}"));
            let Some((object, blocks)) = self.take_ticket(id) else { return };
            self.actions.push_back(PlannerAction::Fail { ticket: id, failure });
            self.abort_unwanted(object, &blocks);
        } else if let Some(ticket) = self.tickets.get_mut(&id) {
            ticket.timer = timer;
            self.timers.insert((timer, PlannerTimer::Ticket(id)));
        }
    }

    fn close(&mut self, object: ObjectId) {
        let Some(found) = self.objects.get(&object) else { return };
        let all = 0..found.blocks();
        let tickets: Vec<TicketId> = found.tickets_in(&all).map(|(ticket, _)| ticket).collect();
        let parts = found.parts_in(&all);
        for ticket in tickets {
            self.answer(ticket, not_open(ticket));
        }
        for part in parts {
            self.abort(part);
        }
        self.runs.close(object);
        self.objects.remove(&object);
    }
}

fn not_open(ticket: TicketId) -> PlannerAction {
    PlannerAction::Fail { ticket, failure: FetchFailure::lasting("not open") }
}
