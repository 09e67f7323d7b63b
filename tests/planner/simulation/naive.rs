//! Runs a job with a simple client: a connection for each open file, ranges of 128 MiB that double, and a buffer of
//! 16 MiB. A read elsewhere aborts the request and starts a new one. `rclone mount` without a cache works in this way.

use super::Outcome;
use super::job::{Job, MOUNT, Reader};
use super::network::{Network, Report, Wire};
use std::time::Duration;

const CHUNK: u64 = 128 << 20;
const BUFFER: u64 = 16 << 20;

struct Handle<'a> {
    reader: &'a Reader,
    at: usize,
    busy_until: Option<Duration>,
    /// The request in flight, where its next byte goes, and where it ends.
    request: Option<u64>,
    object: u32,
    /// Where the stream started.
    begin: u64,
    position: u64,
    end: u64,
    chunk: u64,
    is_held: bool,
}

pub fn run(job: &Job, network: &Network) -> Outcome {
    let mut wire = Wire::new(network.clone(), 3);
    let handle = |reader| Handle {
        reader,
        at: 0,
        busy_until: None,
        request: None,
        object: 0,
        begin: u64::MAX,
        position: u64::MAX,
        end: 0,
        chunk: CHUNK,
        is_held: false,
    };
    let mut handles: Vec<_> = job.readers.iter().map(handle).collect();
    let (mut now, mut number) = (Duration::ZERO, 0);
    loop {
        for handle in &mut handles {
            step(handle, now, job, &mut wire, &mut number);
        }
        if handles.iter().all(|handle| handle.at == handle.reader.accesses.len()) {
            break;
        }
        let starts = handles.iter().map(|handle| handle.reader.start).filter(|start| *start > now);
        let busy = handles.iter().filter_map(|handle| handle.busy_until);
        let next_wire = wire.next_at();
        now = starts.chain(busy).chain(next_wire).min().expect("a job that is not done has an event").max(now);
        if next_wire == Some(now)
            && let Some((id, Report::Received(bytes))) = wire.advance()
            && let Some(handle) = handles.iter_mut().find(|handle| handle.request == Some(id))
        {
            handle.position += bytes;
            if wire.end(now, id) {
                handle.request = None;
            }
        }
    }
    let (requests, connections) = (wire.total_requests, wire.most);
    Outcome { time: now, requests, bytes: wire.sent, connections, ..Outcome::default() }
}

fn step(handle: &mut Handle, now: Duration, job: &Job, wire: &mut Wire, number: &mut u64) {
    if now < handle.reader.start {
        return;
    }
    if handle.busy_until.is_some_and(|until| until <= now) {
        handle.busy_until = None;
        handle.at += 1;
    }
    let Some(access) = handle.reader.accesses.get(handle.at) else { return };
    let is_here = handle.object == access.object
        && handle.begin <= access.range.start
        && handle.position >= access.range.start
        && handle.position <= access.range.end + BUFFER;
    if !is_here {
        if let Some(request) = handle.request.take() {
            wire.abort(request);
        }
        (handle.object, handle.position, handle.chunk) = (access.object, access.range.start, CHUNK);
        (handle.begin, handle.end) = (handle.position, handle.position);
    }
    if handle.busy_until.is_none() && handle.position >= access.range.end {
        let time = Duration::from_secs_f64((access.range.end - access.range.start) as f64 / MOUNT);
        handle.busy_until = Some(now + time.max(Duration::from_nanos(1)));
    }
    let is_full = handle.position >= access.range.end + BUFFER;
    match handle.request {
        Some(request) if is_full != handle.is_held => {
            if is_full {
                wire.hold(request)
            } else {
                wire.release(now, request)
            }
            handle.is_held = is_full;
        }
        None if !is_full => {
            let len = job.objects[access.object as usize];
            let end = (handle.position + handle.chunk).min(len);
            if handle.position < end {
                *number += 1;
                wire.request(now, *number, end - handle.position);
                (handle.request, handle.end, handle.is_held) = (Some(*number), end, false);
                handle.chunk *= 2;
            }
        }
        _ => {}
    }
}
