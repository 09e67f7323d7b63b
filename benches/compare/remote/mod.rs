//! Remote sources: weightfs beside rclone and curl, at an nginx of this machine.
//!
//! `programs.rs` has the models and runs the programs, `server.rs` counts what they ask for, `delay.rs` adds latency,
//! and `table.rs` prints the results. This file has the patterns, as `patterns.rs` has those of local files.

mod delay;
mod programs;
mod server;
mod table;

use crate::Args;
use crate::patterns::Bound::{self, AtLeast, AtMost};
use crate::reads::{Target as ReadTarget, Way};
use crate::systems::{Site, end, within};
use Against::{Curl, Limit, Local, Rclone};
use anyhow::{Context, ensure};
use programs::{Client, FILE, INDEX, LARGEST, LIMITED, Models, Mount, Program, TENSOR, family};
use server::Server;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use table::{Sample, Table};

/// The latencies that are added: the round trip, in milliseconds.
const LATENCIES: [u64; 2] = [0, 30];

/// The time after which a pattern is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is done with a program, and the rows of its results.
struct Pattern {
    programs: &'static [Program],
    /// Those of [`LATENCIES`] at which it is run.
    latencies: &'static [u64],
    rows: &'static [Row],
    /// Returns a value for each row, or none where the program has none.
    run: fn(&Client) -> anyhow::Result<Vec<Option<f64>>>,
}

struct Row {
    name: &'static str,
    unit: Unit,
    targets: &'static [Target],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Milliseconds.
    Ms,
    /// 10^9 bytes per second.
    GBs,
    /// 10^6 bytes.
    MB,
    /// A number of requests.
    Count,
    /// Bytes that the server sent, divided by bytes that were read.
    Ratio,
}

/// A value that weightfs should reach.
struct Target {
    against: Against,
    bound: Bound,
    /// The only latency at which it applies.
    at: Option<u64>,
}

/// What a value of weightfs is divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Against {
    /// The same row of curl.
    Curl,
    /// The same row of rclone, in the cache mode that is better in this round.
    Rclone,
    /// The same row of a local mount.
    Local,
    /// Nothing: the bound is for the value itself.
    Limit,
}

const fn row(name: &'static str, unit: Unit, targets: &'static [Target]) -> Row {
    Row { name, unit, targets }
}

const fn to(against: Against, bound: Bound) -> Target {
    Target { against, bound, at: None }
}

const fn at(latency: u64, against: Against, bound: Bound) -> Target {
    Target { against, bound, at: Some(latency) }
}

const PATTERNS: &[Pattern] = &[
    Pattern {
        programs: &Program::REMOTE,
        latencies: &LATENCIES,
        rows: &[
            row("header", Unit::Ms, &[]),
            row("header: requests", Unit::Count, &[to(Limit, AtMost(2.0))]),
            row("header: sent", Unit::MB, &[]),
        ],
        run: header,
    },
    Pattern {
        programs: &Program::REMOTE,
        latencies: &LATENCIES,
        rows: &[
            row("tensor: mount and read", Unit::Ms, &[at(30, Rclone, AtMost(0.5))]),
            row("tensor: read", Unit::Ms, &[at(30, Rclone, AtMost(0.5))]),
            row("tensor: requests", Unit::Count, &[]),
            row("tensor: sent/read", Unit::Ratio, &[to(Limit, AtMost(1.02))]),
        ],
        run: tensor,
    },
    Pattern {
        programs: &Program::ALL,
        latencies: &LATENCIES,
        rows: &[
            row("whole model", Unit::GBs, &[at(0, Curl, AtLeast(0.5)), at(0, Rclone, AtLeast(2.0))]),
            row("whole: requests", Unit::Count, &[]),
            row("whole: sent/read", Unit::Ratio, &[]),
            row("whole: memory", Unit::MB, &[to(Limit, AtMost(100.0))]),
            row("again: mount", Unit::Ms, &[]),
            row("again: requests", Unit::Count, &[]),
            row("again: sent to mount", Unit::MB, &[]),
            row("again: sent to read", Unit::MB, &[to(Limit, AtMost(0.0))]),
            row("again: whole model", Unit::GBs, &[to(Local, AtLeast(0.9))]),
        ],
        run: whole,
    },
    Pattern {
        programs: &Program::REMOTE,
        latencies: &LATENCIES,
        rows: &[
            row("shards: mount and ls", Unit::Ms, &[at(30, Limit, AtMost(2000.0))]),
            row("shards: requests", Unit::Count, &[]),
            row("shards: sent", Unit::MB, &[]),
        ],
        run: shards,
    },
    limited(&Program::MOUNTS, &[row("pread", Unit::GBs, &[]), row("pread: sent/read", Unit::Ratio, &[])], |client| {
        read_way(client, Way::pread(BLOCK, 1), 1)
    }),
    limited(
        &Program::MOUNTS,
        &[row("pread, 8 threads", Unit::GBs, &[]), row("pread, 8: sent/read", Unit::Ratio, &[])],
        |client| read_way(client, Way::pread(1 << 20, 8), 1),
    ),
    limited(
        &Program::WEIGHTFS,
        &[row("memory map", Unit::GBs, &[]), row("map: sent/read", Unit::Ratio, &[])],
        |client| read_way(client, Way::map(1), 1),
    ),
    limited(
        &Program::WEIGHTFS,
        &[row("map, 8 threads", Unit::GBs, &[]), row("map, 8: sent/read", Unit::Ratio, &[])],
        |client| read_way(client, Way::map(8), 1),
    ),
    limited(
        &Program::MOUNTS,
        &[row("a twelfth by pread", Unit::GBs, &[]), row("a twelfth: sent/read", Unit::Ratio, &[])],
        |client| read_way(client, Way::pread(1 << 20, 1), 12),
    ),
    limited(
        &Program::WEIGHTFS,
        &[row("a twelfth by map", Unit::GBs, &[]), row("a twelfth, map: sent/read", Unit::Ratio, &[])],
        |client| read_way(client, Way::map(1), 12),
    ),
];

/// A way of reading a large tensor over connections of a limited speed.
const fn limited(
    programs: &'static [Program],
    rows: &'static [Row],
    run: fn(&Client) -> anyhow::Result<Vec<Option<f64>>>,
) -> Pattern {
    Pattern { programs, latencies: &[30], rows, run }
}

/// The largest tensor, or one of `parts` of its rows, in the middle.
fn read_way(client: &Client, way: Way, parts: u64) -> anyhow::Result<Vec<Option<f64>>> {
    let models = client.models;
    let place = models.tensors.iter().position(|tensor| tensor.name == LARGEST).context("no tensor")?;
    let mount = client.mount(LIMITED)?;
    let (path, begin) = if client.program.is_rclone() {
        (mount.point.join(file_name(LIMITED)), models.starts[place])
    } else {
        (mount.point.join("tensors").join(LARGEST), 0)
    };
    // What mounting has cost.
    client.count()?;
    let len = models.tensors[place].bytes / parts;
    let start = begin + parts / 2 * len;
    let speed = way.read(&ReadTarget { path, range: start..start + len })?;
    drop(mount);
    Ok(vec![Some(speed), Some(client.count_all()?.bytes as f64 / len as f64)])
}

/// The header of one file.
fn header(client: &Client) -> anyhow::Result<Vec<Option<f64>>> {
    let start = Instant::now();
    let took = if client.program == Program::Curl {
        client.curl(&["-r", &format!("0-{}", client.models.headers[0] - 1), &client.url(FILE)])?;
        ms(start)
    } else if client.program.is_rclone() {
        let mount = client.mount(FILE)?;
        client.inspect(mount.point.join(file_name(FILE)))?;
        ms(start)
    } else {
        client.inspect(client.url(FILE))?;
        ms(start)
    };
    let count = client.count_all()?;
    Ok(vec![Some(took), Some(count.requests as f64), Some(count.bytes as f64 / 1e6)])
}

/// One tensor of 33 MB.
fn tensor(client: &Client) -> anyhow::Result<Vec<Option<f64>>> {
    let models = client.models;
    let place = models.tensors.iter().position(|tensor| tensor.name == TENSOR).context("no tensor")?;
    let (begin, len) = (models.starts[place], models.tensors[place].bytes);
    // Filled, so that reading into it causes no page faults.
    let mut bytes = vec![1; len as usize];
    let start = Instant::now();
    let (took, read) = if client.program == Program::Curl {
        client.curl(&["-r", &format!("{begin}-{}", begin + len - 1), &client.url(FILE)])?;
        (ms(start), None)
    } else {
        let mount = client.mount(FILE)?;
        let mounted = Instant::now();
        let (path, begin) = if client.program.is_rclone() {
            (mount.point.join(file_name(FILE)), begin)
        } else {
            (mount.point.join("tensors").join(TENSOR), 0)
        };
        let file = File::open(path)?;
        for (number, block) in bytes.chunks_mut(BLOCK).enumerate() {
            file.read_exact_at(block, begin + (number * BLOCK) as u64)?;
        }
        let took = (ms(start), Some(ms(mounted)));
        let mut wanted = vec![1; len as usize];
        File::open(models.root.join(FILE))?.read_exact_at(&mut wanted, models.starts[place])?;
        ensure!(bytes == wanted, "the tensor has other bytes than the file");
        took
    };
    let count = client.count_all()?;
    Ok(vec![Some(took), read, Some(count.requests as f64), Some(count.bytes as f64 / len as f64)])
}

/// The whole file, then the same in a second mount.
fn whole(client: &Client) -> anyhow::Result<Vec<Option<f64>>> {
    let mut values = vec![None; 9];
    let len = client.models.len();
    if client.program == Program::Curl {
        let start = Instant::now();
        client.curl(&[&client.url(FILE)])?;
        values[0] = Some(len as f64 / 1e6 / ms(start));
        let count = client.count_all()?;
        values[1] = Some(count.requests as f64);
        values[2] = Some(count.bytes as f64 / len as f64);
        return Ok(values);
    }
    if client.program != Program::Local {
        let mount = client.mount(FILE)?;
        let (speed, memory) = with_memory(client, || read_all(client, &mount))?;
        drop(mount);
        let count = client.count_all()?;
        let firsts = [speed, count.requests as f64, count.bytes as f64 / len as f64, memory];
        values[..4].copy_from_slice(&firsts.map(Some));
    }
    if client.program == Program::Rclone {
        return Ok(values);
    }
    // The cache is read, and not written to the disk at the same time. The local file is clean too.
    nix::unistd::sync();
    let start = Instant::now();
    let mount = client.mount(FILE)?;
    values[4] = Some(ms(start));
    let mounting = client.count()?;
    values[8] = Some(read_all(client, &mount)?);
    drop(mount);
    let reading = client.count_all()?;
    if client.program != Program::Local {
        values[5] = Some((mounting.requests + reading.requests) as f64);
        values[6] = Some(mounting.bytes as f64 / 1e6);
        values[7] = Some(reading.bytes as f64 / 1e6);
    }
    Ok(values)
}

/// A model of many shards, until all tensors are listed. Over rclone, weightfs lists them.
fn shards(client: &Client) -> anyhow::Result<Vec<Option<f64>>> {
    let list = |mount: &Mount| -> anyhow::Result<()> {
        let names =
            std::fs::read_dir(mount.point.join("tensors"))?.try_fold(0, |count, entry| entry.map(|_| count + 1))?;
        ensure!(names == client.models.experts(), "{names} tensors instead of {}", client.models.experts());
        Ok(())
    };
    let start = Instant::now();
    let took = if client.program == Program::Curl {
        let end = client.models.headers[1] - 1;
        let count = client.models.shards;
        let names = client.url(&format!("shards/model-[00001-{count:05}]-of-{count:05}.safetensors"));
        client.curl(&["-Z", "--parallel-max", "16", "-r", &format!("0-{end}"), &names])?;
        ms(start)
    } else {
        let mount = client.mount(INDEX)?;
        let over =
            if client.program.is_rclone() { Some(client.weightfs(mount.point.join(file_name(INDEX)))?) } else { None };
        list(over.as_ref().unwrap_or(&mount))?;
        ms(start)
    };
    let count = client.count_all()?;
    Ok(vec![Some(took), Some(count.requests as f64), Some(count.bytes as f64 / 1e6)])
}

/// The size of reads: that of `cat`.
const BLOCK: usize = 128 << 10;

/// Reads all tensors as `cat tensors/*` does, or with rclone the file. Returns the speed in GB/s.
fn read_all(client: &Client, mount: &Mount) -> anyhow::Result<f64> {
    let files: Vec<PathBuf> = if client.program.is_rclone() {
        vec![mount.point.join(file_name(FILE))]
    } else {
        client.models.tensors.iter().map(|tensor| mount.point.join("tensors").join(&tensor.name)).collect()
    };
    let mut buffer = vec![1; BLOCK];
    let mut total = 0;
    let start = Instant::now();
    for path in files {
        let mut file = File::open(path)?;
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => total += read as u64,
            }
        }
    }
    let took = ms(start);
    let header = if client.program.is_rclone() { 0 } else { client.models.headers[0] };
    ensure!(total + header == client.models.len(), "read {total} bytes");
    Ok(total as f64 / 1e6 / took)
}

/// Runs `work`. Returns its result, and the peak memory of all processes of the program meanwhile, in MB: anonymous and
/// shared memory, but not the pages of mapped files, which belong to the page cache.
fn with_memory(client: &Client, work: impl FnOnce() -> anyhow::Result<f64>) -> anyhow::Result<(f64, f64)> {
    let processes = family(client.cache.path());
    ensure!(!processes.is_empty(), "no process to measure");
    let now = || -> f64 {
        let of = |pid: &u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let kb = |line: &str| line.split_whitespace().nth(1)?.parse::<f64>().ok();
            let counted = |line: &&str| line.starts_with("RssAnon:") || line.starts_with("RssShmem:");
            status.lines().filter(counted).filter_map(kb).sum::<f64>() * 1024.0 / 1e6
        };
        processes.iter().map(of).sum()
    };
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak = now();
            while !done.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(10));
                peak = now().max(peak);
            }
            peak
        });
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let peak = sampler.join().unwrap_or(f64::NAN);
        Ok((worked?, peak))
    })
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Milliseconds since `start`.
fn ms(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / 1e6
}

/// Measures and prints all rows, or those named by `--only`.
pub fn run(args: &Args, cache: &Path, site: &Site, rounds: usize, machine: String) -> anyhow::Result<ExitCode> {
    let models = Models::ready(cache, args.quick)?;
    let nginx = site.scratch.join("nginx");
    std::fs::create_dir(&nginx)?;
    let mut server = Server::start(&models.root, &nginx)?;
    let mut addresses = Vec::new();
    for latency in LATENCIES {
        let round_trip = Duration::from_millis(latency);
        let address = if latency == 0 { server.address } else { delay::proxy(server.address, round_trip)? };
        addresses.push((latency, address, check(address, round_trip)?));
    }
    server.count()?;
    let server = Mutex::new(server);

    let mut table = Table {
        machine,
        rounds,
        first_request: addresses.iter().map(|(latency, _, took)| (*latency, *took)).collect(),
        bytes: models.len(),
        shards: models.shards,
        samples: BTreeMap::new(),
    };
    let is_wanted = |row: &Row| args.only.as_ref().is_none_or(|text| row.name.contains(text.as_str()));
    let wanted: Vec<_> = PATTERNS.iter().filter(|pattern| pattern.rows.iter().any(is_wanted)).collect();
    // A pattern that took too long or failed once with a program is not tried again.
    let mut given_up = BTreeSet::new();
    for round in 0..rounds {
        for (number, pattern) in wanted.iter().enumerate() {
            for (latency, address, _) in addresses.iter().filter(|at| pattern.latencies.contains(&at.0)) {
                for turn in 0..Program::ALL.len() {
                    let turn = if round % 2 == 0 { turn } else { Program::ALL.len() - 1 - turn };
                    let program = Program::ALL[(turn + round) % Program::ALL.len()];
                    let is_here = pattern.programs.contains(&program) && program.is_available();
                    if !is_here || given_up.contains(&(number, *latency, program)) {
                        continue;
                    }
                    eprint!(
                        "\r\x1b[Kround {}/{rounds}, {latency} ms: {}, {}",
                        round + 1,
                        pattern.rows[0].name,
                        program.name()
                    );
                    let samples = match measure(pattern, program, *address, site, &models, &server) {
                        Ok(Some(values)) => {
                            values.into_iter().map(|value| value.map_or(Sample::None, Sample::Value)).collect()
                        }
                        Ok(None) => vec![Sample::Over(PATIENCE.as_secs()); pattern.rows.len()],
                        Err(error) => {
                            eprintln!("\r\x1b[K{}, {latency} ms, {}: {error:#}", pattern.rows[0].name, program.name());
                            vec![Sample::Failed; pattern.rows.len()]
                        }
                    };
                    if samples.iter().any(|sample| matches!(sample, Sample::Over(_) | Sample::Failed)) {
                        given_up.insert((number, *latency, program));
                    }
                    for (row, sample) in pattern.rows.iter().zip(samples) {
                        table.samples.entry((row.name, *latency, program)).or_default().push(sample);
                    }
                }
            }
        }
    }
    eprint!("\r\x1b[K");
    table.print();
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", table.json())).with_context(|| path.display().to_string())?;
    }
    if !args.check {
        return Ok(ExitCode::SUCCESS);
    }
    let misses = table.misses();
    misses.iter().for_each(|miss| println!("missed: {miss}"));
    Ok(ExitCode::from(u8::from(!misses.is_empty())))
}

/// Runs a pattern once with one program, whose caches are empty. `None` if it took too long.
fn measure(
    pattern: &Pattern,
    program: Program,
    address: SocketAddr,
    site: &Site,
    models: &Models,
    server: &Mutex<Server>,
) -> anyhow::Result<Option<Vec<Option<f64>>>> {
    let cache = tempfile::Builder::new().prefix("cache-").tempdir_in(&site.scratch)?;
    let path = cache.path().to_owned();
    let client = Client { program, site, models, server, address, cache };
    let result = within(PATIENCE, || family(&path).into_iter().for_each(end), || (pattern.run)(&client));
    // Requests of a program that was killed are not those of the next one.
    if !matches!(result, Ok(Some(_))) {
        family(&path).into_iter().for_each(end);
        client.count()?;
    }
    result
}

/// Checks the added latency with curl, and returns the milliseconds that the first request on a connection takes.
fn check(address: SocketAddr, round_trip: Duration) -> anyhow::Result<f64> {
    // One round trip for the connection, and one for the request.
    let wanted = 2.0 * round_trip.as_secs_f64() * 1e3;
    let mut fastest = f64::INFINITY;
    for _ in 0..5 {
        let mut command = Command::new("curl");
        command.args(["-qfsS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{time_total}", "-r", "0-7"]);
        let output = command.arg(format!("http://{address}/{FILE}")).output().context("curl")?;
        ensure!(output.status.success(), "curl: {}", String::from_utf8_lossy(&output.stderr));
        fastest = fastest.min(String::from_utf8(output.stdout)?.trim().parse::<f64>()? * 1e3);
    }
    ensure!(fastest >= wanted, "a request takes {fastest} ms instead of at least {wanted}: the proxy is too fast");
    ensure!(
        fastest < wanted * 1.5 + 10.0,
        "a request takes {fastest} ms instead of {wanted}: this machine is too busy"
    );
    Ok(fastest)
}
