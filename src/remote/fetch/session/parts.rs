//! The part of the session that fetches: carries out what the planner decides, and tells it what is in the cache.

use super::{Input, Open, Part, Session};
use crate::remote::cache::{self, Evicted, Object, Written};
use crate::remote::fetch::trouble::Trouble;
use crate::remote::planner::{Action, BLOCK, Event, ObjectId, PartId, TicketId, Why};
use crate::remote::protocol::Failed;
use crate::remote::transport::{self, Client};
use std::ops::{ControlFlow, Range};
use tokio::sync::mpsc;

impl Session {
    /// Which blocks are in the cache is reported to the planner first, so that it fetches what is absent and nothing
    /// else. It may be wrong about a block that was evicted before the end of its transfer was handled.
    pub(super) fn need(&mut self, ticket: TicketId, object: ObjectId, range: Range<u64>, within: Range<u64>) {
        if let Err(error) = self.report_blocks(object, &range) {
            return self.answer(ticket, Err((Failed::Transient, error.to_string())));
        }
        self.event(Event::Need { ticket, object, range, within });
    }

    /// Reports to the planner which blocks of a range are in the cache, and which are not.
    pub(super) fn report_blocks(&mut self, object: ObjectId, range: &Range<u64>) -> Result<(), cache::Error> {
        let Some(open) = self.objects.get(&object.0) else { return Ok(()) };
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK).min(open.local.blocks());
        let mut at = blocks.start;
        for present in open.local.has(blocks.clone())? {
            self.event(Event::Evicted { object, blocks: at..present.start });
            at = present.end;
            self.event(Event::Present { object, blocks: present });
        }
        self.event(Event::Evicted { object, blocks: at..blocks.end });
        Ok(())
    }

    pub(super) fn forget(&mut self, evicted: Vec<Evicted>) {
        for Evicted { object, blocks } in evicted {
            let found = self.objects.iter().filter(|(_, open)| open.local == object);
            let numbers: Vec<u32> = found.map(|(number, _)| *number).collect();
            for number in numbers {
                self.event(Event::Evicted { object: ObjectId(number), blocks: blocks.clone() });
            }
        }
    }

    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Fetch { part, object, range } => self.fetch(part, object, range),
            Action::Abort { part } => {
                if let Some(Part { object, range, abort, .. }) = self.parts.remove(&part) {
                    abort.abort();
                    // What it has completed stays. An error here is an error of the next read.
                    let _ = self.report_blocks(object, &range);
                }
            }
            Action::Ready { ticket } => self.answer(ticket, Ok(())),
            Action::Fail { ticket, why } => {
                let failed = match why {
                    Why::Part(part) => self.trouble(part),
                    Why::TimedOut { last } => {
                        let last = last.map(|part| format!(": {}", self.trouble(part).1)).unwrap_or_default();
                        (Failed::Transient, format!("nothing arrived for {} s{last}", self.timeout.as_secs_f32()))
                    }
                    Why::NotOpen => (Failed::Lasting, "not open".into()),
                    Why::TooMany => (Failed::Transient, "too many reads wait already".into()),
                };
                self.answer(ticket, Err(failed));
            }
            Action::Trigger { object, block } => {
                if let Some(open) = self.objects.get(&object.0) {
                    open.local.set_trigger(block);
                }
            }
        }
    }

    pub(super) fn trouble(&self, part: PartId) -> (Failed, String) {
        self.troubles.get(&part).cloned().unwrap_or((Failed::Transient, "the transfer failed".into()))
    }

    pub(super) fn fetch(&mut self, part: PartId, object: ObjectId, range: Range<u64>) {
        let Some(Open { remote, local, .. }) = self.objects.get(&object.0) else { return };
        let (remote, local) = (remote.clone(), local.clone());
        let (client, inputs) = (self.client.clone(), self.inputs.clone());
        let missing = range.end - range.start;
        let pending: u64 = self.parts.values().map(|part| part.missing).sum();
        match self.cache.make_room(pending + missing) {
            Ok(room) => {
                // Without room, nothing is fetched ahead.
                self.planner.limit_ahead(if room.lacking > 0 { 0 } else { self.ahead_total });
                self.forget(room.evicted);
            }
            Err(error) => log::warn!("{error}"),
        }
        let wanted = range.clone();
        let task = tokio::spawn(async move {
            let Some(remote) = remote else {
                let _ = inputs.send(Input::Failed { part, trouble: Trouble::Absent });
                return;
            };
            let transferred = transfer(&client, &remote, &local, part, range, &inputs).await;
            let _ = inputs.send(match transferred {
                Ok(()) => Input::Finished { part },
                Err(trouble) => Input::Failed { part, trouble },
            });
        });
        self.parts.insert(part, Part { object, range: wanted, abort: task.abort_handle(), missing });
    }
}

/// Fetches the absent blocks of a part, and reports the bytes of all of its blocks in their order.
async fn transfer(
    client: &Client,
    remote: &transport::Object,
    local: &Object,
    part: PartId,
    range: Range<u64>,
    inputs: &mpsc::UnboundedSender<Input>,
) -> Result<(), Trouble> {
    let send = |input| match inputs.send(input) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    let present = local.has(range.start / BLOCK..range.end.div_ceil(BLOCK)).map_err(Trouble::Cache)?;
    let present = present.into_iter().map(|blocks| blocks.start * BLOCK..(blocks.end * BLOCK).min(range.end));
    let mut at = range.start;
    for present in present.chain(std::iter::once(range.end..range.end)) {
        let mut trouble = None;
        if at < present.start {
            // A connection that broke inside a block has left the start of the block.
            let held = local.held(at / BLOCK);
            if held > 0 && send(Input::Skipped { part, bytes: held }).is_continue() {
                at += held;
            }
            let mut incoming = local.incoming(at..present.start);
            client
                .fetch(remote, at..present.start, &mut |bytes| match incoming.write(bytes) {
                    Ok(Written { evicted, .. }) => send(Input::Received { part, bytes: bytes.len() as u64, evicted }),
                    Err(error) => {
                        trouble = Some(Trouble::Cache(error));
                        ControlFlow::Break(())
                    }
                })
                .await
                .map_err(Trouble::Transport)?;
        }
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        if send(Input::Skipped { part, bytes: present.end - present.start }).is_break() {
            return Ok(());
        }
        at = present.end;
    }
    Ok(())
}
