//! Operations on the file system, which never run on the threads that serve connections.

use crate::content::{self, ReadRequest};
use crate::fs::{self, ReplySlot, RequestOperation, Superblock, WaitingClient};
use crate::schedule::Scheduler;
use crate::threads::cores;
use std::sync::Arc;
use tokio::sync::oneshot;

/// A file system and the scheduler of the operations that have to wait.
#[derive(Debug)]
pub(super) struct SiteWork {
    superblock: Superblock,
    scheduler: Scheduler,
}

pub(super) trait SiteOperation: Send + Sync + 'static {
    type Output: Send + 'static;

    /// Runs the operation, again if it had to wait.
    fn run(&self, superblock: &Superblock, request: &ReadRequest) -> Result<Self::Output, fs::Error>;
}

type ResultSender<T> = oneshot::Sender<Result<T, fs::Error>>;

impl<O: SiteOperation> RequestOperation<SiteWork> for O {
    type Reply = ResultSender<O::Output>;
    type Output = O::Output;

    fn run(
        &self,
        work: &SiteWork,
        request: &ReadRequest,
        _: &ReplySlot<Self::Reply>,
    ) -> Result<Self::Output, fs::Error> {
        SiteOperation::run(self, &work.superblock, request)
    }

    fn answer(&self, _: &Arc<SiteWork>, result: Result<Self::Output, fs::Error>, reply: Self::Reply) {
        // Nobody waits any more if this fails.
        let _ = reply.send(result);
    }
}

/// The receiver of a result. It has left if it was dropped.
struct ResultReceiver;

impl<T: Send> WaitingClient<ResultSender<T>> for ResultReceiver {
    fn has_left(&self, reply: Option<&ResultSender<T>>) -> bool {
        reply.is_none_or(oneshot::Sender::is_closed)
    }
}

impl SiteWork {
    /// `memory` is the memory limit of the process in bytes, if there is one.
    pub fn new(superblock: Superblock, memory: Option<u64>) -> Self {
        Self { superblock, scheduler: Scheduler::new(cores(), memory) }
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Starts an operation on a thread that may wait for local files. Dropping the result cancels it.
    pub fn start<O: SiteOperation>(
        self: &Arc<Self>,
        operation: O,
    ) -> impl Future<Output = Result<O::Output, fs::Error>> + Send + use<O> {
        let (reply, result) = oneshot::channel();
        let work = self.clone();
        tokio::task::spawn_blocking(move || {
            fs::serve_request(&work.scheduler, &work, operation, reply, || ResultReceiver);
        });
        // The operation was dropped without a result only if the server ends.
        async { result.await.unwrap_or_else(|_| Err(content::Error::Interrupted.into())) }
    }
}
