//! Natural order of names: `layers.2` comes before `layers.10`. Names are compared by their dotted components, and runs
//! of digits in a component as numbers.

use std::cmp::Ordering;

pub fn compare_paths(a: &str, b: &str) -> Ordering {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // Names in a list mostly share a prefix. It is skipped, except for digits at its end: the number may continue.
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let from = a[..same].iter().rposition(|byte| !byte.is_ascii_digit()).map_or(0, |at| at + 1);
    natural_cmp(&a[from..], &b[from..], usize::MAX)
}

/// Compares the first `depth` components of two names.
pub fn compare_prefixes(a: &str, b: &str, depth: usize) -> Ordering {
    natural_cmp(a.as_bytes(), b.as_bytes(), depth)
}

/// Compares two components. Only identical ones are equal.
pub fn compare_components(a: &str, b: &str) -> Ordering {
    compare_bytes(a.as_bytes(), b.as_bytes())
}

fn natural_cmp(a: &[u8], b: &[u8], depth: usize) -> Ordering {
    let [mut a, mut b] = [a, b].map(|name| name.split(|byte| *byte == b'.').take(depth));
    loop {
        match (a.next(), b.next()) {
            (Some(a), Some(b)) => match compare_bytes(a, b) {
                Ordering::Equal => {}
                other => return other,
            },
            (a, b) => return a.is_some().cmp(&b.is_some()),
        }
    }
}

fn compare_bytes(whole_a: &[u8], whole_b: &[u8]) -> Ordering {
    let (mut a, mut b) = (whole_a, whole_b);
    loop {
        let (digits_a, digits_b) = (leading_digits(a), leading_digits(b));
        if digits_a > 0 && digits_b > 0 {
            let (number_a, number_b) = (trim_zeros(&a[..digits_a]), trim_zeros(&b[..digits_b]));
            match number_a.len().cmp(&number_b.len()).then_with(|| number_a.cmp(number_b)) {
                Ordering::Equal => (a, b) = (&a[digits_a..], &b[digits_b..]),
                other => return other,
            }
            continue;
        }
        match (a.split_first(), b.split_first()) {
            (Some((x, rest_a)), Some((y, rest_b))) if x == y => (a, b) = (rest_a, rest_b),
            (Some((x, _)), Some((y, _))) => return x.cmp(y),
            // `01` and `1` are equal as numbers; the bytes decide.
            (None, None) => return whole_a.cmp(whole_b),
            (a, b) => return a.is_some().cmp(&b.is_some()),
        }
    }
}

fn leading_digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn trim_zeros(digits: &[u8]) -> &[u8] {
    &digits[digits.iter().take_while(|byte| **byte == b'0').count()..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn digits_compare_as_numbers() {
        let sorted = [
            "",
            ".",
            "01",
            "1",
            "1.w",
            "2",
            "10",
            "18446744073709551617",
            "a",
            "a.1",
            "a.2.b",
            "a.10.a",
            "a.10a",
            "a.b",
            "a-b",
            "a0",
            "a1b2",
            "a1b10",
            "ab",
            "é",
            "重1",
            "重2",
            "重10",
        ];
        let mut shuffled = sorted;
        shuffled.reverse();
        shuffled.sort_by(|a, b| compare_paths(a, b));
        assert_eq!(shuffled, sorted);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn common_prefix_does_not_change_the_order(
            prefix in "[.0-2aé]{0,6}", a in "[.0-2aéê]{0,6}", b in "[.0-2aéê]{0,6}",
        ) {
            let (a, b) = (prefix.clone() + &a, prefix + &b);
            prop_assert_eq!(compare_paths(&a, &b), compare_prefixes(&a, &b, usize::MAX), "{} {}", a, b);
            prop_assert_eq!(compare_paths(&a, &b) == Ordering::Equal, a == b);
        }
    }
}
