//! Connections to a server: set-up, slow start, a bandwidth for each and one for all, and faults.
//!
//! A new connection costs two round trips (TCP, TLS 1.3), and each request one more. Then the server sends the initial
//! window of 10 segments, and twice as much in each further round trip until the bandwidth of the connection is reached
//! (slow start). A connection that was idle for a time starts with the initial window again, as Linux servers do. The
//! link sends the data of all connections in turn, in chunks of at most 64 KiB. Packet loss is not modelled.

use super::Random;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

const CHUNK: u64 = 64 << 10;
const INITIAL_WINDOW: u64 = 14_600;

#[derive(Debug, Clone)]
pub struct Network {
    pub rtt: Duration,
    /// Bytes per second of the link.
    pub link: f64,
    /// Bytes per second of one connection.
    pub connection: f64,
    pub faults: Faults,
}

/// What goes wrong.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Probability that a connection is reset instead of sending a chunk.
    pub reset: f64,
    /// Probability that a request sends nothing any more after its first chunk.
    pub stall: f64,
    /// The server refuses requests beyond this number in a second, and asks to wait for this time.
    pub rate: Option<(u64, Duration)>,
    /// All connections are reset and refused between these times.
    pub outage: Option<(Duration, Duration)>,
}

impl Network {
    pub fn new(rtt_ms: u64, gbit: f64) -> Self {
        let rtt = Duration::from_millis(rtt_ms);
        Self { rtt, link: gbit * 125e6, connection: 100e6, faults: Faults::default() }
    }
}

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Received(u64),
    Reset,
    Refused(Duration),
}

#[derive(Debug, Clone, Copy)]
struct Connection {
    window: u64,
    idle_since: Duration,
}

#[derive(Debug)]
struct Request {
    left: u64,
    connection: Connection,
    /// What may still be sent in this round trip, and when it started.
    round_left: u64,
    round_start: Duration,
    /// When the chunk in flight was sent, and its size.
    chunk: u64,
    is_first: bool,
    stalls: bool,
    is_held: bool,
    is_parked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Refuse,
    Send,
    Arrive,
}

/// The state of a network.
#[derive(Debug)]
pub struct Wire {
    network: Network,
    random: Random,
    idle: Vec<Connection>,
    requests: BTreeMap<u64, Request>,
    steps: BinaryHeap<Reverse<(Duration, u64, u64, Step)>>,
    count: u64,
    link_free: Duration,
    second: u64,
    in_second: u64,
    pub sent: u64,
    pub total_requests: u64,
    pub most: usize,
}

impl Wire {
    pub fn new(network: Network, seed: u64) -> Self {
        let (idle, requests, steps) = Default::default();
        let (count, link_free, second, in_second) = Default::default();
        let (sent, total_requests, most) = Default::default();
        let random = Random(seed);
        Self { network, random, idle, requests, steps, count, link_free, second, in_second, sent, total_requests, most }
    }

    fn step(&mut self, at: Duration, id: u64, step: Step) {
        self.count += 1;
        self.steps.push(Reverse((at, self.count, id, step)));
    }

    /// Sends a request for a number of bytes. Numbers of requests are not used again.
    pub fn request(&mut self, now: Duration, id: u64, bytes: u64) {
        self.total_requests += 1;
        let rtt = self.network.rtt;
        let (mut connection, set_up) = match self.idle.pop() {
            Some(connection) => (connection, Duration::ZERO),
            None => (Connection { window: INITIAL_WINDOW, idle_since: now }, 2 * rtt),
        };
        if now - connection.idle_since > (2 * rtt).max(Duration::from_millis(200)) {
            connection.window = INITIAL_WINDOW;
        }
        let answer = now + set_up + rtt;
        if now.as_secs() != self.second {
            (self.second, self.in_second) = (now.as_secs(), 0);
        }
        self.in_second += 1;
        let is_refused = self.network.faults.rate.is_some_and(|(most, _)| self.in_second > most);
        let stalls = self.random.chance(self.network.faults.stall);
        let (round_left, is_first) = (connection.window, true);
        let (is_held, is_parked) = (false, false);
        let round_start = answer;
        let request = Request {
            left: bytes,
            connection,
            round_left,
            round_start,
            chunk: 0,
            is_first,
            stalls,
            is_held,
            is_parked,
        };
        self.requests.insert(id, request);
        self.most = self.most.max(self.requests.len());
        self.step(answer, id, if is_refused { Step::Refuse } else { Step::Send });
    }

    /// Closes the connection of a request.
    pub fn abort(&mut self, id: u64) {
        self.requests.remove(&id);
    }

    /// Makes the server stop sending, because the receiver does not read.
    pub fn hold(&mut self, id: u64) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.is_held = true;
        }
    }

    pub fn release(&mut self, now: Duration, id: u64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        request.is_held = false;
        if std::mem::take(&mut request.is_parked) {
            self.step(now, id, Step::Send);
        }
    }

    pub fn next_at(&self) -> Option<Duration> {
        self.steps.peek().map(|Reverse((at, ..))| *at)
    }

    /// Handles the next step.
    pub fn advance(&mut self) -> Option<(u64, Report)> {
        let Reverse((now, _, id, step)) = self.steps.pop()?;
        let faults = self.network.faults.clone();
        let request = self.requests.get_mut(&id)?;
        if faults.outage.is_some_and(|(from, to)| from <= now && now < to) {
            self.requests.remove(&id);
            self.idle.clear();
            return Some((id, Report::Reset));
        }
        match step {
            Step::Refuse => {
                let connection = Connection { idle_since: now, ..request.connection };
                self.requests.remove(&id);
                self.idle.push(connection);
                Some((id, Report::Refused(faults.rate?.1)))
            }
            Step::Send if request.is_held => {
                request.is_parked = true;
                None
            }
            Step::Send => {
                if self.random.chance(faults.reset) {
                    self.requests.remove(&id);
                    return Some((id, Report::Reset));
                }
                if request.stalls && !request.is_first {
                    return None;
                }
                request.is_first = false;
                let chunk = request.left.min(CHUNK).min(request.round_left);
                request.chunk = chunk;
                let paced = Duration::from_secs_f64(chunk as f64 / self.network.connection);
                let sent = self.link_free.max(now) + Duration::from_secs_f64(chunk as f64 / self.network.link);
                self.link_free = sent;
                self.step(sent.max(now + paced), id, Step::Arrive);
                None
            }
            Step::Arrive => {
                let chunk = request.chunk;
                request.left -= chunk;
                request.round_left -= chunk;
                self.sent += chunk;
                let mut next = now;
                if request.round_left == 0 {
                    let is_slow =
                        (request.connection.window as f64) < self.network.connection * self.network.rtt.as_secs_f64();
                    if is_slow {
                        request.connection.window *= 2;
                        next = next.max(request.round_start + self.network.rtt);
                    }
                    request.round_left = request.connection.window.max(CHUNK.min(request.connection.window));
                    request.round_start = next;
                }
                if request.left > 0 {
                    self.step(next, id, Step::Send);
                }
                Some((id, Report::Received(chunk)))
            }
        }
    }

    /// Whether a request has received everything. It ends then.
    pub fn end(&mut self, now: Duration, id: u64) -> bool {
        let is_done = self.requests.get(&id).is_some_and(|request| request.left == 0);
        if is_done && let Some(request) = self.requests.remove(&id) {
            self.idle.push(Connection { idle_since: now, ..request.connection });
        }
        is_done
    }
}
