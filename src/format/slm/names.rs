//! The names of tensors, by their hashes.

use std::collections::HashMap;

/// Tensors of a model besides those of its layers.
const GLOBAL: [&str; 3] = ["tok_embeddings.weight", "norm.weight", "output.weight"];

/// Tensors of a layer, whose names follow `layers.N.`.
const LAYER: [&str; 9] = [
    "attn_norm.weight",
    "ffn_norm.weight",
    "wq.weight",
    "wk.weight",
    "wv.weight",
    "wo.weight",
    "w1.weight",
    "w2.weight",
    "w3.weight",
];

/// After so many layers without any tensor, no more are searched. The number of layers in a header is not trusted.
const EMPTY_MAX: u32 = 64;

/// The start and the prime of 64-bit FNV-1a. Source: RFC 9923. The documentation of SLM1 only names the algorithm.
const START: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// The hash of a name: FNV-1a of its UTF-8 bytes.
pub fn hash(name: &str) -> u64 {
    extend(START, name)
}

fn extend(hash: u64, text: &str) -> u64 {
    text.bytes().fold(hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME))
}

/// The name of each tensor of a directory with these hashes: a documented name with that hash, or `tensor-HASH`. If a
/// hash occurs more than once, all have the same name.
pub fn recover(hashes: &[u64], layers: u32) -> Vec<String> {
    let mut names: HashMap<u64, Option<String>> = hashes.iter().map(|hash| (*hash, None)).collect();
    let mut left = names.len();
    for name in GLOBAL {
        left -= set_name(&mut names, hash(name), || name.to_owned());
    }
    let (prefix, mut empty) = (hash("layers."), 0);
    for layer in 0..layers {
        if left == 0 || empty == EMPTY_MAX {
            break;
        }
        let start = extend(prefix, &format!("{layer}."));
        let named =
            LAYER.iter().map(|name| set_name(&mut names, extend(start, name), || format!("layers.{layer}.{name}")));
        let named: usize = named.sum();
        left -= named;
        empty = if named > 0 { 0 } else { empty + 1 };
    }
    let names = hashes.iter().map(|hash| (hash, names.get(hash).cloned().flatten()));
    names.map(|(hash, name)| name.unwrap_or_else(|| format!("tensor-{hash:016x}"))).collect()
}

/// Sets the name with that hash, if it is wanted and not set. Returns the number of names that were set.
fn set_name(names: &mut HashMap<u64, Option<String>>, hash: u64, name: impl FnOnce() -> String) -> usize {
    let unset = names.get_mut(&hash).filter(|known| known.is_none());
    unset.map_or(0, |unset| {
        *unset = Some(name());
        1
    })
}

/// The names that a model of this architecture must have, with the number of elements of each.
pub fn required(sizes: &ModelSizes) -> impl Iterator<Item = (String, u64)> {
    let ModelSizes { layers, vocabulary, hidden, ffn, tied } = *sizes;
    let global = [vocabulary * hidden, hidden, vocabulary * hidden];
    let global = GLOBAL.iter().zip(global).filter(move |(name, _)| !(tied && **name == "output.weight"));
    let (square, wide) = (hidden * hidden, hidden * ffn);
    let layer = [hidden, hidden, square, square, square, square, wide, wide, wide];
    let layers = (0..layers).flat_map(move |number| {
        LAYER.iter().zip(layer).map(move |(name, size)| (format!("layers.{number}.{name}"), size))
    });
    global.map(|(name, size)| ((*name).to_owned(), size)).chain(layers)
}

/// The sizes of a model that give the shapes of its tensors. Each is below 2^32.
#[derive(Debug, Clone, Copy, Default)]
pub struct ModelSizes {
    pub layers: u64,
    pub vocabulary: u64,
    pub hidden: u64,
    pub ffn: u64,
    /// Whether the output has the weights of the embeddings.
    pub tied: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_fnv_1a() {
        // Test vectors of the reference implementation, http://www.isthe.com/chongo/tech/comp/fnv/.
        for (text, expected) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(hash(text), expected, "{text}");
        }
    }

    #[test]
    fn names_are_found_by_their_hashes() {
        let names = ["layers.11.w3.weight", "norm.weight", "layers.0.wq.weight", "layers.12.wq.weight", "other"];
        let mut hashes: Vec<u64> = names.map(hash).to_vec();
        hashes.extend((0..20).map(u64::from_le));
        let found = recover(&hashes, 12);
        assert_eq!(found[..3], names[..3]);
        assert_eq!(found[3], format!("tensor-{:016x}", hash(names[3])));
        assert_eq!(found[4], format!("tensor-{:016x}", hash("other")));
        assert_eq!(found[5], "tensor-0000000000000000");
        // The number of layers is not trusted.
        assert_eq!(recover(&[1, 1], u32::MAX), ["tensor-0000000000000001", "tensor-0000000000000001"]);
    }

    #[test]
    fn every_required_name_is_found() {
        let sizes = ModelSizes { layers: 2, vocabulary: 260, hidden: 8, ffn: 24, tied: false };
        let (names, counts): (Vec<String>, Vec<u64>) = required(&sizes).unzip();
        let hashes: Vec<u64> = names.iter().map(|name| hash(name)).collect();
        assert_eq!((recover(&hashes, 2), names.len()), (names, 21));
        assert_eq!(counts[..5], [2080, 8, 2080, 8, 8]);
        assert_eq!(required(&ModelSizes { tied: true, ..sizes }).count(), 20);
    }
}
