//! The order of what `weightfs ls` lists.

use crate::cli::{LsArgs, SortKey, TensorOrder};
use std::cmp::Ordering;
use weightfs::threads;

/// Sorts by the keys of `args` what is in the order of offsets. What is equal by all keys stays in that order.
pub fn sort_by_keys<T: Send>(items: &mut [T], args: &LsArgs, compare: impl Fn(TensorOrder, &T, &T) -> Ordering + Sync) {
    // Offsets differ, so keys that follow this one have no effect.
    let before = args.sort.iter().position(|key| key.order == TensorOrder::Offset).unwrap_or(args.sort.len());
    let (keys, rest) = args.sort.split_at(before);
    if rest.first().is_some_and(|key| key.reversed) {
        items.reverse();
    }
    let compare_by = |key: &SortKey, a: &T, b: &T| match key.reversed {
        true => compare(key.order, b, a),
        false => compare(key.order, a, b),
    };
    if !keys.is_empty() {
        threads::sort_by(items, |a, b| {
            keys.iter().map(|key| compare_by(key, a, b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
        });
    }
    if args.reverse {
        items.reverse();
    }
}
