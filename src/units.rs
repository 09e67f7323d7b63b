//! Numbers for people: sizes and counts with units.

/// A size in decimal units: `1.30 GB`.
pub fn format_size(bytes: u64) -> String {
    scaled_size(bytes, [" B", " kB", " MB", " GB", " TB", " PB", " EB"])
}

/// A number with three digits and a unit: `494M`.
pub fn format_count(number: u64) -> String {
    scaled_size(number, ["", "K", "M", "B", "T", "Q", " quintillion"])
}

fn scaled_size(number: u64, units: [&str; 7]) -> String {
    if number < 1000 {
        return format!("{number}{}", units[0]);
    }
    let (mut value, mut unit) = (number as f64 / 1000.0, 1);
    while value >= 999.5 {
        value /= 1000.0;
        unit += 1;
    }
    let decimals = if value < 9.995 { 2 } else { usize::from(value < 99.95) };
    format!("{value:.decimals$}{}", units[unit])
}

/// A number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 tensor`, `2 tensors`.
pub fn plural(number: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(number), if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_counts_have_three_digits_and_a_unit() {
        let cases = [
            (0, "0 B", "0"),
            (999, "999 B", "999"),
            (1000, "1.00 kB", "1.00K"),
            (9_994, "9.99 kB", "9.99K"),
            (9_995, "10.0 kB", "10.0K"),
            (99_949, "99.9 kB", "99.9K"),
            (99_950, "100 kB", "100K"),
            (999_499, "999 kB", "999K"),
            (999_500, "1.00 MB", "1.00M"),
            (1_300_234_240, "1.30 GB", "1.30B"),
            (u64::MAX, "18.4 EB", "18.4 quintillion"),
        ];
        for (number, bytes, plain) in cases {
            assert_eq!((&format_size(number)[..], &format_count(number)[..]), (bytes, plain));
        }
        let cases = [(0, "0"), (999, "999"), (1000, "1,000"), (123_456, "123,456"), (1_234_567, "1,234,567")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }
}
