//! Slices of tensors in the syntax of NumPy: `0:4,:,-1`.

/// The selected positions of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AxisSlice {
    start: i64,
    step: i64,
    pub count: u64,
    /// Whether the axis is in the result. A single index removes it.
    pub keeps_axis: bool,
}

impl AxisSlice {
    /// The position in the axis of the selected position `at`, which is less than `count`.
    pub fn position(self, at: u64) -> u64 {
        (self.start as i128 + i128::from(self.step) * i128::from(at)) as u64
    }

    /// Python's `slice.indices` for an axis of length `len`.
    fn range(len: i64, start: Option<i64>, stop: Option<i64>, step: i64) -> Self {
        let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
        let bound = |bound: i64| {
            let bound = if bound < 0 { bound.saturating_add(len) } else { bound };
            bound.clamp(lowest, highest)
        };
        let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
        let (start, stop) = (start.map_or(first, bound), stop.map_or(last, bound));
        let distance =
            if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
        let count = (distance.max(0) as u128).div_ceil(u128::from(step.unsigned_abs())) as u64;
        Self { start, step, count, keeps_axis: true }
    }
}

/// The selected positions of each axis of `shape`. Axes that are not named are whole; `...` stands for as many axes as
/// are not named. The error is for the user.
pub fn parse_slice(text: &str, shape: &[u64]) -> Result<Vec<AxisSlice>, String> {
    let mut items: Vec<&str> = text.split(',').map(str::trim).collect();
    if text.trim().is_empty() {
        items.clear();
    }
    let named = items.iter().filter(|item| **item != "...").count();
    if named > shape.len() {
        return Err(format!("the slice {text} has {named} indices, and the tensor {} axes", shape.len()));
    }
    match items.len() - named {
        0 => items.push("..."),
        1 => {}
        _ => return Err(format!("the slice {text} has several ellipses")),
    }
    let mut slices = Vec::new();
    for item in items {
        let axis = slices.len();
        if item == "..." {
            let whole = shape[axis..][..shape.len() - named].iter();
            slices.extend(whole.map(|len| AxisSlice::range(clamp_len(*len), None, None, 1)));
        } else {
            slices.push(parse_item(item, clamp_len(shape[axis]), axis)?);
        }
    }
    Ok(slices)
}

/// The length of an axis. No tensor has as many elements as the limit.
fn clamp_len(len: u64) -> i64 {
    i64::try_from(len).unwrap_or(i64::MAX)
}

fn parse_item(item: &str, len: i64, axis: usize) -> Result<AxisSlice, String> {
    let numbers = item.split(':').map(|number| match number.trim() {
        "" => Ok(None),
        number => number.parse::<i64>().map(Some).map_err(|_| format!("{item:?} is no index and no slice")),
    });
    let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
    match numbers[..] {
        [Some(index)] => {
            let start = if index < 0 { index.saturating_add(len) } else { index };
            if !(0..len).contains(&start) {
                return Err(format!("index {index} is out of bounds for axis {axis} with size {len}"));
            }
            Ok(AxisSlice { start, step: 1, count: 1, keeps_axis: false })
        }
        [start, stop] => Ok(AxisSlice::range(len, start, stop, 1)),
        [_, _, Some(0)] => Err(format!("{item:?} has a step of zero")),
        [start, stop, step] => Ok(AxisSlice::range(len, start, stop, step.unwrap_or(1))),
        _ => Err(format!("{item:?} is no index and no slice")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The positions that `text` selects of axes of these lengths; removed axes have a single one.
    fn positions(text: &str, shape: &[u64]) -> Vec<Vec<u64>> {
        let slices = parse_slice(text, shape).unwrap();
        slices.iter().map(|slice| (0..slice.count).map(|at| slice.position(at)).collect()).collect()
    }

    /// The expected positions are those of Python's `range(5)[...]`.
    #[test]
    fn slices_select_what_numpy_selects() {
        for (text, expected) in [
            ("", vec![0, 1, 2, 3, 4]),
            (":", vec![0, 1, 2, 3, 4]),
            ("1:3", vec![1, 2]),
            ("-2:", vec![3, 4]),
            (":-3", vec![0, 1]),
            ("::2", vec![0, 2, 4]),
            ("::-1", vec![4, 3, 2, 1, 0]),
            ("3:0:-2", vec![3, 1]),
            ("-100:100", vec![0, 1, 2, 3, 4]),
            ("4:1", vec![]),
            ("1:3:9223372036854775807", vec![1]),
            ("-1", vec![4]),
            ("2", vec![2]),
        ] {
            assert_eq!(positions(text, &[5]), [expected], "{text}");
        }
        assert_eq!(positions("1, ..., 0", &[2, 2, 3]), [vec![1], vec![0, 1], vec![0]]);
        assert_eq!(positions("...", &[2]), [vec![0, 1]]);
        assert_eq!(positions("0", &[1, 2]), [vec![0], vec![0, 1]]);
        assert!(parse_slice("1", &[2]).unwrap().iter().all(|slice| !slice.keeps_axis));
    }

    #[test]
    fn errors_name_the_index_and_the_axis() {
        for (text, part) in [
            ("5", "index 5 is out of bounds for axis 0 with size 5"),
            ("-6", "index -6 is out of bounds"),
            ("0,0", "2 indices, and the tensor 1 axes"),
            ("a", "\"a\" is no index"),
            ("1:2:3:4", "is no index"),
            ("::0", "step of zero"),
            ("...,...", "several ellipses"),
        ] {
            let error = parse_slice(text, &[5]).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
