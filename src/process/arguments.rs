//! Hides secrets in the command line of this process, which other users can read in /proc.

use std::fs::OpenOptions;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Overwrites parts of arguments with asterisks. Each of `secrets` is a whole argument and a range of its bytes. The
/// kernel shows this part of the memory of the process as its command line. Without /proc, nothing can be hidden, and
/// nobody can read the command line.
pub fn hide<'s>(secrets: impl IntoIterator<Item = (&'s str, Range<usize>)>) -> io::Result<()> {
    let secrets: Vec<(&str, Range<usize>)> = secrets.into_iter().filter(|(_, range)| !range.is_empty()).collect();
    if secrets.is_empty() {
        return Ok(());
    }
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program is in parentheses and may contain spaces. The fields after it begin with the third one;
    // the 48th and the 49th are the addresses of the first and of the last byte of the arguments: proc_pid_stat(5).
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).and_then(|field| field.parse::<u64>().ok());
    let (Some(start), Some(end)) = (field(48), field(49)) else { return Err(io::Error::other("/proc/self/stat")) };
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem")?;
    let mut arguments = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or_default()];
    memory.read_exact_at(&mut arguments, start)?;
    // Each argument is followed by NUL.
    for argument in arguments.split_mut(|byte| *byte == 0) {
        // All ranges are found before one is overwritten.
        let found = secrets.iter().filter(|(whole, _)| whole.as_bytes() == argument);
        let ranges: Vec<&Range<usize>> = found.map(|(_, range)| range).collect();
        for range in ranges {
            argument.get_mut(range.clone()).into_iter().for_each(|secret| secret.fill(b'*'));
        }
    }
    memory.write_all_at(&arguments, start)
}
