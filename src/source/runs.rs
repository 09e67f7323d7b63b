//! Runs of bytes of equal length, at equal distances: see [`super::Source::read_runs_at`].

/// The parts of a buffer that the runs fill, and where each run starts.
pub(super) fn each_run(buf: &mut [u8], len: usize, offset: u64, step: u64) -> impl Iterator<Item = (&mut [u8], u64)> {
    let starts = (0..).map(move |run: u64| offset.saturating_add(run.saturating_mul(step)));
    buf.chunks_mut(len).zip(starts)
}

/// The end of the last run.
pub(super) fn end(buf: &[u8], len: usize, offset: u64, step: u64) -> u64 {
    let before = buf.len().div_ceil(len).saturating_sub(1);
    let last = (buf.len() - before * len) as u64;
    offset.saturating_add(step.saturating_mul(before as u64)).saturating_add(last)
}
