//! Operations on the file system, which never run on the threads that serve connections.

use crate::content::{self, ReadRequest, WaitFor};
use crate::fs::{self, Superblock};
use crate::schedule::{ScheduledJob, Scheduler};
use crate::threads::cores;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A file system and the scheduler of the operations that have to wait.
#[derive(Debug)]
pub(super) struct SiteWork {
    superblock: Superblock,
    scheduler: Scheduler,
}

impl SiteWork {
    /// `memory` is the memory limit of the process in bytes, if there is one.
    pub fn new(superblock: Superblock, memory: Option<u64>) -> Self {
        Self { superblock, scheduler: Scheduler::new(cores(), memory) }
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Starts an operation. Returns its result; dropping that cancels the operation.
    ///
    /// It runs on a thread that may wait for local files. If it has to wait for something else, it is parked, and runs
    /// again when it can continue.
    pub fn run<T, O>(self: &Arc<Self>, operation: O) -> impl Future<Output = Result<T, fs::Error>> + Send + use<T, O>
    where
        T: Send + 'static,
        O: Fn(&Superblock, &ReadRequest) -> Result<T, fs::Error> + Send + Sync + 'static,
    {
        let (reply, result) = oneshot::channel();
        let job = Arc::new(WaitingOperation { work: self.clone(), operation, reply: Mutex::new(Some(reply)) });
        tokio::task::spawn_blocking(move || {
            if let Some(wait) = job.run(&ReadRequest::NOWAIT) {
                job.work.clone().scheduler.park(job, wait);
            }
        });
        // The operation was dropped without a result only if the server ends.
        async { result.await.unwrap_or_else(|_| Err(content::Error::Interrupted.into())) }
    }
}

/// An operation whose result somebody waits for.
struct WaitingOperation<T, O> {
    work: Arc<SiteWork>,
    operation: O,
    /// `None` after the result was sent.
    reply: Mutex<Option<oneshot::Sender<Result<T, fs::Error>>>>,
}

impl<T, O> WaitingOperation<T, O> {
    fn reply(&self) -> MutexGuard<'_, Option<oneshot::Sender<Result<T, fs::Error>>>> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_left(&self) -> bool {
        self.reply().as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    fn end(&self, result: Result<T, fs::Error>) {
        if let Some(reply) = self.reply().take() {
            // Nobody waits any more if this fails.
            let _ = reply.send(result);
        }
    }
}

impl<T, O> ScheduledJob for WaitingOperation<T, O>
where
    T: Send,
    O: Fn(&Superblock, &ReadRequest) -> Result<T, fs::Error> + Send + Sync,
{
    fn run(&self, request: &ReadRequest) -> Option<WaitFor> {
        let is_left = || self.is_left();
        let result = (self.operation)(&self.work.superblock, &request.cancelled_by(&is_left));
        let wait = result.as_ref().err().and_then(fs::Error::waits_for);
        if wait.is_none() {
            self.end(result);
        }
        wait
    }

    fn is_cancelled(&self) -> bool {
        self.is_left()
    }

    fn cancel(&self) {
        self.end(Err(content::Error::Interrupted.into()));
    }
}
