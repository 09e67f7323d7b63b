//! Threads for work that takes long: knows how many there may be, not what they do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Threads that take work in the order in which it comes, started as they are needed.
#[derive(Debug)]
pub struct Workers {
    sender: Sender<Work>,
    receiver: Arc<Mutex<Receiver<Work>>>,
    started: AtomicUsize,
    /// Work that is there or under way.
    wanted: Arc<AtomicUsize>,
    most: usize,
}

type Work = Box<dyn FnOnce() + Send>;

impl Workers {
    /// At most so many threads.
    pub fn new(most: usize) -> Self {
        let (sender, receiver) = channel();
        let (started, wanted) = Default::default();
        Self { sender, receiver: Arc::new(Mutex::new(receiver)), started, wanted, most }
    }

    /// Has one of the threads do `work`; this one does it where none is to be had.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        let wanted = self.wanted.fetch_add(1, Ordering::Relaxed) + 1;
        let started = self.started.load(Ordering::Relaxed);
        if wanted > started && started < self.most {
            let (receiver, wanted) = (self.receiver.clone(), self.wanted.clone());
            let thread = std::thread::Builder::new().name("long work".into());
            match thread.spawn(move || serve(&receiver, &wanted)) {
                Ok(_) => drop(self.started.fetch_add(1, Ordering::Relaxed)),
                Err(error) => log::warn!("no more than {started} threads for long work: {error}"),
            }
        }
        if self.started.load(Ordering::Relaxed) == 0 {
            self.wanted.fetch_sub(1, Ordering::Relaxed);
            return work();
        }
        if let Err(refused) = self.sender.send(Box::new(work)) {
            (refused.0)();
        }
    }
}

/// Cores that this process may use, by its group of processes too. That is looked up in files, once, at the first call.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Threads that help with work of which there is more than one part, over all such work.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

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
    let cores = cores();
    let help = || {
        take();
        HELPERS.fetch_sub(1, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for _ in 1..cores.min(count) {
            // No more of them than cores, however many ask. This thread works too, so that none need be had.
            if HELPERS.fetch_add(1, Ordering::Relaxed) >= cores
                || std::thread::Builder::new().spawn_scoped(scope, help).is_err()
            {
                HELPERS.fetch_sub(1, Ordering::Relaxed);
                break;
            }
        }
        take();
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

fn serve(receiver: &Mutex<Receiver<Work>>, wanted: &AtomicUsize) {
    loop {
        // The lock is let go before the work begins.
        let work = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(work) = work else { return };
        work();
        wanted.fetch_sub(1, Ordering::Relaxed);
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
        assert_eq!(workers.started.load(Ordering::Relaxed), 3);
        drop(hold);
    }

    #[test]
    fn without_threads_the_caller_works() {
        let (sender, receiver) = channel();
        Workers::new(0).run(move || sender.send(7).unwrap());
        assert_eq!(receiver.recv(), Ok(7));
    }
}
