//! Finds the prefix that the tensor names of one of two models of the same architecture have.

use super::diff::TensorPartners;
use super::prefix::PrefixChange;
use super::table::Model;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Largest number of names whose suffixes are looked up, evenly spaced among all.
const SAMPLE: usize = 1024;

/// Largest number of components of a prefix, and its largest length in bytes. Prefixes in models are shorter. They
/// bound the time for hostile files.
const COMPONENTS_MAX: usize = 8;
const PREFIX_MAX: usize = 1024;

/// Largest number of prefixes with the same suffix that are looked at, such as those of a student and a teacher. Layers
/// of more prefixes are those of a model.
const SAME_SUFFIX_MAX: usize = 4;

/// Number of changes that are tried, the most frequent first.
const TRIED: usize = 4;

/// Finds the change of the names of `source` after which most of those that `reference` does not have are its names,
/// and the partners after it. `partners` are those without a change, and they stay. `None` if no change makes most of
/// the names agree that one of the two models has alone.
///
/// Takes time and memory in proportion to the length of the names.
pub fn find_prefix_change(
    source: &Model,
    reference: &Model,
    partners: &TensorPartners,
) -> Option<(PrefixChange, TensorPartners)> {
    let names = partners.removed.iter().map(|id| source.numbers(*id, true).name()).collect::<Vec<&str>>();
    let wanted = partners.added.iter().map(|id| reference.numbers(*id, true).name());
    let all = source.compared().map(|id| source.numbers(id, true).name());
    let fewer = names.len().min(partners.added.len());
    let (mut best, mut most) = (None, 0);
    for change in candidates(&names, wanted) {
        let changed = partners.renamed(source, reference, &change);
        let found = changed.pairs.len() - partners.pairs.len();
        // One name among others that agree is rather that of another tensor.
        let is_prefix = found * 2 > fewer && (found > 1 || partners.pairs.is_empty());
        // A component may take the place of another in most names. In few of them, it is another layer.
        let is_plausible = change.is_of_components() || found * 2 > partners.pairs.len() + names.len();
        if found > most && is_prefix && is_plausible && change.clash(all.clone()).is_none() {
            most = found;
            best = Some((change, changed));
        }
    }
    best
}

/// Where a suffix of a name begins that follows a prefix of whole components, from the longest suffix on.
fn suffix_starts(name: &str) -> impl Iterator<Item = usize> {
    let dots = name.match_indices('.').map(|(at, _)| at + 1).filter(|start| *start < name.len());
    [0].into_iter().chain(dots.take(COMPONENTS_MAX).take_while(|start| *start <= PREFIX_MAX))
}

/// The changes that make some of `names` names in `wanted`, the most frequent first. The names are all different.
fn candidates<'n>(names: &[&'n str], wanted: impl Iterator<Item = &'n str>) -> Vec<PrefixChange> {
    let sample = names.iter().step_by(names.len().div_ceil(SAMPLE).max(1));
    let sampled = sample.len();
    // By a suffix of a name in the sample, the prefixes before it in all names, and one more if there are too many.
    let suffixes = sample.flat_map(|name| suffix_starts(name).map(|start| (&name[start..], Vec::new())));
    let mut prefixes: HashMap<&str, Vec<&str>> = suffixes.collect();
    for name in names {
        for (prefix, suffix) in suffix_starts(name).map(|start| name.split_at(start)) {
            if let Some(known) = prefixes.get_mut(suffix).filter(|known| known.len() <= SAME_SUFFIX_MAX) {
                known.push(prefix);
            }
        }
    }
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    for name in wanted {
        let mut splits = suffix_starts(name).map(|start| name.split_at(start));
        let longest = splits.find_map(|(prepend, suffix)| Some((prepend, prefixes.get(suffix)?)));
        let Some((prepend, strips)) = longest.filter(|(_, strips)| strips.len() <= SAME_SUFFIX_MAX) else { continue };
        for strip in strips {
            *counts.entry((strip, prepend)).or_default() += 1;
        }
    }
    let mut counts: Vec<((&str, &str), usize)> = counts.into_iter().collect();
    counts.sort_unstable_by_key(|((strip, prepend), count)| {
        (Reverse(*count), strip.len() + prepend.len(), *strip, *prepend)
    });
    let changes = counts.into_iter().map(|((strip, prepend), count)| {
        let change = PrefixChange { strip: strip.to_owned(), prepend: prepend.to_owned() };
        (change, count)
    });
    // Others of few names exchange layers. They must not take the places of the rest.
    let plausible = changes.filter(|(change, count)| change.is_of_components() || count * 4 > sampled);
    plausible.take(TRIED).map(|(change, _)| change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(strip: &str, prepend: &str) -> PrefixChange {
        PrefixChange { strip: strip.into(), prepend: prepend.into() }
    }

    #[test]
    fn most_frequent_change_of_prefixes_comes_first() {
        let cases: [(&[&str], &[&str], PrefixChange); 5] = [
            (&["module.a.w", "module.b.w", "x"], &["a.w", "b.w"], change("module.", "")),
            (&["module._orig_mod.a.w", "module._orig_mod.b.w"], &["a.w", "b.w"], change("module._orig_mod.", "")),
            (&["a.w", "b.w"], &["model.a.w", "model.b.w"], change("", "model.")),
            (&["m._orig_mod.a.w", "m._orig_mod.b.w"], &["m.a.w", "m.b.w"], change("m._orig_mod.", "m.")),
            (&["module.m.w"], &["m.w"], change("module.", "")),
        ];
        for (names, wanted, expected) in cases {
            assert_eq!(candidates(names, wanted.iter().copied()).first(), Some(&expected), "{names:?}");
        }
        let twins = ["student.a.w", "teacher.a.w", "student.b.w", "teacher.b.w"];
        assert_eq!(candidates(&twins, ["a.w", "b.w"].into_iter()), [change("student.", ""), change("teacher.", "")]);
        assert_eq!(candidates(&["a.x"], ["a.y"].into_iter()), []);
        assert_eq!(candidates(&[], ["a.y"].into_iter()), []);
    }
    #[test]
    fn prefix_is_found_among_more_names_than_the_sample() {
        let experts = (0..45_750).map(|at| format!("layers.{}.mlp.experts.{}.w", at / 750, at % 750));
        let names: Vec<String> = experts.map(|name| format!("module.{name}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let wanted = names.iter().map(|name| &name["module.".len()..]);
        assert_eq!(candidates(&names, wanted)[0], change("module.", ""));
        // One layer in the place of another is not a change of a prefix.
        let others: Vec<String> = names.iter().map(|name| name.replace("module.layers.", "layers.1000")).collect();
        assert_eq!(candidates(&names, others.iter().map(String::as_str)), []);
    }

    #[test]
    fn long_prefixes_are_not_looked_at() {
        let prefix = |len: usize| format!("{}.", "x".repeat(len - 1));
        for (len, is_found) in [(PREFIX_MAX, true), (PREFIX_MAX + 1, false), (10 << 20, false)] {
            let (wanted, prepend) = (format!("{}a0", prefix(len)), prefix(len));
            let found = candidates(&["a0", "a1"], [&*wanted].into_iter());
            assert_eq!(found == [change("", &prepend)], is_found, "{len}");
            assert_eq!(found.is_empty(), !is_found, "{len}");
        }
    }
}
