//! Threads for work that takes long: knows how many there may be, not what they do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Threads that take work in the order in which it comes. They wait more than they compute: those who compute are elsewhere.
#[derive(Debug)]
pub struct Workers(Sender<Work>);

type Work = Box<dyn FnOnce() + Send>;

impl Workers {
    /// Starts so many threads, or as many as are to be had.
    pub fn new(threads: usize) -> Self {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..threads {
            let receiver = receiver.clone();
            let thread = std::thread::Builder::new().name(format!("long work {number}"));
            if let Err(error) = thread.spawn(move || serve(&receiver)) {
                log::warn!("{number} of {threads} threads for long work started: {error}");
                break;
            }
        }
        Self(sender)
    }

    /// Has one of the threads do `work`; this one does it where there are none.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        if let Err(refused) = self.0.send(Box::new(work)) {
            (refused.0)();
        }
    }
}

/// What `work` makes of each number below `count`, in their order, on every core.
///
/// With threads of its own: in a pool the short work would wait for the long, and work that waits for other work could be
/// taken up by the thread that does that.
pub fn side_by_side<R: Send>(count: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(count)));
    let take = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            let result = work(at);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((at, result));
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..cores.min(count) {
            // This thread works too, so that none need be had.
            let _ = std::thread::Builder::new().spawn_scoped(scope, take);
        }
        take();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn serve(receiver: &Mutex<Receiver<Work>>) {
    loop {
        // The lock is let go before the work begins.
        let work = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match work {
            Ok(work) => work(),
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn short_work_goes_past_long_work() {
        let workers = Workers::new(3);
        let (sender, receiver) = channel();
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..2 {
            let held = held.clone();
            workers.run(move || assert!(held.lock().unwrap().recv().is_err()));
        }
        for at in 0..100 {
            let sender = sender.clone();
            workers.run(move || sender.send(at).unwrap());
        }
        let done: Vec<i32> = (0..100).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        drop(hold);
    }

    #[test]
    fn without_threads_the_caller_works() {
        let (sender, receiver) = channel();
        Workers::new(0).run(move || sender.send(7).unwrap());
        assert_eq!(receiver.recv(), Ok(7));
    }
}
