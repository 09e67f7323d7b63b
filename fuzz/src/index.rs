//! Target `index`: a model opened by its index has the tensors that a plain map of tensors and files gives.

use super::headers::once_in;
use super::shards::{self, Meaning, ODD_NAMES, Opening, Shards};
use arbitrary::{Result, Unstructured};
use std::collections::{BTreeMap, BTreeSet};
use weightfs::format::ParseMode;

pub fn run(bytes: &[u8]) -> bool {
    open(&mut Unstructured::new(bytes)).unwrap_or(false)
}

const SHARDS: [&str; 3] = ["a.safetensors", "b.safetensors", "sub/c.safetensors"];

const TENSORS: [&str; 5] = ["a", "a.b", "", "重/%\n", "weight_map"];

/// The tensors of each file, as indices into [`TENSORS`]; `None` for a file that is missing or not a safetensors file.
struct Files([Option<Vec<usize>>; 3]);

impl Files {
    fn data(shard: usize, tensor: usize) -> Vec<u8> {
        vec![(shard * 16 + tensor) as u8; tensor + 1]
    }

    /// The file that `name` in an index leads to, and its tensors, if it can be opened.
    fn find(&self, name: &str) -> Option<(usize, &[usize])> {
        let shard = SHARDS.iter().position(|shard| *shard == shards::path(name))?;
        Some((shard, self.0[shard].as_ref()?))
    }

    /// Whether each tensor of the mount is that of its file.
    fn have(&self, opening: &Opening) -> bool {
        opening.whole.iter().all(|(name, seen)| {
            let tensor = TENSORS.iter().position(|tensor| tensor == name);
            let shard = seen.shard.as_ref().and_then(|shard| self.find(shard));
            tensor.zip(shard).is_some_and(|(tensor, (shard, tensors))| {
                tensors.contains(&tensor)
                    && seen.data == Self::data(shard, tensor)
                    && seen.shape == format!("[{}]", tensor + 1)
            })
        })
    }
}

/// Tensors, as indices into [`TENSORS`], and their files, in the order of the index.
type Entries = Vec<(usize, &'static str)>;

/// Puts tensors into the files, and returns the entries of an index.
fn entries(files: &mut Files, bytes: &mut Unstructured) -> Result<Entries> {
    let mut entries = Entries::new();
    for tensor in 0..TENSORS.len() {
        let homes: u8 = match bytes.int_in_range(0..=9)? {
            home @ 0..=7 => 1 << (home % 3),
            8 => 0,
            _ => bytes.int_in_range(0..=7)?,
        };
        for (shard, tensors) in files.0.iter_mut().enumerate() {
            if let Some(tensors) = tensors.as_mut().filter(|_| homes >> shard & 1 == 1) {
                tensors.push(tensor);
            }
        }
        let home = (homes.trailing_zeros() < 3).then(|| SHARDS[homes.trailing_zeros() as usize]);
        match bytes.int_in_range(0..=13)? {
            0..=9 => entries.extend(home.map(|home| (tensor, home))),
            10 => entries.push((tensor, *bytes.choose(&SHARDS)?)),
            11 => entries.push((tensor, *bytes.choose(&ODD_NAMES)?)),
            // Of two entries of one tensor, the last counts.
            12 => {
                entries.extend([Some(*bytes.choose(&SHARDS)?), home].into_iter().flatten().map(|home| (tensor, home)))
            }
            _ => {}
        }
    }
    let by = bytes.int_in_range(0..=entries.len())?;
    entries.rotate_left(by);
    Ok(entries)
}

/// The text of an index.
fn text(entries: &Entries, bytes: &mut Unstructured) -> Result<(Vec<u8>, Meaning)> {
    let escaped = bytes.arbitrary()?;
    let spell = |text: &str| match escaped {
        true => format!("\"{}\"", text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>()),
        false => serde_json::to_string(text).unwrap(),
    };
    let members: Vec<String> =
        entries.iter().map(|(tensor, shard)| format!("{}:{}", spell(TENSORS[*tensor]), spell(shard))).collect();
    let map = format!("{{{}}}", members.join(","));
    let key = spell("weight_map");
    let spoilt = match bytes.int_in_range(0..=15)? {
        0 => format!("{{{key}:{map},{key}:{map}}}"),
        1 => format!("{{\"weight_maps\":{map}}}"),
        2 => format!("{{{key}:[{map}]}}"),
        3 => format!("{{{key}:{{\"a\":1}}}}"),
        4 => format!("[{map}]"),
        _ => return shards::spoil(&format!(r#"{{"metadata":{{"total_size":1}},{key}:{map}}}"#), bytes),
    };
    Ok((spoilt.into(), Meaning::Invalid))
}

/// The name under which a mount shows a shard.
fn plain(name: &'static str) -> &'static str {
    name.strip_prefix("./").unwrap_or(name)
}

/// The file of each tensor by name; `None` if the model must be refused.
fn expected(files: &Files, entries: &Entries, mode: ParseMode) -> Option<BTreeMap<&'static str, &'static str>> {
    let entries: Entries = entries.iter().map(|(tensor, shard)| (*tensor, plain(shard))).collect();
    let named: BTreeSet<&str> = entries.iter().map(|(_, shard)| *shard).collect();
    let opened: Vec<(&str, usize, &[usize])> =
        named.iter().filter_map(|name| files.find(name).map(|(shard, tensors)| (*name, shard, tensors))).collect();
    let broken = opened.len() < named.len();
    let distinct: BTreeSet<usize> = opened.iter().map(|file| file.1).collect();
    let nothing = broken && (opened.is_empty() || mode == ParseMode::Strict);
    if named.iter().any(|name| shards::is_refused(name)) || distinct.len() < opened.len() || nothing {
        return None;
    }
    let stated: BTreeMap<usize, &str> = entries.iter().copied().collect();
    let mut homes = BTreeMap::new();
    for (tensor, name) in TENSORS.iter().enumerate() {
        let mut holders = opened.iter().filter(|file| file.2.contains(&tensor)).map(|file| file.0);
        let stated = stated.get(&tensor);
        if mode == ParseMode::Strict && holders.clone().ne(stated.copied()) {
            return None;
        }
        let found = holders.clone().find(|holder| Some(holder) == stated).or_else(|| holders.next());
        homes.extend(found.map(|found| (*name, found)));
    }
    Some(homes)
}

fn open(bytes: &mut Unstructured) -> Result<bool> {
    let mut files = Files([const { Some(Vec::new()) }; 3]);
    let (missing, broken) = (once_in(8, bytes)?, once_in(8, bytes)?);
    if missing || broken {
        files.0[bytes.choose_index(SHARDS.len())?] = None;
    }
    let entries = entries(&mut files, bytes)?;
    let (text, meaning) = text(&entries, bytes)?;
    let content = |(shard, tensors): (usize, &Option<Vec<usize>>)| {
        let Some(tensors) = tensors else { return (!missing).then(|| (SHARDS[shard], b"no tensors".to_vec())) };
        let data: Vec<Vec<u8>> = tensors.iter().map(|tensor| Files::data(shard, *tensor)).collect();
        let shapes: Vec<[u64; 1]> = data.iter().map(|data| [data.len() as u64]).collect();
        let tensors = tensors.iter().zip(&shapes).zip(&data);
        let listed: Vec<_> =
            tensors.map(|((tensor, shape), data)| (TENSORS[*tensor], "U8", &shape[..], &data[..])).collect();
        Some((SHARDS[shard], shards::file(&listed)))
    };
    let directory = Shards::new(files.0.iter().enumerate().filter_map(content));
    let mut sound = false;
    for mode in [ParseMode::Strict, ParseMode::Lenient] {
        let opening = directory.open("model.safetensors.index.json", &text, mode);
        let homes = opening.as_ref().map(|opening| {
            assert!(files.have(opening), "{opening:?}");
            assert!(mode == ParseMode::Lenient || opening.skipped == 0);
            let home = |(name, seen): (&String, &shards::Seen)| (name.clone(), seen.shard.clone().unwrap_or_default());
            opening.whole.iter().map(home).collect::<BTreeMap<_, _>>()
        });
        let expected = expected(&files, &entries, mode).filter(|_| meaning == Meaning::Same);
        if meaning != Meaning::Unknown {
            let expected = expected.map(|homes| homes.into_iter().map(|(a, b)| (a.to_owned(), b.to_owned())).collect());
            assert_eq!(homes, expected, "{mode:?}: {entries:?}, files {:?}, index {}", files.0, text.escape_ascii());
        }
        match (mode, opening) {
            (ParseMode::Strict | ParseMode::Header, opening) => sound = opening.is_some(),
            // Lenient mode skips something exactly if strict mode refuses the model.
            (ParseMode::Lenient, Some(opening)) => assert_eq!(opening.skipped == 0, sound),
            (ParseMode::Lenient, None) => assert!(!sound),
        }
    }
    Ok(sound)
}
