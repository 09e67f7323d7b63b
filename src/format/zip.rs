//! The directory of a zip archive: which entries it has, and where their bytes are. Does not decompress.
//!
//! Source: APPNOTE.TXT of PKWARE, 6.3.10. The directory at the end of the file is what readers trust. The header before
//! each entry repeats most of it, but torch leaves sizes and checksums there empty. The number of bytes between the two
//! is only in the local header: torch and others pad the data there. It need not be read if no byte is left for
//! padding, or if the archive is known to be written by torch, and the next entry begins where torch would have written
//! it.

use super::error::Error;
use super::input::{HeaderInput, MissingRange, join_ranges, number_at};
use crate::text::quote;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

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
pub const LOCAL: u64 = 30;

/// The field of a local header with which torch pads. Source: `caffe2/serialize/inline_container.cc`, `getPadding`.
const PADDING: &[u8] = b"FB";

/// Number of bytes at the end of a file that are read first. Longer comments are not supported.
const TAIL: u64 = 64 << 10;

/// Local headers at most this far apart are read together, in bytes.
const TOGETHER: u64 = 1 << 20;

const LOCAL_READS_MAX: usize = 1000;

/// Maximum number of times that local headers are read for a report.
const LOCAL_CHECKS_MAX: usize = 500;

const MAX_32: u64 = u32::MAX as u64;

const SEVERAL: &str = "several zip archives one after the other, as in the .distcp files of a distributed checkpoint (name \
                       the directory with its file .metadata instead)";

/// The entries of an archive, in the order of the directory.
#[derive(Debug)]
pub struct ZipDirectory {
    names: String,
    entries: Vec<ZipEntry>,
    pub first: Option<usize>,
    /// An entry whose name another one has too.
    repeated: Option<usize>,
}

/// An entry that was found by its local header.
#[derive(Debug)]
pub struct ZipPart {
    pub name: String,
    /// Offset of the local header, in bytes from the start of the file.
    pub header: u64,
    /// In bytes.
    pub size: u64,
    /// Where the next entry begins.
    pub next: u64,
}

#[derive(Debug, Clone)]
pub struct ZipEntry {
    name: Range<u32>,
    name_len: u16,
    flags: u16,
    method: u16,
    compressed: u64,
    pub size: u64,
    /// Offset of the local header, in bytes from the start of the file.
    pub header: u64,
    /// The end of the space that the entry can take: the next local header, or the directory.
    next: u64,
}

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
        Ok(directory) => directory.first.map(|at| directory.entry(at).header),
        Err(Error::Missing(missing)) => return Err(missing),
        Err(_) => find_directory(input).ok().and_then(|place| place.own_start),
    };
    let Some(at) = at.filter(|at| *at > 0) else { return Ok(None) };
    Ok(is_entry(input, at)?.then_some(at))
}

impl ZipEntry {
    /// The end of the fixed part of the local header and of the name.
    pub fn local_end(&self) -> u64 {
        self.header + LOCAL + u64::from(self.name_len)
    }

    /// All bytes that the local header, the data and a descriptor can take.
    pub fn space(&self) -> Range<u64> {
        const EXTRA_MAX: u64 = u16::MAX as u64;
        const DESCRIPTOR: u64 = 24;
        let most = self.local_end().saturating_add(EXTRA_MAX + DESCRIPTOR).saturating_add(self.compressed);
        self.header..self.next.min(most)
    }

    /// Whether the local header does not have a size, because it follows the data or is in a field.
    fn is_unset(&self, local: u64, size: u64) -> bool {
        local == MAX_32 || local == 0 && (self.flags & 8 != 0 || size > MAX_32)
    }

    /// The place of the data, if there is no other.
    fn place(&self, alignment: Option<u64>) -> Option<Range<u64>> {
        let start = self.local_end();
        if start.checked_add(self.compressed) == Some(self.next) {
            return Some(start..self.next);
        }
        let (range, after) = self.by_torch(alignment?)?;
        (after == self.next).then_some(range)
    }

    /// The range in which torch would have written the data, and the start of what follows. Torch aligns the data, and
    /// writes a descriptor after it.
    fn by_torch(&self, alignment: u64) -> Option<(Range<u64>, u64)> {
        // The header of the field for padding.
        const FIELD: u64 = 4;
        // 64-bit sizes take 16 bytes, a 64-bit offset takes 8.
        let fields = if self.size >= MAX_32 { 16 } else { 0 } + if self.header >= MAX_32 { 8 } else { 0 };
        let wide = if fields > 0 { FIELD + fields } else { 0 };
        let start = (self.local_end() + FIELD + wide).checked_next_multiple_of(alignment)?;
        let end = start.checked_add(self.compressed)?;
        let descriptor = match self.compressed {
            0 => 0,
            _ if wide > 0 => 24,
            _ => 16,
        };
        Some((start..end, end.checked_add(descriptor)?))
    }
}

impl ZipDirectory {
    /// Reads the directory at the end of a file. It is read once for an input.
    pub fn read(input: &HeaderInput) -> Result<Arc<Self>, Error> {
        input.keep(|| Self::parse(input)).map_err(|error| match error {
            Error::Broken(fault) => Error::Broken(format!("zip archive: {fault}")),
            other => other,
        })
    }

    /// The directory of an archive that lost its own, of stored entries in the order of the file.
    pub fn of_parts(parts: Vec<ZipPart>) -> Self {
        let first = (!parts.is_empty()).then_some(0);
        let mut directory = Self { names: String::new(), entries: Vec::new(), first, repeated: None };
        for ZipPart { name, header, size, next } in parts {
            let start = directory.names.len() as u32;
            directory.names.push_str(&name);
            let (name_len, name) = (name.len() as u16, start..directory.names.len() as u32);
            // Torch leaves the sizes in local headers empty.
            let entry = ZipEntry { name, name_len, flags: 8, method: 0, compressed: size, size, header, next };
            directory.entries.push(entry);
        }
        directory.find_repeated();
        directory
    }

    fn find_repeated(&mut self) {
        let mut seen = HashSet::with_capacity(self.len());
        self.repeated = (0..self.len()).find(|at| !seen.insert(self.name(*at)));
    }

    fn parse(input: &HeaderInput) -> Result<Self, Error> {
        let DirectoryPlace { range, count, own_start } = find_directory(input)?;
        if own_start.is_some() {
            return Err(Error::Unsupported(SEVERAL.to_owned()));
        }
        let size = range.end - range.start;
        if size > DIRECTORY_MAX {
            return Err(Error::Broken(format!(
                "the directory has {size} bytes; weightfs reads at most {DIRECTORY_MAX}"
            )));
        }
        let mut bytes = input.get(range.clone())?;
        let mut directory = Self { names: String::new(), entries: Vec::new(), first: None, repeated: None };
        while !bytes.is_empty() {
            bytes = directory.add(bytes)?;
        }
        let found = directory.len();
        if found as u64 != count {
            return Err(Error::Broken(format!("the directory has {found} entries, and should have {count}")));
        }
        directory.set_spaces(range.start)?;
        directory.find_repeated();
        Ok(directory)
    }

    /// Adds the entry at the beginning of `bytes`. Returns what follows it.
    fn add<'b>(&mut self, bytes: &'b [u8]) -> Result<&'b [u8], String> {
        let [name_len, extra_len, comment_len] = [28, 30, 32].map(|at| number_at(bytes, at, 2) as usize);
        let len = CENTRAL + name_len + extra_len + comment_len;
        if bytes.len() < len || !bytes.starts_with(b"PK\x01\x02") {
            return Err(format!("entry {} of the directory goes beyond its end", self.len()));
        }
        let (name, mut extra) = bytes[CENTRAL..CENTRAL + name_len + extra_len].split_at(name_len);
        let start = self.names.len();
        self.names.push_str(&String::from_utf8_lossy(name));
        let mut wide: &[u8] = &[];
        while extra.len() >= 4 {
            let Some((field, rest)) = extra.split_at_checked(4 + number_at(extra, 2, 2) as usize) else {
                return Err(format!("entry {} of the directory goes beyond its end", self.len()));
            };
            if number_at(field, 0, 2) == 1 {
                wide = &field[4..];
            }
            extra = rest;
        }
        let [mut size, mut compressed, mut header] = [24, 20, 42].map(|at| number_at(bytes, at, 4));
        for number in [&mut size, &mut compressed, &mut header] {
            if *number == MAX_32 {
                let Some((field, rest)) = wide.split_at_checked(8) else {
                    let name = quote(&self.names[start..]);
                    return Err(format!("entry {name} has a 64-bit size or offset, but no field for it"));
                };
                *number = number_at(field, 0, 8);
                wide = rest;
            }
        }
        if header > i64::MAX as u64 {
            return Err(no_local_header(&self.names[start..], header));
        }
        let (flags, method) = (number_at(bytes, 8, 2) as u16, number_at(bytes, 10, 2) as u16);
        let (name, name_len) = (start as u32..self.names.len() as u32, name_len as u16);
        self.entries.push(ZipEntry { name, name_len, flags, method, compressed, size, header, next: 0 });
        Ok(&bytes[len..])
    }

    /// Sets the space of each entry. Fails if an entry reaches into the next one, or into the directory, which begins
    /// at byte `start`.
    fn set_spaces(&mut self, start: u64) -> Result<(), String> {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        order.sort_by_key(|at| self.entries[*at as usize].header);
        self.first = order.first().map(|at| *at as usize);
        for (place, at) in order.iter().map(|at| *at as usize).enumerate() {
            let follower = order.get(place + 1).map(|at| *at as usize);
            let next = follower.map_or(start, |other| self.entries[other].header);
            self.entries[at].next = next;
            let begin = self.entries[at].local_end();
            if begin.checked_add(self.entries[at].compressed).is_none_or(|end| end > next) {
                return Err(match follower {
                    Some(other) => {
                        let (a, b) = (self.quoted(at), self.quoted(other));
                        format!("entries {a} and {b} share bytes, from byte {next} on")
                    }
                    None => self.outside(at, begin),
                });
            }
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn entry(&self, at: usize) -> &ZipEntry {
        &self.entries[at]
    }

    /// The name of an entry, with replacement characters for bytes that are not UTF-8.
    pub fn name(&self, at: usize) -> &str {
        let Range { start, end } = self.entries[at].name;
        &self.names[start as usize..end as usize]
    }

    fn quoted(&self, at: usize) -> String {
        quote(self.name(at))
    }

    /// Fails if two entries have the same name.
    pub fn check_names(&self) -> Result<(), Error> {
        match self.repeated {
            Some(at) => Err(Error::Broken(format!("zip archive: two entries are called {}", self.quoted(at)))),
            None => Ok(()),
        }
    }

    /// Fails unless an entry is stored as it is, with [`Error::Unsupported`] if the archive is sound.
    pub fn check_stored(&self, at: usize) -> Result<(), Error> {
        let ZipEntry { flags, method, compressed, size, .. } = self.entries[at];
        if flags & 1 == 0 && method == 0 && compressed == size {
            return Ok(());
        }
        let name = self.quoted(at);
        Err(match () {
            () if flags & 1 != 0 => Error::Unsupported(format!("zip archive: entry {name} is encrypted")),
            () if method != 0 => Error::Unsupported(format!(
                "zip archive: entry {name} is compressed (method {method}); only stored entries can be read in place"
            )),
            () => {
                Error::Broken(format!("zip archive: entry {name} is stored, but takes {compressed} bytes for {size}"))
            }
        })
    }

    /// The range of the data of each of these entries, in bytes from the start of the file, or what is wrong with its
    /// local header. `alignment` is that of the data in an archive that torch has written. Local headers are read only
    /// where the data cannot be found without them.
    pub fn ranges(
        &self,
        input: &HeaderInput,
        wanted: &[usize],
        alignment: Option<u64>,
    ) -> Result<Vec<Result<Range<u64>, String>>, Error> {
        let unknown = wanted.iter().copied().filter(|at| self.entries[*at].place(alignment).is_none());
        let groups = self.groups(&mut unknown.collect::<Vec<_>>());
        if groups.len() > LOCAL_READS_MAX {
            return Err(Error::Broken(format!(
                "zip archive: the data of entries cannot be found without more than {LOCAL_READS_MAX} reads of local headers"
            )));
        }
        input.require(groups.into_iter().map(|(_, group)| group))?;
        let ranges = wanted.iter().map(|at| match self.entries[*at].place(alignment) {
            Some(range) => Ok(Ok(range)),
            None => self.local_range(input, *at).map_or_else(|error| Ok(Err(error.fault()?)), |range| Ok(Ok(range))),
        });
        ranges.collect()
    }

    /// Sorts entries in the order of the file. Returns ranges of bytes that have their local headers, neighbours
    /// together, each with the place of its first entry in `wanted`.
    fn groups(&self, wanted: &mut [usize]) -> Vec<(usize, Range<u64>)> {
        wanted.sort_unstable_by_key(|at| self.entries[*at].header);
        let entries = wanted.iter().map(|at| &self.entries[*at]);
        join_ranges(entries.map(|entry| entry.header..entry.local_end()), TOGETHER, TOGETHER)
    }

    /// Whether the local header of an entry is one that torch has written in an archive with this alignment.
    pub fn is_by_torch(&self, input: &HeaderInput, at: usize, alignment: u64) -> Result<bool, MissingRange> {
        let range = match self.local_range(input, at) {
            Ok(range) => range,
            Err(error) => return error.fault().map(|_| false),
        };
        let entry = &self.entries[at];
        let mut extra = input.get(entry.local_end()..range.start)?;
        let mut is_padded = false;
        while let Some((field, rest)) = extra.split_at_checked(4 + number_at(extra, 2, 2) as usize) {
            is_padded |= field.starts_with(PADDING);
            extra = rest;
        }
        Ok(is_padded && entry.by_torch(alignment).is_some_and(|(expected, _)| expected == range))
    }

    pub fn local_range(&self, input: &HeaderInput, at: usize) -> Result<Range<u64>, Error> {
        let (_, start) = self.local(input, at)?;
        let ZipEntry { compressed, next, .. } = self.entries[at];
        let end = start.checked_add(compressed).filter(|end| *end <= next);
        end.map(|end| start..end).ok_or_else(|| Error::Broken(format!("zip archive: {}", self.outside(at, start))))
    }

    /// The fault of an entry whose data begins at byte `start` and reaches into what follows.
    fn outside(&self, at: usize, start: u64) -> String {
        let ZipEntry { compressed, next, .. } = self.entries[at];
        let (name, end) = (self.quoted(at), start.saturating_add(compressed));
        format!("the {compressed} bytes of entry {name} end at byte {end}, but the next entry begins at byte {next}")
    }

    /// The fixed part of the local header of an entry, and the start of its data.
    fn local<'i>(&self, input: &'i HeaderInput, at: usize) -> Result<(&'i [u8], u64), Error> {
        let header = self.entries[at].header;
        let fixed = input.get(header..header + LOCAL)?;
        if fixed.len() < LOCAL as usize || !fixed.starts_with(MAGIC) {
            return Err(Error::Broken(format!("zip archive: {}", no_local_header(self.name(at), header))));
        }
        Ok((fixed, header + LOCAL + number_at(fixed, 26, 2) + number_at(fixed, 28, 2)))
    }

    /// Requires the local headers of these entries, neighbours together. Returns how many of the entries can be
    /// checked, because a caller that starts again after each read needs much time for many.
    pub fn require(&self, input: &HeaderInput, wanted: &mut [usize]) -> Result<usize, MissingRange> {
        let groups = self.groups(wanted);
        let count = groups.get(LOCAL_CHECKS_MAX).map_or(wanted.len(), |(first, _)| *first);
        input.require(groups.into_iter().take(LOCAL_CHECKS_MAX).map(|(_, group)| group))?;
        Ok(count)
    }

    /// Compares the local header of an entry with the directory, and its data with the place `range`. Fails with the
    /// first difference.
    pub fn check_local(&self, input: &HeaderInput, at: usize, range: &Range<u64>) -> Result<(), Error> {
        let (fixed, data) = self.local(input, at)?;
        let (entry, name) = (&self.entries[at], self.quoted(at));
        let len = number_at(fixed, 26, 2);
        // A name of another length cannot be the same, and is not read.
        let local = match len == u64::from(entry.name_len) {
            true => String::from_utf8_lossy(input.get(entry.header + LOCAL..entry.local_end())?),
            false => format!("a name of {len} bytes").into(),
        };
        if local != self.name(at) {
            let local = quote(&local);
            return Err(Error::Broken(format!("zip archive: entry {name} is called {local} in its local header")));
        }
        for (what, local, central, is_size) in [
            ("method", number_at(fixed, 8, 2), entry.method.into(), false),
            ("encryption", number_at(fixed, 6, 2) & 1, u64::from(entry.flags & 1), false),
            ("compressed size", number_at(fixed, 18, 4), entry.compressed, true),
            ("size", number_at(fixed, 22, 4), entry.size, true),
            ("start of the data", data, range.start, false),
        ] {
            if local != central && !(is_size && entry.is_unset(local, central)) {
                return Err(Error::Broken(format!(
                    "zip archive: entry {name}: its {what} is {local} in the local header, and {central} in the directory"
                )));
            }
        }
        Ok(())
    }
}

/// The fault of an entry that has no local header at byte `at`.
fn no_local_header(name: &str, at: u64) -> String {
    format!("the local header of entry {} is not at byte {at}", quote(name))
}

struct DirectoryPlace {
    /// In bytes from the start of the file.
    range: Range<u64>,
    count: u64,
    /// The start of the archive, in bytes from the start of the file, if offsets count from there.
    own_start: Option<u64>,
}

/// Where the last end record begins, if it lies in the last `size` bytes.
fn find_end(input: &HeaderInput, size: u64) -> Result<Option<u64>, Error> {
    let tail_start = input.len().saturating_sub(size.min(TAIL));
    let tail = input.get(tail_start..input.len())?;
    // The last one counts, as in torch and Python, whatever the length of its comment is. A reader that takes another
    // one sees another archive.
    let mut starts = (0..(tail.len() + 1).saturating_sub(END as usize)).rev();
    Ok(starts.find(|at| tail[*at..].starts_with(b"PK\x05\x06")).map(|at| tail_start + at as u64))
}

fn find_directory(input: &HeaderInput) -> Result<DirectoryPlace, Error> {
    let len = input.len();
    let found = match find_end(input, input.tail())? {
        None if input.tail() < TAIL => find_end(input, TAIL)?,
        found => found,
    };
    let Some(mut end_at) = found else {
        return Err(Error::Broken(format!(
            "no directory in the last {TAIL} bytes of {len}: the file is truncated (did a download stop?)"
        )));
    };
    let end = input.get(end_at..len)?;
    let comment_end = end_at + END + number_at(end, 20, 2);
    if comment_end != len {
        return Err(Error::Broken(format!(
            "its last record says that it ends at byte {comment_end}, but the file ends at byte {len}, so that programs \
             differ in what they read (create the file again)"
        )));
    }
    let (mut count, mut size, mut offset) = (number_at(end, 10, 2), number_at(end, 12, 4), number_at(end, 16, 4));
    let mut is_part = [4, 6].iter().any(|at| ![0, u16::MAX.into()].contains(&number_at(end, *at, 2)));
    let locator_at = end_at.saturating_sub(LOCATOR);
    let locator = input.get(locator_at..end_at)?;
    if locator.starts_with(b"PK\x06\x07") {
        let end64_at = number_at(locator, 8, 8);
        let end64 = input.get(end64_at..end64_at.saturating_add(END64).min(locator_at.max(end64_at)))?;
        if !end64.starts_with(b"PK\x06\x06") || end64.len() < END64 as usize {
            // The offsets of an archive count from its own start.
            let own_at = locator_at.saturating_sub(END64);
            if input.get(own_at..locator_at)?.starts_with(b"PK\x06\x06") {
                return Ok(DirectoryPlace { range: 0..0, count: 0, own_start: Some(own_at.saturating_sub(end64_at)) });
            }
            return Err(Error::Broken(format!("the record at byte {end64_at} is not a 64-bit end record")));
        }
        is_part = number_at(end64, 16, 8) != 0;
        (count, size, offset) = (number_at(end64, 32, 8), number_at(end64, 40, 8), number_at(end64, 48, 8));
        end_at = end64_at;
    }
    if is_part {
        return Err(Error::Broken("it is one of several parts, which are not supported".to_owned()));
    }
    if offset.checked_add(size) == Some(end_at) {
        return Ok(DirectoryPlace { range: offset..end_at, count, own_start: None });
    }
    // Offsets count from the start of an archive, which may begin behind another one.
    let own_start = end_at.checked_sub(size).and_then(|start| start.checked_sub(offset));
    match own_start {
        Some(at) if is_entry(input, at)? => Ok(DirectoryPlace { range: 0..0, count, own_start }),
        _ => Err(Error::Broken(format!(
            "the directory of {size} bytes should begin at byte {offset} and end at byte {end_at}, where the end record is"
        ))),
    }
}

/// The name in the local header at the beginning of a file, for an archive without a directory.
pub fn first_name(input: &HeaderInput) -> Result<String, MissingRange> {
    let fixed = input.get(0..LOCAL)?;
    let name = input.get(LOCAL..LOCAL + number_at(fixed, 26, 2))?;
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
            let size = (data.len() as u32).to_le_bytes();
            let mut fields = [0; 26];
            fields[2..4].copy_from_slice(&0x808_u16.to_le_bytes());
            fields[22..24].copy_from_slice(&(name.len() as u16).to_le_bytes());
            let mut central = fields;
            fields[24..26].copy_from_slice(&(padding as u16 + 4).to_le_bytes());
            let field = [PADDING, &(padding as u16).to_le_bytes()].concat();
            out.extend([MAGIC, &fields, name.as_bytes(), &field, &vec![b'Z'; padding], data].concat());
            if !data.is_empty() {
                out.extend([b"PK\x07\x08\0\0\0\0", &size[..], &size].concat());
            }
            central[14..18].copy_from_slice(&(data.len() as u32).to_le_bytes());
            central[18..22].copy_from_slice(&(data.len() as u32).to_le_bytes());
            let start = (start as u32).to_le_bytes();
            directory.extend([b"PK\x01\x02\0\0", &central[..], &[0; 10], &start, name.as_bytes()].concat());
        }
        with_directory(out, &directory, entries.len())
    }

    fn read(file: &[u8]) -> Result<Vec<Range<u64>>, Error> {
        let input = HeaderInput::with_prefix(file.len() as u64, file.to_vec());
        let directory = ZipDirectory::read(&input)?;
        directory.check_names()?;
        let all: Vec<usize> = (0..directory.len()).collect();
        all.iter().try_for_each(|at| directory.check_stored(*at))?;
        let ranges = directory.ranges(&input, &all, None)?.into_iter().collect::<Result<Vec<_>, _>>()?;
        for (at, range) in all.iter().zip(&ranges) {
            directory.check_local(&input, *at, range)?;
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
            let first = directory.entry(0).local_end() + (1 << 16);
            input.add(0, file[..file.len().min(first as usize)].to_vec());
            assert!(directory.is_by_torch(&input, 0, alignment).unwrap());
            // Another alignment does not fit.
            assert!(alignment == 1 || !directory.is_by_torch(&input, 0, alignment * 512).unwrap());
            let mut input = HeaderInput::new(file.len() as u64);
            input.add(tail as u64, file[tail..].to_vec());
            let found = directory.ranges(&input, &[1, 2, 3], Some(alignment)).unwrap();
            assert!(matches!(directory.ranges(&input, &[1, 2, 3], None), Err(Error::Missing(_))));
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
