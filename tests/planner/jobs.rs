//! Jobs over simulated networks: ratios to the ideal, requests and bytes. Everything is deterministic.
use crate::simulation::job::{self, Job};
use crate::simulation::network::Network;
use crate::simulation::{Outcome, naive, world};
use std::time::Duration;
use weightfs::remote::planner::{BLOCK, PlannerLimits};

/// The most bytes that are fetched ahead of a reader beyond four times what it has read.
const LEAD: u64 = 16 << 20;

fn run(job: &Job, rtt: u64, gbit: f64) -> (Outcome, f64) {
    let network = Network::new(rtt, gbit);
    let outcome = world::run(job, &network, &PlannerLimits::default());
    assert_eq!(outcome.failed, 0, "{}", job.name);
    let ratio = outcome.seconds() / job.ideal(&network).as_secs_f64();
    (outcome, ratio)
}

fn at(outcome: &Outcome) -> String {
    format!("{:.3} s, {} requests, {} bytes", outcome.seconds(), outcome.requests, outcome.bytes)
}

/// The most times of the ideal that a job may take at 5 and 30 ms and 1 and 10 Gbit/s, and the most requests.
fn check(job: &Job, ratios: [[f64; 2]; 2], requests: u64) {
    for (rtt, ratios) in [5, 30].into_iter().zip(ratios) {
        for (gbit, most) in [1.0, 10.0].into_iter().zip(ratios) {
            let (outcome, ratio) = run(job, rtt, gbit);
            assert!(ratio <= most, "{} at {rtt} ms, {gbit} Gbit/s: {ratio:.2} > {most}, {}", job.name, at(&outcome));
            assert!(outcome.requests <= requests, "{} at {rtt} ms, {gbit} Gbit/s: {}", job.name, at(&outcome));
        }
    }
}

#[test]
fn opening_takes_one_request_for_each_file() {
    let (outcome, _) = run(&job::open_one(), 30, 10.0);
    assert_eq!(outcome.requests, 1);
    check(&job::open_shards(), [[1.1, 3.2], [2.2, 5.2]], 160);
    let (outcome, _) = run(&job::open_shards(), 30, 10.0);
    assert!(outcome.seconds() < 0.6, "{}", at(&outcome));
}

#[test]
fn tensor_costs_its_bytes() {
    for job in [job::tensor(1), job::tensor(4), job::tensor(16), job::tensor_at_once(), job::backward(), job::faults()]
    {
        for rtt in [5, 30, 150] {
            let (outcome, _) = run(&job, rtt, 10.0);
            assert!(outcome.bytes as f64 <= 1.02 * job.bytes() as f64, "{}: {}", job.name, at(&outcome));
        }
    }
    let (outcome, _) = run(&job::tiny_tensor(), 30, 1.0);
    assert!(outcome.requests == 1 && outcome.bytes <= 2 * BLOCK, "{}", at(&outcome));
}

#[test]
fn tensor_is_read_near_the_ideal_on_slow_links() {
    check(&job::tensor(1), [[1.1, 2.0], [1.5, 3.2]], 32);
    check(&job::tensor(4), [[1.1, 2.0], [1.4, 3.1]], 24);
    check(&job::tensor(16), [[1.1, 2.0], [1.4, 3.2]], 32);
    check(&job::tensor_at_once(), [[1.15, 2.1], [1.4, 3.0]], 16);
}

#[test]
fn tensor_takes_at_most_half_the_time_of_one_connection() {
    let network = Network::new(30, 10.0);
    let one = naive::run(&job::tensor_at_once(), &network).seconds();
    let (outcome, _) = run(&job::tensor_at_once(), 30, 10.0);
    assert!(outcome.seconds() <= 0.52 * one, "{}, {one}", at(&outcome));
}

#[test]
fn model_is_read_near_the_ideal_with_few_requests() {
    check(&job::whole_file(), [[1.05, 1.25], [1.05, 1.5]], 120);
    check(&job::four_readers(), [[1.05, 1.2], [1.05, 2.0]], 150);
}

#[test]
fn tensors_in_any_order_are_read_near_the_ideal() {
    check(&job::copy_tensors(), [[1.1, 1.8], [1.2, 1.8]], 1400);
    check(&job::loader(), [[1.1, 2.3], [1.4, 2.9]], 1400);
}

#[test]
fn small_tensors_cost_no_more_requests_than_blocks() {
    check(&job::small_tensors(), [[1.2, 1.2], [1.1, 1.1]], 125);
    check(&job::adjacent_tensors(), [[1.2, 1.2], [1.1, 1.1]], 63);
}

#[test]
fn strided_reads_fetch_little_else() {
    for rows in [4 << 10, 64 << 10, 128 << 10, 200 << 10, 1 << 20] {
        for stride in [2, 3, 4, 8, 16] {
            for depth in [1, 4, 16] {
                let job = job::rows(rows, stride * rows.max(BLOCK), 200, depth);
                let (outcome, _) = run(&job, 30, 1.0);
                // The first row starts the tensor, so what a reader of the tensor needs next is fetched once. Later on,
                // at most as much as the rows is fetched for nothing.
                let most = job.block_bytes() as f64 * 2.0 + LEAD as f64;
                assert!(outcome.bytes as f64 <= most, "{}: {} of {most}", job.name, at(&outcome));
            }
        }
    }
}

#[test]
fn reader_that_stops_wastes_at_most_what_it_may() {
    let job = job::abandoned();
    let tensors = 10;
    for (rtt, gbit) in [(5, 1.0), (30, 1.0), (30, 10.0), (150, 10.0)] {
        let (outcome, _) = run(&job, rtt, gbit);
        let wasted = outcome.bytes - job.bytes();
        assert!(wasted <= 4 * job.bytes() + tensors * LEAD, "{rtt} ms, {gbit} Gbit/s: {}", at(&outcome));
        // After the first tensor it is known that requests cost little time.
        assert!(rtt > 5 || wasted <= 4 * job.bytes() + LEAD, "{rtt} ms, {gbit} Gbit/s: {}", at(&outcome));
    }
}

#[test]
fn rows_cost_at_most_as_much_again() {
    const MIB: u64 = 1 << 20;
    for (rtt, gbit) in [(5, 1.0), (30, 1.0), (30, 10.0), (150, 10.0)] {
        for len in [256 << 10, MIB, 16 * MIB, 512 * MIB] {
            let job = job::slice(len);
            let (outcome, _) = run(&job, rtt, gbit);
            let wasted = outcome.bytes - job.bytes();
            let lead = if len > MIB { LEAD } else { 4 * MIB };
            assert!(wasted <= len.min(64 * MIB) + lead, "{rtt} ms, {gbit} Gbit/s: {len}, {}", at(&outcome));
        }
    }
    check(&job::slice(512 << 20), [[1.05, 1.35], [1.1, 2.2]], 300);
}

#[test]
fn scattered_needs_are_coalesced() {
    // 252 faults and 400 rows.
    let (outcome, _) = run(&job::deep_faults(), 30, 10.0);
    assert!(outcome.requests <= 150, "{}", at(&outcome));
    let (outcome, _) = run(&job::gather(), 30, 10.0);
    assert!(outcome.requests <= 150, "{}", at(&outcome));
}

#[test]
fn small_reads_do_not_wait_for_read_ahead() {
    for (rtt, gbit, most) in [(5, 1.0, 30), (30, 1.0, 75), (30, 10.0, 65), (150, 1.0, 310)] {
        let (outcome, _) = run(&job::mixed(), rtt, gbit);
        let worst = outcome.answers[1].windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
        assert!(worst <= Duration::from_millis(most), "{rtt} ms, {gbit} Gbit/s: {worst:?}");
    }
}

#[test]
fn connections_are_bounded() {
    for job in job::all() {
        let limits = PlannerLimits { connections: 5, ..PlannerLimits::default() };
        let outcome = world::run(&job, &Network::new(5, 10.0), &limits);
        assert!(outcome.connections <= 5 && outcome.failed == 0, "{}: {}", job.name, outcome.connections);
    }
}

/// Runs a job over a network with faults.
fn faulty(job: &Job, change: impl Fn(&mut Network)) -> Outcome {
    let mut network = Network::new(30, 1.0);
    change(&mut network);
    let outcome = world::run(job, &network, &PlannerLimits::default());
    assert_eq!(outcome.failed, 0, "{}", job.name);
    outcome
}

#[test]
fn resets_cost_little() {
    let ideal = faulty(&job::whole_file(), |_| ()).seconds();
    // One in 500 chunks: a reset every 30 MB.
    let outcome = faulty(&job::whole_file(), |network| network.faults.reset = 0.002);
    assert!(outcome.seconds() < 1.15 * ideal, "{}, {ideal}", at(&outcome));
    assert!(outcome.bytes < job::whole_file().bytes() / 100 * 101, "{}", at(&outcome));
    assert!(outcome.requests < 250, "{}", at(&outcome));
}

#[test]
fn outage_is_survived_with_few_requests() {
    let calm = faulty(&job::whole_file(), |_| ());
    let outage = Some((Duration::from_secs(2), Duration::from_secs(12)));
    let outcome = faulty(&job::whole_file(), |network| network.faults.outage = outage);
    assert!(outcome.seconds() < calm.seconds() + 10.0 + 12.0, "{}", at(&outcome));
    assert!(outcome.requests < 260, "{}, {}", at(&outcome), at(&calm));
}

#[test]
fn rate_limit_is_obeyed() {
    let rate = Some((20, Duration::from_secs(2)));
    let outcome = faulty(&job::open_shards(), |network| network.faults.rate = rate);
    // 20 requests in each period of 2 seconds are answered, and those in flight are refused.
    assert!(outcome.seconds() < 22.0 && outcome.requests < 160 + 8 * 16, "{}", at(&outcome));
}

#[test]
fn stalled_connections_delay_but_do_not_fail() {
    let outcome = faulty(&job::whole_file(), |network| network.faults.stall = 0.02);
    assert!(outcome.seconds() < 60.0, "{}", at(&outcome));
    assert!(outcome.requests < 200, "{}", at(&outcome));
}
