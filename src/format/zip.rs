//! The directory of a zip archive: which entries it has, and where their bytes are. Does not decompress.
//!
//! Source: APPNOTE.TXT of PKWARE, 6.3.10. The directory at the end of the file is what readers trust. The header before
//! each entry repeats most of it, but torch leaves sizes and checksums there empty. The number of bytes between the two
//! is only in the local header: torch and others pad the data there. It need not be read if no byte is left for
//! padding, or if the archive is known to be written by torch, and the next entry begins where torch would have written
//! it.

use super::input::{HeaderInput, MissingRange};
use crate::text::quote;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// The first bytes of an archive with entries.
pub const MAGIC: &[u8] = b"PK\x03\x04";

/// Maximum size of a directory in bytes: more than half a million entries.
const DIRECTORY_MAX: u64 = 64 << 20;

/// Size of the record at the end of a file without its comment.
const END: u64 = 22;

/// Size of the record that gives the place of the 64-bit end record.
const LOCATOR: u64 = 20;

/// Size of the 64-bit end record.
const END64: u64 = 56;

/// Size of an entry of the directory without its name and the extra fields.
const CENTRAL: usize = 46;

/// Size of a local header without its name and the extra fields.
const LOCAL: u64 = 30;

/// Maximum size of the extra fields of a local header.
const EXTRA_MAX: u64 = u16::MAX as u64;

/// The field of a local header with which torch pads. Source: `caffe2/serialize/inline_container.cc`, `getPadding`.
const PADDING: &[u8] = b"FB";

/// Number of bytes at the end of a file that are read first. Longer comments are not supported.
const TAIL: u64 = 64 << 10;

/// Local headers at most this far apart are read together, in bytes.
const TOGETHER: u64 = 1 << 20;

/// Maximum number of times that local headers are read.
const LOCAL_READS_MAX: usize = 1000;

/// Maximum number of times that local headers are read for a report.
const LOCAL_CHECKS_MAX: usize = 500;

/// Why the entries of an archive cannot be found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZipError {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] MissingRange),
    /// The archive breaks a rule.
    #[error(transparent)]
    Fault(#[from] ZipFault),
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZipFault {
    #[error(
        "zip archive: no directory in the last {TAIL} bytes of {len}: the file is cut short (did a download stop?)"
    )]
    NoEnd { len: u64 },
    #[error(
        "zip archive: its last record says that it ends at byte {end}, but the file ends at byte {len}, so that programs differ \
         in what they read (create the file again)"
    )]
    End { end: u64, len: u64 },
    #[error("zip archive: the record at byte {at} is not a {what}")]
    Signature { at: u64, what: &'static str },
    #[error("zip archive: it is one of several parts, which are not supported")]
    Parts,
    #[error(
        "zip archive: the directory of {size} bytes should begin at byte {offset} and end at byte {end}, where the end \
         record is"
    )]
    Place { offset: u64, size: u64, end: u64 },
    #[error(
        "several zip archives one after the other, as in the .distcp files of torch.distributed.checkpoint (convert them \
         with `python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIRECTORY FILE`)"
    )]
    Several {
        /// Where the last archive would begin by its offsets, in bytes from the start of the file.
        at: u64,
    },
    #[error("zip archive: the directory has {size} bytes; weightfs reads at most {DIRECTORY_MAX}")]
    TooLong { size: u64 },
    #[error("zip archive: the directory has {found} entries, and should have {stated}")]
    Count { found: u64, stated: u64 },
    #[error("zip archive: entry {number} of the directory goes beyond its end")]
    Cut { number: usize },
    #[error("zip archive: entry {} has a 64-bit size or offset, but no field for it", quote(name))]
    NoField { name: String },
    #[error("zip archive: two entries are called {}", quote(name))]
    Twice { name: String },
    #[error("zip archive: entries {} and {} share bytes, from byte {at} on", quote(a), quote(b))]
    Overlap { a: String, b: String, at: u64 },
    #[error("zip archive: the local header of entry {} is not at byte {at}", quote(name))]
    Local { name: String, at: u64 },
    #[error("zip archive: entry {} is called {} in its local header", quote(name), quote(local))]
    Renamed { name: String, local: String },
    #[error(
        "zip archive: entry {}: its {what} is {local} in the local header, and {central} in the directory",
        quote(name)
    )]
    Differs { name: String, what: &'static str, local: u64, central: u64 },
    #[error(
        "zip archive: the {size} bytes of entry {} end at byte {end}, but the next entry begins at byte {next}",
        quote(name)
    )]
    Outside { name: String, size: u64, end: u64, next: u64 },
    #[error("zip archive: entry {} is encrypted", quote(name))]
    Encrypted { name: String },
    #[error(
        "zip archive: entry {} is compressed (method {method}); only stored entries can be read in place",
        quote(name)
    )]
    Compressed { name: String, method: u16 },
    #[error("zip archive: entry {} is stored, but takes {compressed} bytes for {size}", quote(name))]
    Sizes { name: String, compressed: u64, size: u64 },
    #[error(
        "zip archive: the data of entries cannot be found without more than {LOCAL_READS_MAX} reads of local headers"
    )]
    TooManyLocal,
}

/// The entries of an archive.
#[derive(Debug)]
pub struct ZipDirectory {
    names: String,
    /// In the order of the directory.
    entries: Vec<ZipEntry>,
    /// Indices of `entries` in the order of the file, and the place of each entry there.
    order: Vec<u32>,
    places: Vec<u32>,
    /// Offset of the directory, in bytes from the start of the file.
    start: u64,
    /// An entry whose name another one has too.
    repeated: Option<usize>,
}

/// An entry of an archive.
#[derive(Debug, Clone)]
pub struct ZipEntry {
    name: Range<u32>,
    /// Length of the name in the file, in bytes.
    name_len: u16,
    flags: u16,
    method: u16,
    compressed: u64,
    /// Size of the data in bytes.
    pub size: u64,
    /// Offset of the local header, in bytes from the start of the file.
    pub header: u64,
}

/// What a local header gives.
struct LocalHeader {
    name: String,
    flags: u16,
    method: u16,
    compressed: u32,
    size: u32,
    data: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |bytes| u16::from_le_bytes([bytes[0], bytes[1]]))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

/// Whether a file begins with the local header of an entry.
pub fn is_zip(input: &HeaderInput) -> Result<bool, MissingRange> {
    is_entry(input, 0)
}

/// Whether a local header is at an offset, in bytes from the start of the file.
fn is_entry(input: &HeaderInput, at: u64) -> Result<bool, MissingRange> {
    Ok(input.get(at..at.saturating_add(MAGIC.len() as u64))? == MAGIC)
}

/// The number of bytes before the first entry of an archive at the end of a file. `None` if there is no archive, or if
/// it begins with the file. Offsets can count from the start of the file or from that of the archive.
pub fn bytes_before(input: &HeaderInput) -> Result<Option<u64>, MissingRange> {
    let at = match ZipDirectory::read(input) {
        Ok(directory) => directory.in_file_order().next().map(|at| directory.entry(at).header),
        Err(ZipError::Missing(missing)) => return Err(missing),
        Err(ZipError::Fault(ZipFault::Several { at })) => Some(at),
        Err(ZipError::Fault(_)) => None,
    };
    let Some(at) = at.filter(|at| *at > 0) else { return Ok(None) };
    Ok(is_entry(input, at)?.then_some(at))
}

impl ZipDirectory {
    /// Reads the directory at the end of a file. It is read once for an input.
    pub fn read(input: &HeaderInput) -> Result<Arc<Self>, ZipError> {
        input.keep(|| Self::parse(input))
    }

    fn parse(input: &HeaderInput) -> Result<Self, ZipError> {
        let (range, stated) = find_directory(input)?;
        let bytes = input.get(range.clone())?;
        let (mut names, mut entries) = (String::new(), Vec::new());
        let mut at = 0;
        while at < bytes.len() {
            let (entry, len) = entry(&bytes[at..], entries.len(), &mut names)?;
            entries.push(entry);
            at += len;
        }
        if entries.len() as u64 != stated {
            return Err(ZipFault::Count { found: entries.len() as u64, stated }.into());
        }
        let mut order: Vec<u32> = (0..entries.len() as u32).collect();
        order.sort_by_key(|at| entries[*at as usize].header);
        let mut places = vec![0; entries.len()];
        order.iter().enumerate().for_each(|(place, at)| places[*at as usize] = place as u32);
        let mut directory = Self { names, entries, order, places, start: range.start, repeated: None };
        directory.check_overlap()?;
        let mut seen = HashSet::with_capacity(directory.len());
        directory.repeated = (0..directory.len()).find(|at| !seen.insert(directory.name(*at)));
        Ok(directory)
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// An entry.
    pub fn entry(&self, at: usize) -> &ZipEntry {
        &self.entries[at]
    }

    /// The name of an entry, with replacement characters for bytes that are not UTF-8.
    pub fn name(&self, at: usize) -> &str {
        let Range { start, end } = self.entries[at].name;
        &self.names[start as usize..end as usize]
    }

    /// Fails if two entries have the same name.
    pub fn check_names(&self) -> Result<(), ZipFault> {
        self.repeated.map_or(Ok(()), |at| Err(ZipFault::Twice { name: self.name(at).to_owned() }))
    }

    /// The entries in the order of the file.
    pub fn in_file_order(&self) -> impl Iterator<Item = usize> {
        self.order.iter().map(|at| *at as usize)
    }

    /// The end of the space that an entry can take: the next local header, or the directory.
    fn next(&self, at: usize) -> u64 {
        let next = self.order.get(self.places[at] as usize + 1);
        next.map_or(self.start, |next| self.entries[*next as usize].header)
    }

    /// No entry reaches into the next one.
    fn check_overlap(&self) -> Result<(), ZipFault> {
        for at in self.order.iter().map(|at| *at as usize) {
            let compressed = self.entries[at].compressed;
            let end = self.local_end(at).checked_add(compressed);
            let next = self.next(at);
            if end.is_none_or(|end| end > next) {
                let name = |at: usize| self.name(at).to_owned();
                return Err(match self.order.get(self.places[at] as usize + 1) {
                    Some(other) => ZipFault::Overlap { a: name(at), b: name(*other as usize), at: next },
                    None => ZipFault::Outside { name: name(at), size: compressed, end: end.unwrap_or(u64::MAX), next },
                });
            }
        }
        Ok(())
    }

    /// Fails unless an entry is stored as it is.
    pub fn check_stored(&self, at: usize) -> Result<(), ZipFault> {
        let ZipEntry { flags, method, compressed, size, .. } = self.entries[at];
        let name = || self.name(at).to_owned();
        match () {
            () if flags & 1 != 0 => Err(ZipFault::Encrypted { name: name() }),
            () if method != 0 => Err(ZipFault::Compressed { name: name(), method }),
            () if compressed != size => Err(ZipFault::Sizes { name: name(), compressed, size }),
            () => Ok(()),
        }
    }

    /// The range of the data of each of these entries, in bytes from the start of the file, or what is wrong with its
    /// local header. `alignment` is that of the data in an archive that torch has written. Local headers are read only
    /// where the data cannot be found without them.
    pub fn ranges(
        &self,
        input: &HeaderInput,
        wanted: &[usize],
        alignment: Option<u64>,
    ) -> Result<Vec<Result<Range<u64>, ZipFault>>, ZipError> {
        let known: Vec<Option<Range<u64>>> = wanted.iter().map(|at| self.place(*at, alignment)).collect();
        let unknown = wanted.iter().zip(&known).filter(|(_, known)| known.is_none());
        let mut unknown: Vec<usize> = unknown.map(|(at, _)| *at).collect();
        let groups = self.groups(&mut unknown);
        if groups.len() > LOCAL_READS_MAX {
            return Err(ZipFault::TooManyLocal.into());
        }
        groups.into_iter().try_for_each(|(_, group)| input.get(group).map(drop))?;
        let mut found = Vec::with_capacity(wanted.len());
        for (at, known) in wanted.iter().zip(known) {
            found.push(known.map_or_else(|| self.local_range(input, *at), |known| Ok(Ok(known)))?);
        }
        Ok(found)
    }

    /// Sorts entries in the order of the file. Returns ranges of bytes that have their local headers, neighbours
    /// together, each with the place of its first entry in `wanted`.
    fn groups(&self, wanted: &mut [usize]) -> Vec<(usize, Range<u64>)> {
        wanted.sort_unstable_by_key(|at| self.places[*at]);
        let mut groups: Vec<(usize, Range<u64>)> = Vec::new();
        for (place, at) in wanted.iter().enumerate() {
            let (start, end) = (self.entries[*at].header, self.local_end(*at));
            match groups.last_mut() {
                Some((_, group)) if end <= group.start + TOGETHER => group.end = end.max(group.end),
                _ => groups.push((place, start..end)),
            }
        }
        groups
    }

    /// All bytes that the local header of an entry, its data and a descriptor can take.
    pub fn space(&self, at: usize) -> Range<u64> {
        const DESCRIPTOR: u64 = 24;
        let most =
            self.local_end(at).saturating_add(EXTRA_MAX + DESCRIPTOR).saturating_add(self.entries[at].compressed);
        self.entries[at].header..self.next(at).min(most)
    }

    /// The end of the fixed part of a local header and of the name.
    pub fn local_end(&self, at: usize) -> u64 {
        let ZipEntry { header, name_len, .. } = self.entries[at];
        header + LOCAL + u64::from(name_len)
    }

    /// The place of the data, if there is no other.
    fn place(&self, at: usize, alignment: Option<u64>) -> Option<Range<u64>> {
        let (start, end) = (self.local_end(at), self.next(at));
        if start.checked_add(self.entries[at].compressed) == Some(end) {
            return Some(start..end);
        }
        let (range, after) = self.by_torch(at, alignment?)?;
        (after == end).then_some(range)
    }

    /// Where torch would have written the data of an entry, and what follows it. It aligns the data, and writes a
    /// descriptor after it.
    fn by_torch(&self, at: usize, alignment: u64) -> Option<(Range<u64>, u64)> {
        // The header of the field for padding.
        const FIELD: u64 = 4;
        let ZipEntry { compressed, size, header, .. } = self.entries[at];
        let max = u64::from(u32::MAX);
        // 64-bit sizes take 16 bytes, a 64-bit offset takes 8.
        let fields = if size >= max { 16 } else { 0 } + if header >= max { 8 } else { 0 };
        let wide = if fields > 0 { FIELD + fields } else { 0 };
        let start = (self.local_end(at) + FIELD + wide).checked_next_multiple_of(alignment)?;
        let end = start.checked_add(compressed)?;
        let descriptor = match compressed {
            0 => 0,
            _ if wide > 0 => 24,
            _ => 16,
        };
        Some((start..end, end.checked_add(descriptor)?))
    }

    /// Whether the local header of an entry is one that torch has written in an archive with this alignment.
    pub fn is_by_torch(&self, input: &HeaderInput, at: usize, alignment: u64) -> Result<bool, MissingRange> {
        let Ok(range) = self.local_range(input, at)? else { return Ok(false) };
        let mut extra = input.get(self.local_end(at)..range.start)?;
        let mut is_padded = false;
        while let Some((field, rest)) = extra.split_at_checked(4 + usize::from(u16_at(extra, 2))) {
            is_padded |= field.starts_with(PADDING);
            extra = rest;
        }
        Ok(is_padded && self.by_torch(at, alignment).is_some_and(|(expected, _)| expected == range))
    }

    /// The place of the data by the local header, or what is wrong with that.
    pub fn local_range(&self, input: &HeaderInput, at: usize) -> Result<Result<Range<u64>, ZipFault>, MissingRange> {
        let start = match self.local(input, at) {
            Ok(local) => local.data,
            Err(ZipError::Missing(missing)) => return Err(missing),
            Err(ZipError::Fault(fault)) => return Ok(Err(fault)),
        };
        let (size, next) = (self.entries[at].compressed, self.next(at));
        Ok(match start.checked_add(size).filter(|end| *end <= next) {
            Some(end) => Ok(start..end),
            None => {
                let (name, end) = (self.name(at).to_owned(), start.saturating_add(size));
                Err(ZipFault::Outside { name, size, end, next })
            }
        })
    }

    fn local(&self, input: &HeaderInput, at: usize) -> Result<LocalHeader, ZipError> {
        let header = self.entries[at].header;
        let fixed = input.get(header..header + LOCAL)?;
        let fault = || ZipFault::Local { name: self.name(at).to_owned(), at: header };
        if fixed.len() < LOCAL as usize || !fixed.starts_with(MAGIC) {
            return Err(fault().into());
        }
        let (name, extra) = (u64::from(u16_at(fixed, 26)), u64::from(u16_at(fixed, 28)));
        // A name of another length cannot be the same, and is not read.
        let same = name == self.local_end(at) - header - LOCAL;
        let text = if same { input.get(header + LOCAL..header + LOCAL + name)? } else { &[] };
        Ok(LocalHeader {
            name: if same { String::from_utf8_lossy(text).into_owned() } else { format!("a name of {name} bytes") },
            flags: u16_at(fixed, 6),
            method: u16_at(fixed, 8),
            compressed: u32_at(fixed, 18),
            size: u32_at(fixed, 22),
            data: header + LOCAL + name + extra,
        })
    }

    /// Requires the local headers of these entries, neighbours together. Returns how many of the entries can be
    /// checked, because a caller that starts again after each read needs much time for many.
    pub fn require(&self, input: &HeaderInput, wanted: &mut [usize]) -> Result<usize, MissingRange> {
        let groups = self.groups(wanted);
        let count = groups.get(LOCAL_CHECKS_MAX).map_or(wanted.len(), |(first, _)| *first);
        groups.into_iter().take(LOCAL_CHECKS_MAX).try_for_each(|(_, group)| input.get(group).map(drop))?;
        Ok(count)
    }

    /// Compares the local header of an entry with the directory, and its data with the place `range`.
    pub fn check_local(
        &self,
        input: &HeaderInput,
        at: usize,
        range: &Range<u64>,
    ) -> Result<Option<ZipFault>, MissingRange> {
        let local = match self.local(input, at) {
            Ok(local) => local,
            Err(ZipError::Missing(missing)) => return Err(missing),
            Err(ZipError::Fault(fault)) => return Ok(Some(fault)),
        };
        let entry = &self.entries[at];
        let name = || self.name(at).to_owned();
        let differs = |what, local: u64, central: u64, unset: u64| {
            (local != central && local != unset).then(|| ZipFault::Differs { name: name(), what, local, central })
        };
        if local.name != self.name(at) {
            return Ok(Some(ZipFault::Renamed { name: name(), local: local.name }));
        }
        let unset = |size: u64| if entry.flags & 8 != 0 || size > u64::from(u32::MAX) { 0 } else { size };
        let max = u64::from(u32::MAX);
        let size = |what, local: u32, central: u64| {
            let local = u64::from(local);
            if local == max { None } else { differs(what, local, central, unset(central)) }
        };
        Ok(differs("method", local.method.into(), entry.method.into(), entry.method.into())
            .or_else(|| differs("encryption", (local.flags & 1).into(), (entry.flags & 1).into(), u64::MAX))
            .or_else(|| size("compressed size", local.compressed, entry.compressed))
            .or_else(|| size("size", local.size, entry.size))
            .or_else(|| differs("start of the data", local.data, range.start, u64::MAX)))
    }
}

/// The range of the directory, and the number of its entries.
fn find_directory(input: &HeaderInput) -> Result<(Range<u64>, u64), ZipError> {
    let len = input.len();
    let tail_start = len.saturating_sub(TAIL);
    let tail = input.get(tail_start..len)?;
    // The last one counts, as in torch and Python, whatever the length of its comment is. A reader that takes another
    // one sees another archive.
    let is_end = |at: usize| tail[at..].starts_with(b"PK\x05\x06");
    let at = (0..(tail.len() + 1).saturating_sub(END as usize)).rev().find(|at| is_end(*at));
    let at = at.ok_or(ZipFault::NoEnd { len })?;
    let end = &tail[at..];
    let mut end_at = tail_start + at as u64;
    let comment_end = end_at + END + u64::from(u16_at(end, 20));
    if comment_end != len {
        return Err(ZipFault::End { end: comment_end, len }.into());
    }
    let (mut count, mut size, mut offset) =
        (u64::from(u16_at(end, 10)), u64::from(u32_at(end, 12)), u64::from(u32_at(end, 16)));
    let mut parts = [u16_at(end, 4), u16_at(end, 6)].iter().any(|part| ![0, u16::MAX].contains(part));
    let locator_at = end_at.saturating_sub(LOCATOR);
    let locator = input.get(locator_at..end_at)?;
    if locator.starts_with(b"PK\x06\x07") {
        let end64_at = u64_at(locator, 8);
        let end64 = input.get(end64_at..end64_at.saturating_add(END64).min(locator_at.max(end64_at)))?;
        if !end64.starts_with(b"PK\x06\x06") || end64.len() < END64 as usize {
            // The offsets of an archive count from its own start.
            let own = input.get(locator_at.saturating_sub(END64)..locator_at)?;
            if own.starts_with(b"PK\x06\x06") {
                let at = locator_at.saturating_sub(END64).saturating_sub(end64_at);
                return Err(ZipFault::Several { at }.into());
            }
            return Err(ZipFault::Signature { at: end64_at, what: "64-bit end record" }.into());
        }
        parts = u32_at(end64, 16) != 0 || u32_at(end64, 20) != 0;
        (count, size, offset) = (u64_at(end64, 32), u64_at(end64, 40), u64_at(end64, 48));
        end_at = end64_at;
    }
    if parts {
        return Err(ZipFault::Parts.into());
    }
    if offset.checked_add(size) != Some(end_at) {
        // Offsets count from the start of an archive, which may begin behind another one.
        let own = end_at.checked_sub(size).and_then(|start| start.checked_sub(offset));
        return Err(match own {
            Some(at) if is_entry(input, at)? => ZipFault::Several { at }.into(),
            _ => ZipFault::Place { offset, size, end: end_at }.into(),
        });
    }
    if size > DIRECTORY_MAX {
        return Err(ZipFault::TooLong { size }.into());
    }
    Ok((offset..end_at, count))
}

/// Reads an entry of the directory. Also returns its length.
fn entry(bytes: &[u8], number: usize, names: &mut String) -> Result<(ZipEntry, usize), ZipFault> {
    let cut = || ZipFault::Cut { number };
    if bytes.len() < CENTRAL || !bytes.starts_with(b"PK\x01\x02") {
        return Err(cut());
    }
    let (name_len, extra_len) = (usize::from(u16_at(bytes, 28)), usize::from(u16_at(bytes, 30)));
    let len = CENTRAL + name_len + extra_len + usize::from(u16_at(bytes, 32));
    if len > bytes.len() {
        return Err(cut());
    }
    let name = &bytes[CENTRAL..CENTRAL + name_len];
    let mut extra = &bytes[CENTRAL + name_len..CENTRAL + name_len + extra_len];
    let (mut compressed, mut size) = (u64::from(u32_at(bytes, 20)), u64::from(u32_at(bytes, 24)));
    let mut header = u64::from(u32_at(bytes, 42));
    let start = names.len() as u32;
    names.push_str(&String::from_utf8_lossy(name));
    let text = |names: &String| names[start as usize..].to_owned();
    let mut wide: &[u8] = &[];
    while extra.len() >= 4 {
        let (id, len) = (u16_at(extra, 0), usize::from(u16_at(extra, 2)));
        let field = extra.get(4..4 + len).ok_or_else(cut)?;
        if id == 1 {
            wide = field;
        }
        extra = &extra[4 + len..];
    }
    for number in [&mut size, &mut compressed, &mut header] {
        if *number == u64::from(u32::MAX) {
            if wide.len() < 8 {
                return Err(ZipFault::NoField { name: text(names) });
            }
            *number = u64_at(wide, 0);
            wide = &wide[8..];
        }
    }
    if header > i64::MAX as u64 {
        return Err(ZipFault::Local { name: text(names), at: header });
    }
    let name = start..names.len() as u32;
    let (flags, method) = (u16_at(bytes, 8), u16_at(bytes, 10));
    Ok((ZipEntry { name, name_len: name_len as u16, flags, method, compressed, size, header }, len))
}

/// The name in the local header at the beginning of a file, for an archive without a directory.
pub fn first_name(input: &HeaderInput) -> Result<String, MissingRange> {
    let fixed = input.get(0..LOCAL)?;
    let name = input.get(LOCAL..LOCAL + u64::from(u16_at(fixed, 26)))?;
    Ok(String::from_utf8_lossy(name).into_owned())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The file of an archive with these entries, as Python's zipfile writes it, and the offset of its directory.
    pub fn archive(entries: &[(&str, &[u8])]) -> (Vec<u8>, usize) {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for (name, data) in entries {
            let start = out.len() as u32;
            let mut fields = [0; 26];
            fields[14..18].copy_from_slice(&(data.len() as u32).to_le_bytes());
            fields[18..22].copy_from_slice(&(data.len() as u32).to_le_bytes());
            fields[22..24].copy_from_slice(&(name.len() as u16).to_le_bytes());
            out.extend([MAGIC, &fields, name.as_bytes(), data].concat());
            directory
                .extend([b"PK\x01\x02\0\0", &fields[..], &[0; 10], &start.to_le_bytes(), name.as_bytes()].concat());
        }
        with_directory(out, &directory, entries.len())
    }

    /// The file of an archive: its entries, its directory and the end record. Also returns the offset of the directory.
    fn with_directory(mut out: Vec<u8>, directory: &[u8], entries: usize) -> (Vec<u8>, usize) {
        let start = out.len();
        out.extend(directory);
        let count = (entries as u16).to_le_bytes();
        let (len, at) = ((directory.len() as u32).to_le_bytes(), (start as u32).to_le_bytes());
        out.extend([b"PK\x05\x06\0\0\0\0", &count[..], &count, &len, &at, &[0, 0]].concat());
        (out, start)
    }

    /// The file of an archive with these entries, as torch writes it, and the offset of its directory.
    pub fn by_torch(entries: &[(&str, &[u8])], alignment: usize) -> (Vec<u8>, usize) {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for (name, data) in entries {
            let start = out.len();
            let from = start + LOCAL as usize + name.len() + 4;
            let padding = from.next_multiple_of(alignment) - from;
            let mut fields = [0; 26];
            fields[2..4].copy_from_slice(&0x808_u16.to_le_bytes());
            fields[22..24].copy_from_slice(&(name.len() as u16).to_le_bytes());
            let mut central = fields;
            fields[24..26].copy_from_slice(&(padding as u16 + 4).to_le_bytes());
            let field = [PADDING, &(padding as u16).to_le_bytes()].concat();
            out.extend([MAGIC, &fields, name.as_bytes(), &field, &vec![b'Z'; padding], data].concat());
            out.extend(vec![0; if data.is_empty() { 0 } else { 16 }]);
            central[14..18].copy_from_slice(&(data.len() as u32).to_le_bytes());
            central[18..22].copy_from_slice(&(data.len() as u32).to_le_bytes());
            let start = (start as u32).to_le_bytes();
            directory.extend([b"PK\x01\x02\0\0", &central[..], &[0; 10], &start, name.as_bytes()].concat());
        }
        with_directory(out, &directory, entries.len())
    }

    fn read(file: &[u8]) -> Result<Vec<Range<u64>>, ZipError> {
        let input = HeaderInput::with_prefix(file.len() as u64, file.to_vec());
        let directory = ZipDirectory::read(&input)?;
        directory.check_names()?;
        let all: Vec<usize> = (0..directory.len()).collect();
        all.iter().try_for_each(|at| directory.check_stored(*at))?;
        let ranges = directory.ranges(&input, &all, None)?.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (at, range) in all.iter().zip(&ranges) {
            if let Some(fault) = directory.check_local(&input, *at, range)? {
                return Err(fault.into());
            }
        }
        Ok(ranges)
    }

    const TWO: &[(&str, &[u8])] = &[("a/x", b"12345"), ("a/y", b"678")];

    #[test]
    fn entries_are_found() {
        let (file, _) = archive(TWO);
        assert_eq!(read(&file).unwrap(), [33..38, 71..74]);
        assert_eq!(read(&archive(&[]).0).unwrap(), []);
        // A comment after the end record.
        let mut commented = file.clone();
        let len = commented.len();
        commented[len - 2] = 5;
        commented.extend(b"hello");
        assert_eq!(read(&commented).unwrap().len(), 2);
    }

    #[test]
    fn extra_fields_of_local_headers_are_skipped() {
        let (mut file, start) = archive(TWO);
        // Seven bytes of extra field in the second local header, of which the directory does not say anything.
        file[38 + 28] = 7;
        file.splice(71..71, [0; 7]);
        let (end, at) = (file.len() - 6, (start as u32 + 7).to_le_bytes());
        file[end..end + 4].copy_from_slice(&at);
        assert_eq!(read(&file).unwrap(), [33..38, 78..81]);
    }

    #[test]
    fn bytes_between_entries_are_not_taken_for_fields() {
        let (mut file, start) = archive(TWO);
        // As many bytes as the field with 64-bit sizes takes.
        file.splice(38..38, [0; 20]);
        let (second, end) = (start + 20 + 46 + 3 + 42, file.len() - 6);
        file[second..second + 4].copy_from_slice(&58_u32.to_le_bytes());
        file[end..end + 4].copy_from_slice(&(start as u32 + 20).to_le_bytes());
        assert_eq!(read(&file).unwrap(), [33..38, 91..94]);
    }

    #[test]
    fn local_headers_are_read_only_if_others_than_torch_wrote_them() {
        let data = vec![7; 100_000];
        let entries = [("a/data.pkl", &b"12345"[..]), ("a/data/0", &data), ("a/data/1", b""), ("a/data/2", &data)];
        for alignment in [1_u64, 16, 64, 4096] {
            let (file, _) = by_torch(&entries, alignment as usize);
            let mut input = HeaderInput::new(file.len() as u64);
            let tail = file.len() - TAIL as usize;
            input.add(tail as u64, file[tail..].to_vec());
            let directory = ZipDirectory::read(&input).unwrap();
            let first = directory.local_end(0) + (1 << 16);
            input.add(0, file[..file.len().min(first as usize)].to_vec());
            assert!(directory.is_by_torch(&input, 0, alignment).unwrap());
            // Another alignment does not fit.
            assert!(alignment == 1 || !directory.is_by_torch(&input, 0, alignment * 512).unwrap());
            let mut input = HeaderInput::new(file.len() as u64);
            input.add(tail as u64, file[tail..].to_vec());
            let found = directory.ranges(&input, &[1, 2, 3], Some(alignment)).unwrap();
            assert!(matches!(directory.ranges(&input, &[1, 2, 3], None), Err(ZipError::Missing(_))));
            for (range, expected) in found.into_iter().zip([&data[..], b"", &data]) {
                let range = range.unwrap();
                assert!(range.start % alignment == 0);
                assert!(file[range.start as usize..range.end as usize] == *expected, "{alignment}");
            }
        }
    }

    #[test]
    fn archives_after_other_bytes_are_found() {
        let before = |file: &[u8]| bytes_before(&HeaderInput::with_prefix(file.len() as u64, file.to_vec())).unwrap();
        let (file, start) = archive(TWO);
        assert_eq!(before(&file), None);
        // Offsets from the start of the archive.
        let relative = [&b"#!/bin/sh\n"[..], &file].concat();
        assert_eq!(before(&relative), Some(10));
        // Offsets from the start of the file.
        let mut absolute = relative.clone();
        let (first, second, end) = (10 + start + 42, 10 + start + 46 + 3 + 42, absolute.len() - 6);
        for at in [first, second, end] {
            absolute[at] += 10;
        }
        assert_eq!(before(&absolute), Some(10));
        // A directory without its entries, and no archive.
        absolute[10] = 0;
        assert_eq!(before(&absolute), None);
        assert_eq!(before(&relative[..100]), None);
    }

    #[test]
    fn hostile_archives_are_refused() {
        let (file, start) = archive(TWO);
        let second = start + 46 + 3;
        let end = file.len() - 22;
        let change = |at: usize, bytes: &[u8]| {
            let mut file = file.clone();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            file
        };
        let cases = [
            (file[..end].to_vec(), "no directory in the last 65536 bytes of 172"),
            (b"PK\x03\x04".to_vec(), "no directory"),
            (change(end + 4, &[1]), "one of several parts"),
            (change(end + 16, &[1]), "should begin at byte 1 and end at byte 172"),
            (change(end + 10, &[9]), "has 2 entries, and should have 9"),
            (change(start, b"XX"), "entry 0 of the directory goes beyond its end"),
            (change(second + 28, &[200]), "entry 1 of the directory goes beyond its end"),
            (change(second + 46, b"a/x"), "two entries are called \"a/x\""),
            (change(second + 42, &[10]), "entries \"a/x\" and \"a/y\" share bytes, from byte 10 on"),
            (change(second + 42, &[0]), "share bytes, from byte 0 on"),
            (change(second + 42, &[0xff; 4]), "has a 64-bit size or offset, but no field for it"),
            (change(second + 20, &[4, 0, 0, 0, 4]), "the 4 bytes of entry \"a/y\" end at byte 75, but"),
            (change(second + 10, &[8]), "entry \"a/y\" is compressed (method 8)"),
            (change(second + 24, &[2]), "is stored, but takes 3 bytes for 2"),
            (change(second + 8, &[1]), "is encrypted"),
            (change(38, b"XX"), "the local header of entry \"a/y\" is not at byte 38"),
            (change(38 + 30, b"b"), "entry \"a/y\" is called \"b/y\" in its local header"),
            (change(38 + 8, &[8]), "its method is 8 in the local header, and 0 in the directory"),
            (change(38 + 22, &[9]), "its size is 9 in the local header, and 3 in the directory"),
            ([&file[..], &file].concat(), "several zip archives one after the other"),
        ];
        for (file, expected) in cases {
            let error = read(&file).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
        }
        // The record of another directory in the place of the comment, with a wrong length of its own comment.
        let mut other = file[end..].to_vec();
        other[20..].fill(0xff);
        let mut two = [&file[..], &other].concat();
        two[end + 20] = other.len() as u8;
        let error = read(&two).unwrap_err().to_string();
        assert!(
            error.contains("its last record says that it ends at byte 65751, but the file ends at byte"),
            "{error}"
        );
        // No length of a file causes a panic.
        for len in 0..file.len() {
            assert!(read(&file[..len]).is_err());
        }
    }
}
