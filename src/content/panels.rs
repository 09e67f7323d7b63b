//! Panels of arrays that do not lie in C order.
//!
//! A row of a transposed matrix has elements in every row of the source, and reading a few bytes takes as long as
//! reading a kilobyte. A long read of such an array therefore gathers a whole panel, which is kept for the reads that
//! follow: so many rows that each read of the source gives a kilobyte.

use super::extents::TakeRun;
use super::strided::{CopySpan, StridedData, StridedLayout};
use crate::kept::KeptValues;
use crate::source::{self, Source};
use smallvec::SmallVec;
use std::ops::{Range, RangeInclusive};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError, Weak};

/// Runs at a distance of at most this many bytes are prepared as one.
const GAP_MAX: u64 = 4 << 10;

/// Runs of a panel at a distance of at most this many bytes are prepared as one. A panel has many runs; looking up
/// whether one is in memory takes as long as reading some kilobytes, and remote files are fetched in such blocks.
const PANEL_GAP_MAX: u64 = 64 << 10;

/// Minimum and maximum size of a panel in bytes of the array.
const PANEL: RangeInclusive<u64> = 1 << 20..=16 << 20;

/// Number of bytes that one read of the source gives for a panel, unless the panel becomes too large or too small.
/// Parts whose reads give half as much on average are gathered alone.
const PANEL_READ: u64 = 1 << 10;

/// Maximum size in bytes of all panels that are kept.
const PANELS_MAX: usize = 64 << 20;

/// Shorter parts are gathered alone, since they may be far from each other.
const PANEL_PART_MIN: u64 = 64 << 10;

/// The panels that were used last. Shared by all arrays, so that there is one bound.
static PANELS: LazyLock<KeptValues<PanelKey, Arc<GatheredPanel>>> =
    LazyLock::new(|| KeptValues::new(PANELS_MAX, |panel| panel.len));

/// Identifies a panel: the address of each source and the start of the array there, the layout of the array, and the
/// number of the panel.
type PanelKey = (SmallVec<[(usize, u64); 1]>, Arc<StridedLayout>, u64);

/// A range of an array that is gathered at once.
#[derive(Debug)]
struct GatheredPanel {
    /// In bytes.
    len: usize,
    bytes: OnceLock<Box<[u8]>>,
    /// Locked while the bytes are gathered, so that other readers wait for them and do not gather them too.
    gate: Mutex<()>,
    /// As long as these exist, no other source has the same address.
    _sources: SmallVec<[Weak<dyn Source>; 1]>,
}

impl StridedData {
    /// Fills `buf` with the bytes from `offset` on of the array in C order. They must lie inside the array.
    pub(super) fn fill(&self, buf: &mut [u8], offset: u64) -> Result<(), source::Error> {
        let part = offset..offset + buf.len() as u64;
        if self.has_panels(&part) { self.fill_from_panels(buf, &part) } else { self.fill_alone(buf, offset) }
    }

    /// As [`super::Segment::visit_runs`].
    pub(super) fn visit_runs(&self, part: &Range<u64>, take: &mut TakeRun) -> bool {
        let has_panels = self.has_panels(part);
        match has_panels {
            true => self.visit_panels(part, take),
            false => self.visit_runs_alone(part, GAP_MAX, take),
        }
        !has_panels
    }

    /// As [`Self::fill`], for a part that is read in panels.
    fn fill_from_panels(&self, buf: &mut [u8], part: &Range<u64>) -> Result<(), source::Error> {
        let (mut rest, mut at) = (buf, part.start);
        for number in self.panels(part) {
            let panel = self.panel_range(number);
            let here = panel.start.max(at)..panel.end.min(part.end);
            let (out, more) = rest.split_at_mut((here.end - here.start) as usize);
            let skipped = (here.start - panel.start) as usize;
            match self.panel(number, &panel)?.bytes.get() {
                Some(bytes) => out.copy_from_slice(&bytes[skipped..skipped + out.len()]),
                // There is no memory for the panel.
                None => self.fill_alone(out, here.start)?,
            }
            (rest, at) = (more, here.end);
        }
        Ok(())
    }

    /// As [`Self::visit_runs`], for a part that is read in panels. Kept panels need nothing.
    fn visit_panels(&self, part: &Range<u64>, take: &mut TakeRun) {
        for number in self.panels(part) {
            let is_kept = PANELS.find(&self.key(number)).is_some_and(|panel| panel.bytes.get().is_some());
            if !is_kept {
                self.visit_runs_alone(&self.panel_range(number), PANEL_GAP_MAX, take);
            }
        }
    }

    /// Whether a part of the array, in bytes, is read in panels: it is long, and needs many short reads of the source.
    fn has_panels(&self, part: &Range<u64>) -> bool {
        let len = part.end - part.start;
        if len < PANEL_PART_MIN {
            return false;
        }
        let most = len / (PANEL_READ / 2);
        let mut reads = 0;
        let count = &mut |_, span: CopySpan| {
            reads += span.reads;
            if reads > most { Err(()) } else { Ok(()) }
        };
        self.layout.spans(self.elements(part), count).is_err()
    }

    /// The numbers of the panels that overlap a part, in bytes.
    pub(super) fn panels(&self, part: &Range<u64>) -> Range<u64> {
        let len = self.panel_len();
        part.start / len..part.end.div_ceil(len)
    }

    /// A panel, in bytes of the array.
    fn panel_range(&self, number: u64) -> Range<u64> {
        let len = self.panel_len();
        number * len..(number + 1).saturating_mul(len).min(self.layout.nbytes())
    }

    /// Size of all panels except the last one, in bytes: whole rows, where a row is not larger.
    fn panel_len(&self) -> u64 {
        let size = self.layout.size as u64;
        let (least, most) = PANEL.into_inner();
        let row = self.layout.dims.iter().map(|dim| dim.out * size).find(|row| *row <= most).unwrap_or(size);
        let at_once = self.layout.boxes_in_a_row().map_or(size, |boxes| (row / boxes).max(size));
        (PANEL_READ / at_once).max(1).saturating_mul(row).clamp(least, most).max(row) / row * row
    }

    fn key(&self, number: u64) -> PanelKey {
        let places = self.places.iter().map(|place| (Arc::as_ptr(&place.source).addr(), place.start));
        (places.collect(), self.layout.clone(), number)
    }

    /// A panel, which is gathered unless it was, or there is no memory for it.
    fn panel(&self, number: u64, range: &Range<u64>) -> Result<Arc<GatheredPanel>, source::Error> {
        let len = (range.end - range.start) as usize;
        let _sources = self.places.iter().map(|place| Arc::downgrade(&place.source)).collect();
        let (bytes, gate) = Default::default();
        let panel = PANELS.find_or_keep(self.key(number), Arc::new(GatheredPanel { len, bytes, gate, _sources }));
        if panel.bytes.get().is_some() {
            return Ok(panel);
        }
        let gate = panel.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        if panel.bytes.get().is_none() && bytes.try_reserve_exact(len).is_ok() {
            bytes.resize(len, 0);
            self.gather(self.elements(range), &mut bytes)?;
            _ = panel.bytes.set(bytes.into());
        }
        drop(gate);
        Ok(panel)
    }
}
