//! Requests of clients: an operation runs at once if it need not wait, and otherwise is parked and runs again.

use super::attr::Error;
use crate::content::{self, ReadRequest, WaitFor};
use crate::schedule::{ScheduledJob, Scheduler};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An operation that answers a request of a client. `C` is what all operations of a server share.
pub trait RequestOperation<C>: Send + Sync {
    type Reply: Send;
    type Output;

    /// Runs the operation. It fails if it has to wait and `request` does not allow that, and then runs again. Only
    /// lists are written to `reply` by parts, all other results by [`RequestOperation::answer`].
    fn run(&self, context: &C, request: &ReadRequest, reply: &ReplySlot<Self::Reply>) -> Result<Self::Output, Error>;

    fn answer(&self, context: &Arc<C>, result: Result<Self::Output, Error>, reply: Self::Reply);
}

/// A client that waits for a reply.
pub trait WaitingClient<R>: Send + Sync {
    /// Whether the client no longer waits. `reply` is the way to the client, if it was not used yet.
    fn has_left(&self, reply: Option<&R>) -> bool;
}

/// A reply, until it is sent. The result of an operation or its cancellation takes it, whichever comes first.
pub struct ReplySlot<R>(Mutex<Option<R>>);

impl<R> ReplySlot<R> {
    /// The reply, if it was not sent yet.
    pub fn lock(&self) -> MutexGuard<'_, Option<R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An operation that waits, with the client and the way to it.
struct ParkedRequest<C, O: RequestOperation<C>, W> {
    context: Arc<C>,
    operation: O,
    reply: ReplySlot<O::Reply>,
    client: W,
}

impl<C, O: RequestOperation<C>, W> ParkedRequest<C, O, W> {
    fn end(&self, result: Result<O::Output, Error>) {
        let reply = self.reply.lock().take();
        if let Some(reply) = reply {
            self.operation.answer(&self.context, result, reply);
        }
    }
}

impl<C, O, W> ScheduledJob for ParkedRequest<C, O, W>
where
    C: Send + Sync,
    O: RequestOperation<C>,
    W: WaitingClient<O::Reply>,
{
    fn run(&self, request: &ReadRequest) -> Option<WaitFor> {
        let result = self.operation.run(&self.context, request, &self.reply);
        let wait = result.as_ref().err().and_then(Error::waits_for);
        if wait.is_none() {
            self.end(result);
        }
        wait
    }

    fn is_cancelled(&self) -> bool {
        self.client.has_left(self.reply.lock().as_ref())
    }

    fn cancel(&self) {
        self.end(Err(content::Error::Interrupted.into()));
    }
}

/// Runs an operation on this thread and sends its result to the client. If it has to wait, it is parked, with the
/// client that `client` returns.
pub fn serve_request<C, O, W>(
    scheduler: &Scheduler,
    context: &Arc<C>,
    operation: O,
    reply: O::Reply,
    client: impl FnOnce() -> W,
) where
    C: Send + Sync + 'static,
    O: RequestOperation<C, Reply: 'static> + 'static,
    W: WaitingClient<O::Reply> + 'static,
{
    let reply = ReplySlot(Mutex::new(Some(reply)));
    let result = operation.run(context, &ReadRequest::NOWAIT, &reply);
    match result.as_ref().err().and_then(Error::waits_for) {
        Some(wait) => {
            let client = client();
            scheduler.park(Arc::new(ParkedRequest { context: context.clone(), operation, reply, client }), wait);
        }
        None => {
            // Nobody else has seen the reply, so no lock is needed.
            if let Some(reply) = reply.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
                operation.answer(context, result, reply);
            }
        }
    }
}
