//! An archive of arrays, as `numpy.savez` writes it: a zip file with an entry `NAME.npy` for each array.
//!
//! The entries must be stored: a part of a compressed entry cannot be read without everything before it. Entries that
//! are compressed or encrypted, and arrays of Python objects, are left out with the reason in every mode, because the
//! file is sound. Checksums are not verified.

use super::array;
use super::{NPZ, SUFFIX};
use crate::format::error::Error;
use crate::format::header::{Header, HeaderBuilder, ParseMode};
use crate::format::input::{HeaderInput, MissingRange, join_ranges};
use crate::format::lint::HeaderLint;
use crate::format::pytorch::is_pickle;
use crate::format::zip::{self, ZipDirectory};
use crate::rules::CheckRule;
use crate::text::quote;
use std::ops::Range;

/// Number of bytes that are read first of an array, and of the extra fields before it. Most headers take 128 bytes, and
/// most fields 20.
const HEAD: u64 = 256;

/// Heads of arrays at most this far apart are read together, in bytes.
const TOGETHER: u64 = 1 << 20;

/// Maximum number of times that heads are read. It bounds the time, because the parser starts again after each read.
const READS_MAX: usize = 1000;

/// Maximum product of that number and the number of arrays.
const WORK_MAX: usize = 10_000_000;

/// Whether a file is a zip archive whose first entry is an array, and torch would find no pickle in it.
pub fn is_npz(input: &HeaderInput) -> Result<bool, MissingRange> {
    if !zip::is_zip(input)? {
        return Ok(false);
    }
    match ZipDirectory::read(input) {
        Ok(directory) => {
            let is_array = directory.first.is_some_and(|at| directory.name(at).ends_with(SUFFIX));
            Ok(is_array && !(0..directory.len()).any(|at| is_pickle(directory.name(at))))
        }
        Err(Error::Missing(missing)) => Err(missing),
        Err(_) => Ok(zip::first_name(input)?.ends_with(SUFFIX)),
    }
}

struct NpzMember<'d> {
    at: usize,
    name: &'d str,
    /// The array with its header, in bytes from the start of the file.
    range: Range<u64>,
}

pub fn parse_npz(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let directory = ZipDirectory::read(input)?;
    if mode != ParseMode::Lenient {
        directory.check_names()?;
    }
    let mut reader = NpzReader { builder: HeaderBuilder::new(mode), left_out: None, start: None };
    let mut found = Vec::new();
    for at in 0..directory.len() {
        let name = directory.name(at);
        if name.ends_with('/') {
            continue;
        }
        let Some(array) = name.strip_suffix(SUFFIX) else {
            reader.builder.skip(name, || "not an array".to_owned());
            continue;
        };
        match directory.check_stored(at) {
            Ok(()) => found.push((at, array)),
            Err(Error::Unsupported(fault)) => {
                let remedy = "load it with numpy.load, and save it with numpy.savez, which does not compress";
                reader.leave_out(array, Error::Unsupported(format!("{fault} ({remedy})")))?;
            }
            Err(error) => reader.leave_out(array, error)?,
        }
    }
    // In the order of the file, so that neighbours are read together.
    found.sort_unstable_by_key(|(at, _)| directory.entry(*at).header);
    let (members, broken) = request(input, &directory, found)?;
    for (name, error) in broken {
        reader.leave_out(name, error)?;
    }
    for NpzMember { at, name, range } in members {
        let checked = directory.check_local(input, at, &range);
        match checked.and_then(|()| array::read_array_header(input, &range)) {
            Ok(array) if array.range.end > range.end => {
                reader.leave_out(name, Error::Broken(array::outside(&array.range, range.end)))?;
            }
            Ok(array) => {
                reader.start = reader.start.or(Some(array.range.start));
                array.push(name, &mut reader.builder);
            }
            Err(error) => reader.leave_out(name, error)?,
        }
    }
    reader.finish(input.len())
}

/// Arrays, and the names of others with what is wrong with their local headers.
type Located<'d> = (Vec<NpzMember<'d>>, Vec<(&'d str, Error)>);

/// Requests the local header and the header of each array, neighbours together. `found` has the indices in the
/// directory and the names, in the order of the file.
///
/// No header is parsed before all are there: the parser starts again after each request.
fn request<'d>(
    input: &HeaderInput,
    directory: &ZipDirectory,
    found: Vec<(usize, &'d str)>,
) -> Result<Located<'d>, Error> {
    let heads = found.iter().map(|(at, _)| directory.entry(*at).header..head_end(directory, *at));
    let groups = join_ranges(heads, TOGETHER, TOGETHER);
    let mut budget = ReadBudget { reads: groups.len(), arrays: found.len(), read_to: 0 };
    budget.check()?;
    input.require(groups.into_iter().map(|(_, group)| group))?;
    let (mut members, mut broken) = (Vec::with_capacity(found.len()), Vec::new());
    for (at, name) in found {
        let range = match directory.local_range(input, at) {
            Ok(range) => range,
            Err(error) => {
                broken.push((name, Error::Broken(error.fault()?)));
                continue;
            }
        };
        // Long fields and headers, which others may follow.
        let read_to = head_end(directory, at);
        budget.request(input, &range, read_to, range.end.min(range.start.saturating_add(array::FIXED)))?;
        match array::locate(input, &range) {
            Ok((_, text)) => budget.request(input, &range, read_to, text.end)?,
            Err(error) => drop(error.fault()?),
        }
        members.push(NpzMember { at, name, range });
    }
    Ok((members, broken))
}

/// The end of what is read first of an entry.
fn head_end(directory: &ZipDirectory, at: usize) -> u64 {
    directory.entry(at).space().end.min(directory.entry(at).local_end().saturating_add(HEAD))
}

/// The reads that an archive may take.
struct ReadBudget {
    reads: usize,
    arrays: usize,
    read_to: u64,
}

impl ReadBudget {
    /// Fails if too much time would be needed.
    fn check(&self) -> Result<(), Error> {
        match self.reads > READS_MAX || self.reads.saturating_mul(self.arrays) > WORK_MAX {
            true => Err(Error::Limit(format!(
                "{} arrays, whose headers are too far apart to be read (save at most 1000 large arrays in a file)",
                self.arrays
            ))),
            false => Ok(()),
        }
    }

    /// Requests the bytes of `range` up to `end`, and what follows them, if they were not read before.
    fn request(&mut self, input: &HeaderInput, range: &Range<u64>, head_end: u64, end: u64) -> Result<(), Error> {
        if end > head_end.max(self.read_to) {
            self.read_to = range.start.saturating_add(TOGETHER).max(end);
            self.reads += 1;
            self.check()?;
            input.get(range.start..self.read_to)?;
        }
        Ok(())
    }
}

pub fn lint_npz(header: &Header, _: &HeaderInput, found: &mut dyn FnMut(HeaderLint)) -> Result<(), MissingRange> {
    for skipped in header.skipped.listed() {
        let message = format!("skipped {}: {}", quote(&skipped.name), skipped.reason);
        found(HeaderLint::new(CheckRule::LeftOut, Some(&skipped.name), message));
    }
    Ok(())
}

struct NpzReader {
    builder: HeaderBuilder,
    /// The first array that was left out although the file is sound, and why.
    left_out: Option<(String, String)>,
    /// The start of the data of the first array, in bytes from the start of the file.
    start: Option<u64>,
}

impl NpzReader {
    /// Leaves out an array that weightfs cannot show. For an array that breaks a rule, only lenient mode does so.
    fn leave_out(&mut self, name: &str, error: Error) -> Result<(), Error> {
        let is_sound = matches!(error, Error::Unsupported(_));
        let (name, fault) = (name.to_owned(), error.fault()?);
        self.builder.skip(&name, || fault.clone());
        match self.builder.mode() {
            _ if is_sound => drop(self.left_out.get_or_insert((name, fault))),
            ParseMode::Lenient => {}
            ParseMode::Strict | ParseMode::Header => return Err(Error::Tensor { name, fault }),
        }
        Ok(())
    }

    fn finish(self, len: u64) -> Result<Header, Error> {
        let Self { builder, left_out, start } = self;
        match left_out {
            // An archive in which nothing can be read is not an empty model.
            Some((name, fault)) if start.is_none() => Err(Error::Tensor { name, fault }),
            _ => builder.finish(NPZ, None, start.unwrap_or(len), "its name occurs more than once"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DICT: &str = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

    /// The bytes of an array with this header and number of bytes of data.
    fn array(dict: &str, data: usize) -> Vec<u8> {
        [b"\x93NUMPY\x01\0", &(dict.len() as u16).to_le_bytes()[..], dict.as_bytes(), &vec![7; data]].concat()
    }

    /// An entry of an archive: its name in the directory and in its local header, its method, and its bytes.
    struct Entry<'a>(&'a str, &'a str, u16, Vec<u8>);

    fn sound<'a>(name: &'a str, bytes: &[u8]) -> Entry<'a> {
        Entry(name, name, 0, bytes.to_vec())
    }

    fn archive(entries: &[Entry]) -> Vec<u8> {
        let (mut file, mut directory) = (Vec::new(), Vec::new());
        for Entry(name, local, method, bytes) in entries {
            let (offset, size) = (file.len() as u32, bytes.len() as u32);
            let sizes = [[0; 4], size.to_le_bytes(), size.to_le_bytes()].concat();
            let names = |name: &str| [(name.len() as u16).to_le_bytes(), [0, 0]].concat();
            let fixed = [&[20, 0, 0, 0][..], &method.to_le_bytes(), &[0; 4], &sizes].concat();
            file.extend([b"PK\x03\x04", &fixed[..], &names(local), local.as_bytes(), bytes].concat());
            let more = [&names(name)[..], &[0; 10], &offset.to_le_bytes()].concat();
            directory.extend([b"PK\x01\x02\x14\0", &fixed[..], &more, name.as_bytes()].concat());
        }
        let (count, at) = ((entries.len() as u16).to_le_bytes(), (file.len() as u32).to_le_bytes());
        let size = (directory.len() as u32).to_le_bytes();
        [&file[..], &directory, b"PK\x05\x06\0\0\0\0", &count, &count, &size, &at, &[0, 0]].concat()
    }

    fn read(file: &[u8], mode: ParseMode) -> Result<Header, Error> {
        parse_npz(&HeaderInput::with_prefix(file.len() as u64, file.to_vec()), mode)
    }

    fn reasons(header: &Header) -> Vec<(&str, &str)> {
        header.skipped.listed().iter().map(|skipped| (&skipped.name[..], &skipped.reason[..])).collect()
    }

    #[test]
    fn arrays_are_found_at_their_places() {
        let file = archive(&[sound("b/c.npy", &array(DICT, 24)), sound("dir/", b""), sound("a.npy", &array(DICT, 30))]);
        let header = read(&file, ParseMode::Strict).unwrap();
        let head = 10 + DICT.len() as u64;
        let first = 30 + 7 + head;
        let second = first + 24 + 30 + 4 + 30 + 5 + head;
        let found: Vec<_> = header.tensors().map(|tensor| (tensor.name, tensor.range)).collect();
        assert_eq!(found, [("b/c", first..first + 24), ("a", second..second + 24)]);
        assert_eq!((header.data_start, header.skipped.total()), (first, 0));
    }

    #[test]
    fn an_archive_with_a_pickle_is_none_of_arrays() {
        let recognised = |name| {
            let file = archive(&[sound("a/x.npy", &array(DICT, 24)), sound(name, b"")]);
            is_npz(&HeaderInput::with_prefix(file.len() as u64, file)).unwrap()
        };
        assert!(recognised("b.npy") && recognised("adata.pkl"));
        assert!(!recognised("a/data.pkl") && !recognised("/DATA.pkl"));
        // The first entry that the directory has counts, and not what the file begins with.
        let file = archive(&[sound("a/x.txt", b"text"), sound("b.npy", &array(DICT, 24))]);
        let mut rest = file.clone();
        let entry = 30 + 7 + 4 + 30 + 5 + array(DICT, 24).len();
        let (end, removed) = (rest.len() - 22, 46 + 7);
        rest[end + 8..end + 12].copy_from_slice(&[1, 0, 1, 0]);
        let size = u32::from_le_bytes(rest[end + 12..end + 16].try_into().unwrap()) - removed as u32;
        rest[end + 12..end + 16].copy_from_slice(&size.to_le_bytes());
        rest.drain(entry..entry + removed);
        for (file, expected) in [(file, false), (rest, true)] {
            let input = HeaderInput::with_prefix(file.len() as u64, file);
            assert_eq!(is_npz(&input).unwrap(), expected);
            assert!(!expected || parse_npz(&input, ParseMode::Strict).unwrap().len() == 1);
        }
    }

    #[test]
    fn what_cannot_be_shown_is_left_out_with_the_reason() {
        let objects = DICT.replace("<f4", "|O");
        let entries = [
            sound("a.npy", &array(DICT, 24)),
            Entry("b.npy", "b.npy", 8, vec![1; 9]),
            sound("c.npy", &array(&objects, 24)),
            sound("readme.txt", b"text"),
        ];
        let file = archive(&entries);
        let header = read(&file, ParseMode::Strict).unwrap();
        assert_eq!(header.len(), 1);
        let reasons = reasons(&header);
        assert!(reasons[0].0 == "b" && reasons[0].1.contains("\"b.npy\" is compressed (method 8)"), "{reasons:?}");
        assert_eq!(reasons[1], ("readme.txt", "not an array"));
        assert!(reasons[2].0 == "c" && reasons[2].1.starts_with("Python objects"), "{reasons:?}");
        let mut found = Vec::new();
        lint_npz(&header, &HeaderInput::new(0), &mut |lint| found.push(lint.message)).unwrap();
        assert_eq!((found.len(), &found[1][..]), (3, "skipped \"readme.txt\": not an array"));
        // Nothing is left.
        let error = read(&archive(&entries[1..]), ParseMode::Lenient).unwrap_err().to_string();
        assert!(error.starts_with("tensor \"b\": zip archive: entry \"b.npy\" is compressed"), "{error}");
    }

    #[test]
    fn hostile_archives_are_refused() {
        for (bad, expected) in [
            (sound("x.npy", b"\x93NUMPX\x01\0\0\0\0\0"), "tensor \"x\": it does not begin with the magic number"),
            (sound("x.npy", b""), "it does not begin with the magic number"),
            (sound("x.npy", &array(DICT, 23)), "its data takes bytes"),
            (sound("x.npy", &array(&DICT.replace("3", "4611686018427387904"), 24)), "more than 2^63-1"),
            (sound("a.npy", &array(DICT, 24)), "two entries are called \"a.npy\""),
            (Entry("x.npy", "y.npy", 0, array(DICT, 24)), "entry \"x.npy\" is called \"y.npy\" in its local header"),
            (Entry("x.npy", "long.npy", 0, array(DICT, 24)), "zip archive: entry \"x.npy\""),
        ] {
            let file = archive(&[sound("a.npy", &array(DICT, 24)), bad, sound("z.npy", &array(DICT, 24))]);
            let error = read(&file, ParseMode::Strict).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}\n{expected}");
            // The other arrays are sound.
            let header = read(&file, ParseMode::Lenient).unwrap();
            assert_eq!((header.len(), header.skipped.total()), (2, 1), "{expected}");
        }
    }

    #[test]
    fn neighbours_are_read_together() {
        let large = array(&DICT.replace("(2, 3)", "(500000,)"), 2_000_000);
        let names: Vec<String> = (0..300).map(|at| format!("{at}.npy")).collect();
        let mut entries: Vec<Entry> = names.iter().map(|name| sound(name, &array(DICT, 24))).collect();
        entries.insert(100, sound("large.npy", &large));
        let file = archive(&entries);
        let mut input = HeaderInput::new(file.len() as u64);
        let (mut asked, mut bytes) = (0, 0);
        let header = loop {
            match parse_npz(&input, ParseMode::Strict) {
                Err(Error::Missing(MissingRange(range))) => {
                    asked += 1;
                    bytes += range.end - range.start;
                    input.add(range.start, file[range.start as usize..range.end as usize].to_vec());
                }
                parsed => break parsed.unwrap(),
            }
        };
        assert_eq!(header.len(), 301);
        // The end, and two groups.
        assert!(asked <= 3 && bytes < 200_000, "{asked} requests of {bytes} bytes");
    }

    #[test]
    fn time_is_bounded() {
        // A directory at the end of a file of which nothing else is read.
        let size = 2 << 20;
        let names: Vec<String> = (0..1001).map(|at| format!("{at:04}.npy")).collect();
        let file = archive(&names.iter().map(|name| sound(name, b"")).collect::<Vec<_>>());
        let start = 1001 * (30 + 8);
        let mut tail = file[start..].to_vec();
        for (at, entry) in tail.chunks_exact_mut(46 + 8).take(1001).enumerate() {
            let offset = (at * (30 + 8 + size)) as u32;
            entry[20..24].copy_from_slice(&(size as u32).to_le_bytes());
            entry[24..28].copy_from_slice(&(size as u32).to_le_bytes());
            entry[42..46].copy_from_slice(&offset.to_le_bytes());
        }
        let at = tail.len() - 6;
        let end = 1001 * (30 + 8 + size as u64);
        tail[at..at + 4].copy_from_slice(&(end as u32).to_le_bytes());
        let mut input = HeaderInput::new(end + tail.len() as u64);
        let before = 64 << 10;
        input.add(end - before, [vec![0; before as usize], tail].concat());
        let error = parse_npz(&input, ParseMode::Strict).unwrap_err().to_string();
        assert!(error.starts_with("1001 arrays, whose headers are too far apart"), "{error}");
    }

    #[test]
    fn long_headers_are_read_together_too() {
        let long = format!("{DICT}{}", " ".repeat(40_000));
        let names: Vec<String> = (0..100).map(|at| format!("{at}.npy")).collect();
        let file = archive(&names.iter().map(|name| sound(name, &array(&long, 24))).collect::<Vec<_>>());
        let mut input = HeaderInput::new(file.len() as u64);
        let mut asked = 0;
        while let Err(Error::Missing(MissingRange(range))) = parse_npz(&input, ParseMode::Strict) {
            input.add(range.start, file[range.start as usize..range.end as usize].to_vec());
            asked += 1;
        }
        // The end; four groups, which also have the long headers of all but their last arrays; and these.
        assert!(asked <= 9, "{asked}");
        assert_eq!(parse_npz(&input, ParseMode::Strict).unwrap().len(), 100);
    }
}
