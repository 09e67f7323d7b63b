//! Reads Parquet files in a process of its own: the library panics on many damaged files, and allocates what they ask
//! for.
//!
//! The process is this program again, under another name. It gets the bytes of one file through standard input, writes
//! its rows to standard output as lines of JSON, and has no other files.

use super::descriptors;
use anyhow::{Context, ensure};
use nix::sys::resource::{Resource, setrlimit};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, ListAccessor, Row, RowAccessor};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use weightfs::inspect::check::IndexRow;
use weightfs::source::Source;

pub const NAME: &str = "weightfs-parquet";

/// Maximum size of a file in bytes. A million tensors take about 50 MB.
const LEN_MAX: u64 = 1 << 30;

/// Maximum size of the memory of the process in bytes, with the file.
const MEMORY_MAX: u64 = 6 << 30;

/// Maximum processor time of the process in seconds.
const TIME_MAX: u64 = 300;

/// Maximum size of a name in bytes, and of a shape.
const TEXT_MAX: usize = 1 << 20;
const RANK_MAX: usize = 1024;

/// Number of bytes that are passed at a time.
const STEP: u64 = 1 << 20;

/// A line of the output: a row, or why the file cannot be read.
type ParquetLine = Result<IndexRow, String>;

/// Passes the rows of the index of tensors in `source` to `each` until that returns false. Fails with the reason.
pub fn rows(source: &dyn Source, each: &mut dyn FnMut(&IndexRow) -> bool) -> Result<(), String> {
    if source.len() > LEN_MAX {
        return Err(format!("it has {} bytes; up to {LEN_MAX} are read", source.len()));
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("cannot start {NAME}: {error}"))?;
    let passed = receive_lines(source, &mut child, each);
    // After an error, it may still be at work.
    let _ = child.kill();
    let _ = child.wait();
    passed
}

fn receive_lines(
    source: &dyn Source,
    child: &mut Child,
    each: &mut dyn FnMut(&IndexRow) -> bool,
) -> Result<(), String> {
    let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
        return Err(format!("{NAME} has no standard input and output"));
    };
    std::thread::scope(|scope| {
        let sent = scope.spawn(|| send(source, stdin));
        let lines = serde_json::Deserializer::from_reader(BufReader::new(stdout)).into_iter::<ParquetLine>();
        let received = lines.map_while(Result::ok).try_for_each(|line| match each(&line?) {
            true => Ok(()),
            false => Err("it has many more rows than there are tensors".to_owned()),
        });
        // The thread does not panic: a panic ends the program.
        sent.join().unwrap_or(Ok(())).and(received)?;
        match child.wait().is_ok_and(|status| status.success()) {
            true => Ok(()),
            false => Err("it is damaged: the Parquet reader crashed or exceeded a limit".into()),
        }
    })
}

/// Passes the bytes of the file. The process may have ended already: then its output says why.
fn send(source: &dyn Source, mut stdin: ChildStdin) -> Result<(), String> {
    let mut at = 0;
    while at < source.len() {
        let end = (at + STEP).min(source.len());
        let bytes = source.bytes(at..end).map_err(|error| error.to_string())?;
        if stdin.write_all(&bytes).is_err() {
            break;
        }
        at = end;
    }
    Ok(())
}

pub fn run_parquet_reader() -> anyhow::Result<()> {
    descriptors::close_others(&[]);
    for (resource, limit) in
        [(Resource::RLIMIT_AS, MEMORY_MAX), (Resource::RLIMIT_CPU, TIME_MAX), (Resource::RLIMIT_CORE, 0)]
    {
        setrlimit(resource, limit, limit).context("setrlimit")?;
    }
    let mut file = Vec::new();
    io::stdin().read_to_end(&mut file)?;
    let mut out = BufWriter::new(io::stdout().lock());
    if let Err(error) = write_rows(file, &mut out) {
        let reason = format!("it is damaged, or no index of tensors: {error:#}");
        serde_json::to_writer(&mut out, &ParquetLine::Err(reason))?;
    }
    Ok(out.flush()?)
}

fn write_rows(file: Vec<u8>, out: &mut impl Write) -> anyhow::Result<()> {
    let reader = SerializedFileReader::new(bytes::Bytes::from(file))?;
    for row in reader.get_row_iter(None)? {
        serde_json::to_writer(&mut *out, &ParquetLine::Ok(parse_row(&row?)?))?;
    }
    Ok(())
}

/// The columns of `SafetensorsBatchWrite.writeTensorIndex`, in any order.
fn parse_row(row: &Row) -> anyhow::Result<IndexRow> {
    let shape = row.get_list(column(row, "shape")?)?;
    ensure!(shape.len() <= RANK_MAX, "a shape of {} dimensions", shape.len());
    let dimensions = shape.elements().iter().enumerate();
    let dimensions = dimensions.map(|(at, field)| match field {
        Field::Int(dimension) => Ok(*dimension),
        // The error names the type.
        _ => Ok(shape.get_int(at)?),
    });
    Ok(IndexRow {
        tensor_key: text(row, "tensor_key")?,
        file_name: text(row, "file_name")?,
        shape: dimensions.collect::<anyhow::Result<_>>()?,
        dtype: text(row, "dtype")?,
    })
}

fn text(row: &Row, name: &str) -> anyhow::Result<String> {
    let text = row.get_string(column(row, name)?)?;
    ensure!(text.len() <= TEXT_MAX, "a text of {} bytes in the column {name}", text.len());
    Ok(text.clone())
}

fn column(row: &Row, name: &str) -> anyhow::Result<usize> {
    let found = row.get_column_iter().position(|(column, _)| column == name);
    found.with_context(|| format!("there is no column {name}"))
}
