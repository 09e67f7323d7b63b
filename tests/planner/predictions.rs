//! Prints the tables of predicted times in docs/performance.md.

use crate::simulation::network::Network;
use crate::simulation::{Outcome, job, naive, world};
use weightfs::remote::planner::PlannerLimits;

const GBITS: [f64; 3] = [1.0, 10.0, 100.0];

/// Seconds at the three bandwidths, with three digits.
fn seconds(times: [f64; 3]) -> String {
    times.map(|time| if time < 10.0 { format!("{time:.2}") } else { format!("{time:.0}") }).join(" / ")
}

/// The requests and the bytes at 10 Gbit/s.
fn cost(outcomes: &[Outcome; 3]) -> String {
    format!("{} | {:.1}", outcomes[1].requests, outcomes[1].bytes as f64 / 1e6)
}

#[test]
#[ignore = "prints the tables of docs/performance.md"]
fn predictions() {
    for rtt in [5, 30, 150] {
        println!("\n### {rtt} ms\n");
        println!("| job | ideal, s | weightfs, s | requests | MB | one stream, s | requests | MB |");
        println!("|---|---|---|--:|--:|---|--:|--:|");
        for job in job::all() {
            let networks = GBITS.map(|gbit| Network::new(rtt, gbit));
            let ideal = networks.each_ref().map(|network| job.ideal(network).as_secs_f64());
            let planned = networks.each_ref().map(|network| world::run(&job, network, &PlannerLimits::default()));
            let naive = networks.each_ref().map(|network| naive::run(&job, network));
            let time = |outcomes: &[Outcome; 3]| seconds(outcomes.each_ref().map(Outcome::seconds));
            println!(
                "| {} | {} | {} | {} | {} | {} |",
                job.name,
                seconds(ideal),
                time(&planned),
                cost(&planned),
                time(&naive),
                cost(&naive)
            );
        }
    }
}
