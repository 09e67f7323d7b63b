//! The official crate as a reference for the parser, with the intended differences.

use weightfs::format::safetensors as ours;
use weightfs::format::{Error, Header, HeaderInput, MetadataValue, ParseMode};

/// A file: the length of the header in 8 bytes, the header, and `data` zeros.
pub fn file(header: &[u8], data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + data, 0);
    file
}

/// The top-level names of a header, including repeated ones.
fn names(header: &[u8]) -> Vec<String> {
    struct Keys(Vec<String>);
    impl<'de> serde::Deserialize<'de> for Keys {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Keys;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                    let mut keys = Vec::new();
                    while let Some((key, _)) = map.next_entry::<String, serde::de::IgnoredAny>()? {
                        keys.push(key);
                    }
                    Ok(Keys(keys))
                }
            }
            deserializer.deserialize_map(Visitor)
        }
    }
    serde_json::from_slice(header).map_or(Vec::new(), |keys: Keys| keys.0)
}

fn repeats(mut names: Vec<String>) -> bool {
    names.sort();
    names.windows(2).any(|pair| pair[0] == pair[1])
}

/// Parses a file.
pub fn parse(file: &[u8], mode: ParseMode) -> Result<Header, Error> {
    ours::parse_safetensors(&HeaderInput::with_prefix(file.len() as u64, file.to_vec()), mode)
}

/// Panics if the two readers differ in an unintended way; returns whether the official one accepts the file.
pub fn compare(header: &[u8], data: usize) -> bool {
    let file = file(header, data);
    let ours = parse(&file, ParseMode::Strict);
    let official = safetensors::SafeTensors::read_metadata(&file);
    let text = || String::from_utf8_lossy(header).into_owned();
    match (&ours, &official) {
        (Ok(ours), Ok((_, official))) => same(ours, official, header.len() as u64 + 8),
        (Err(_), Err(_)) => {}
        // Intended: the official reader keeps the last entry of a repeated name.
        (Err(_), Ok(_)) if repeats(names(header)) => {}
        // Intended: an unknown dtype is not an error, and neither is one of which only the size is known.
        (Ok(ours), Err(official)) if !ours.unknown_dtypes.is_empty() || ours.size_only_dtypes().next().is_some() => {
            assert!(official.to_string().contains("unknown variant"), "{official} {}", text());
        }
        (Err(ours), Ok(_)) => panic!("refused by weightfs only: {ours}\n{}", text()),
        (Ok(_), Err(official)) => panic!("accepted by weightfs only: {official}\n{}", text()),
    }
    lenient_is_sound(&file, ours.as_ref().ok());
    official.is_ok()
}

fn same(ours: &Header, official: &safetensors::tensor::Metadata, data_start: u64) {
    let tensors = official.tensors();
    assert_eq!(ours.len(), tensors.len());
    for tensor in ours.tensors() {
        let theirs = tensors[tensor.name];
        assert_eq!(tensor.dtype.name(), theirs.dtype.to_string());
        assert_eq!(tensor.shape, theirs.shape.iter().map(|dim| *dim as u64).collect::<Vec<_>>());
        let (begin, end) = theirs.data_offsets;
        assert_eq!(tensor.range, begin as u64 + data_start..end as u64 + data_start);
        assert_eq!(ours.find(tensor.name).map(|found| ours.name(found)), Some(tensor.name));
    }
    let ranges: Vec<_> = ours.tensors().map(|tensor| (tensor.range.start, tensor.range.end)).collect();
    assert!(ranges.is_sorted());
    let theirs = official.metadata().clone().unwrap_or_default();
    let text = |(key, value): &(String, MetadataValue)| (key.clone(), value.text().to_owned());
    let metadata: std::collections::HashMap<_, _> = ours.metadata.iter().map(text).collect();
    assert_eq!(metadata.len(), ours.metadata.len());
    assert_eq!(metadata, theirs);
    assert!(ours.metadata.is_sorted_by_key(|(key, _)| key));
}

/// Checks that lenient mode keeps all tensors of a valid file, and of a damaged file only tensors that lie inside it,
/// each name once.
fn lenient_is_sound(file: &[u8], strict: Option<&Header>) {
    let Ok(lenient) = parse(file, ParseMode::Lenient) else {
        assert!(strict.is_none(), "lenient mode refuses a file that strict mode accepts");
        return;
    };
    for (index, tensor) in lenient.tensors().enumerate() {
        assert!(tensor.range.start <= tensor.range.end && tensor.range.end <= file.len() as u64);
        assert_eq!(lenient.find(tensor.name), Some(index));
        if let Some(bits) = tensor.dtype.bits() {
            assert_eq!(tensor.shape.iter().product::<u64>() * bits, tensor.nbytes * 8);
        }
    }
    if let Some(strict) = strict {
        assert!(lenient.skipped.total() == 0);
        assert!(strict.tensors().eq(lenient.tensors()));
        assert_eq!(strict.metadata, lenient.metadata);
    }
}
