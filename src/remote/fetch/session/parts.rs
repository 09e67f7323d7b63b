//! Starts and ends the transfers that the planner decides on, and tells the planner which blocks the cache has.

use super::{FetchPart, FetchSession, LoopInput, ServedObject};
use crate::remote::cache::{self, CachedObject};
use crate::remote::planner::{BLOCK, ObjectId, PartFailure, PartId, PlannerAction, PlannerEvent, TicketId};
use crate::remote::transport::{self, TransportClient};
use crate::source::FetchFailure;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use tokio::sync::mpsc;

impl FetchSession {
    /// The blocks in the cache are reported to the planner first, so that it fetches what is absent and nothing
    /// else. It may be wrong about a block that was evicted before the end of its transfer was handled.
    pub(super) fn need(&mut self, ticket: TicketId, object: ObjectId, range: Range<u64>, within: Range<u64>) {
        if let Err(error) = self.report_blocks(object, &range) {
            return self.answer(ticket, Err(FetchFailure::transient(error.to_string())));
        }
        self.event(PlannerEvent::Need { ticket, object, range, within });
    }

    /// Reports to the planner which blocks of a range are in the cache, and which are not.
    pub(super) fn report_blocks(&mut self, object: ObjectId, range: &Range<u64>) -> Result<(), cache::CacheError> {
        let Some(open) = self.objects.get(&object.0) else { return Ok(()) };
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK).min(open.local.blocks);
        let mut at = blocks.start;
        for present in open.local.has(blocks.clone())? {
            self.event(PlannerEvent::Evicted { object, blocks: at..present.start });
            at = present.end;
            self.event(PlannerEvent::Present { object, blocks: present });
        }
        self.event(PlannerEvent::Evicted { object, blocks: at..blocks.end });
        Ok(())
    }

    /// Reports to the planner what was evicted since the last call.
    pub(super) fn report_evicted(&mut self) {
        for (object, blocks) in self.cache.take_evicted() {
            let found = self.objects.iter().filter(|(_, open)| Arc::ptr_eq(&open.local, &object));
            let numbers: Vec<u32> = found.map(|(number, _)| *number).collect();
            for number in numbers {
                self.event(PlannerEvent::Evicted { object: ObjectId(number), blocks: blocks.clone() });
            }
        }
    }

    pub(super) fn act(&mut self, action: PlannerAction) {
        match action {
            PlannerAction::Fetch { part, object, range } => self.fetch(part, object, range),
            PlannerAction::Abort { part } => {
                if let Some(FetchPart { object, range, abort, .. }) = self.parts.remove(&part) {
                    abort.abort();
                    // Complete blocks stay. An error here is an error of the next read.
                    let _ = self.report_blocks(object, &range);
                }
            }
            PlannerAction::Ready { ticket } => self.answer(ticket, Ok(())),
            PlannerAction::Fail { ticket, failure } => self.answer(ticket, Err(failure)),
            PlannerAction::Trigger { object, block } => {
                if let Some(open) = self.objects.get(&object.0) {
                    open.local.set_trigger(block);
                }
            }
        }
    }

    pub(super) fn fetch(&mut self, part: PartId, object: ObjectId, range: Range<u64>) {
        let Some(ServedObject { remote, local, .. }) = self.objects.get(&object.0) else { return };
        let (remote, local) = (remote.clone(), local.clone());
        let (client, inputs) = (self.client.clone(), self.inputs.clone());
        match self.cache.make_room(self.planner.in_flight()) {
            Ok(room) => {
                // Without room, nothing is fetched ahead.
                self.planner.limit_ahead(if room.lacking > 0 { 0 } else { self.ahead_total });
                self.report_evicted();
            }
            Err(error) => log::warn!("{error}"),
        }
        let wanted = range.clone();
        let task = tokio::spawn(async move {
            let transferred = transfer(&client, &remote, &local, part, range, &inputs).await;
            let _ = inputs.send(LoopInput::Part(match transferred {
                Ok(()) => PlannerEvent::Finished { part },
                Err(failure) => PlannerEvent::Failed { part, failure },
            }));
        });
        self.parts.insert(part, FetchPart { object, range: wanted, abort: task.abort_handle() });
    }
}

/// Fetches the absent blocks of a part, and reports the bytes of all of its blocks in their order.
async fn transfer(
    client: &TransportClient,
    remote: &transport::ServerObject,
    local: &CachedObject,
    part: PartId,
    range: Range<u64>,
    inputs: &mpsc::UnboundedSender<LoopInput>,
) -> Result<(), PartFailure> {
    let send = |event| match inputs.send(LoopInput::Part(event)) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    let present = local.has(range.start / BLOCK..range.end.div_ceil(BLOCK))?;
    let present = present.into_iter().map(|blocks| blocks.start * BLOCK..(blocks.end * BLOCK).min(range.end));
    let mut at = range.start;
    for present in present.chain(std::iter::once(range.end..range.end)) {
        let mut failure = None;
        if at < present.start {
            // A connection that broke inside a block has left the start of the block.
            let held = local.held(at / BLOCK);
            if held > 0 && send(PlannerEvent::Skipped { part, bytes: held }).is_continue() {
                at += held;
            }
            let mut incoming = local.incoming(at..present.start);
            client
                .fetch(remote, at..present.start, &mut |bytes| match incoming.write(bytes) {
                    Ok(_) => send(PlannerEvent::Received { part, bytes: bytes.len() as u64 }),
                    Err(error) => {
                        failure = Some(error);
                        ControlFlow::Break(())
                    }
                })
                .await?;
        }
        if let Some(error) = failure {
            return Err(error.into());
        }
        if send(PlannerEvent::Skipped { part, bytes: present.end - present.start }).is_break() {
            return Ok(());
        }
        at = present.end;
    }
    Ok(())
}
