//! Arrays as text, as NumPy prints them.

use serde_json::{Value, json};

/// Maximum number of digits after the decimal point.
const PRECISION: usize = 8;

/// An element, or a list of equally deep nodes, some of which may be missing in the middle.
#[derive(Debug)]
pub enum ArrayNode {
    Element(ShownElement),
    List(Vec<ArrayNode>),
    /// Elements that are not shown.
    Gap,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ShownElement {
    Single(f32),
    Double(f64),
    Complex(f32, f32),
    Integer(i128),
    Boolean(bool),
}

impl ShownElement {
    /// Decodes a little-endian element that NumPy calls `descr`. `bytes` has its size.
    pub fn decode(descr: &str, bytes: &[u8]) -> Self {
        let unsigned = bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
        let unused = 64 - 8 * (bytes.len().clamp(1, 8) as u32);
        match (descr, descr.as_bytes().get(1)) {
            ("<f4", _) => Self::Single(f32::from_bits(unsigned as u32)),
            ("<f8", _) => Self::Double(f64::from_bits(unsigned)),
            ("<c8", _) => Self::Complex(f32::from_bits(unsigned as u32), f32::from_bits((unsigned >> 32) as u32)),
            (_, Some(b'b')) => Self::Boolean(unsigned != 0),
            (_, Some(b'i')) => Self::Integer(i128::from((unsigned << unused) as i64 >> unused)),
            _ => Self::Integer(i128::from(unsigned)),
        }
    }

    /// The parts that are floating-point numbers: their magnitudes and shortest exact texts.
    fn floats(self) -> Vec<(f64, String)> {
        match self {
            Self::Single(value) => vec![(f64::from(value).abs(), value.to_string())],
            Self::Double(value) => vec![(value.abs(), value.to_string())],
            Self::Complex(re, im) => [re, im].map(|part| (f64::from(part).abs(), part.to_string())).into(),
            Self::Integer(_) | Self::Boolean(_) => Vec::new(),
        }
    }

    fn to_json(self) -> Value {
        // JSON has no NaN and no infinity.
        let number = |value: f64, text: String| if value.is_finite() { json!(value) } else { Value::String(text) };
        match self {
            Self::Single(value) if value.is_finite() => {
                value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
            }
            Self::Single(value) => number(value.into(), value.to_string()),
            Self::Double(value) => number(value, value.to_string()),
            Self::Complex(re, im) => json!([Self::Single(re).to_json(), Self::Single(im).to_json()]),
            Self::Integer(value) => u64::try_from(value).map_or_else(|_| json!(value as i64), Value::from),
            Self::Boolean(value) => value.into(),
        }
    }
}

impl ArrayNode {
    /// Nested lists. What is not shown is the text `...`.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Element(element) => element.to_json(),
            Self::List(nodes) => nodes.iter().map(Self::to_json).collect(),
            Self::Gap => "...".into(),
        }
    }

    fn elements(&self) -> Vec<ShownElement> {
        match self {
            Self::Element(element) => vec![*element],
            Self::List(nodes) => nodes.iter().flat_map(Self::elements).collect(),
            Self::Gap => Vec::new(),
        }
    }
}

/// The notation of all floating-point numbers of an array.
#[derive(Clone, Copy)]
enum FloatNotation {
    /// With this many digits after the point.
    Fixed(usize),
    Scientific,
}

impl FloatNotation {
    /// NumPy's rule: scientific if a magnitude is at least 1e8 or less than 1e-4, or if the largest is more than a
    /// thousand times the smallest.
    fn of(elements: &[ShownElement]) -> Self {
        let floats = elements.iter().flat_map(|element| element.floats()).filter(|(value, _)| value.is_finite());
        let floats: Vec<(f64, String)> = floats.collect();
        let magnitudes = floats.iter().map(|(value, _)| *value).filter(|value| *value > 0.0);
        let (low, high) =
            magnitudes.fold((f64::INFINITY, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        if high >= 1e8 || high > 0.0 && (low < 1e-4 || high / low > 1000.0) {
            return Self::Scientific;
        }
        let digits = floats.iter().map(|(_, text)| text.split_once('.').map_or(0, |(_, digits)| digits.len()));
        Self::Fixed(digits.max().unwrap_or(0).min(PRECISION))
    }

    fn format(self, value: f64, shortest: String) -> String {
        match self {
            _ if !value.is_finite() => shortest.to_lowercase(),
            Self::Fixed(0) => format!("{value:.0}."),
            Self::Fixed(digits) => format!("{value:.digits$}"),
            Self::Scientific => scientific(value),
        }
    }

    fn element(self, element: ShownElement) -> String {
        match element {
            ShownElement::Single(value) => self.format(value.into(), value.to_string()),
            ShownElement::Double(value) => self.format(value, value.to_string()),
            ShownElement::Complex(re, im) => {
                let sign = if im.is_sign_negative() { "" } else { "+" };
                let [re, im] = [re, im].map(|part| self.format(part.into(), part.to_string()));
                format!("{re}{sign}{im}j")
            }
            ShownElement::Integer(value) => value.to_string(),
            ShownElement::Boolean(true) => "True".into(),
            ShownElement::Boolean(false) => "False".into(),
        }
    }
}

/// A finite number in scientific notation with a sign and at least two digits of its exponent, as C prints it.
fn scientific(value: f64) -> String {
    let text = format!("{value:.4e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |exponent| ('-', exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

/// A number of at most seven significant digits.
pub fn format_statistic(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e8).contains(&value.abs()) {
        return scientific(value);
    }
    let fixed = format!("{value:.6}");
    fixed.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// An array in lines of at most `width` columns, unless a single element is wider.
pub fn format_array(node: &ArrayNode, width: usize) -> String {
    let elements = node.elements();
    let notation = FloatNotation::of(&elements);
    let widest = elements.iter().map(|element| notation.element(*element).len()).max().unwrap_or(0);
    let mut text = String::new();
    write_node(node, 0, (notation, widest, width), &mut text);
    text
}

/// Writes a node in which `depth` lists begin at the columns before.
fn write_node(node: &ArrayNode, depth: usize, layout: (FloatNotation, usize, usize), text: &mut String) {
    let (notation, widest, width) = layout;
    let nodes = match node {
        ArrayNode::Element(element) => return *text += &format!("{:>widest$}", notation.element(*element)),
        ArrayNode::Gap => return *text += "...",
        ArrayNode::List(nodes) => nodes,
    };
    text.push('[');
    let indent = " ".repeat(depth + 1);
    let is_inner = !nodes.iter().any(|node| matches!(node, ArrayNode::List(_)));
    let mut column = depth + 1;
    for (at, node) in nodes.iter().enumerate() {
        let len = if matches!(node, ArrayNode::Gap) { 3 } else { widest };
        if at > 0 && (!is_inner || column + 1 + len + depth + 1 > width) {
            *text += &format!("\n{indent}");
            column = depth + 1;
        } else if at > 0 {
            text.push(' ');
            column += 1;
        }
        write_node(node, depth + 1, layout, text);
        column += len;
    }
    text.push(']');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(values: &[f32]) -> ArrayNode {
        ArrayNode::List(values.iter().map(|value| ArrayNode::Element(ShownElement::Single(*value))).collect())
    }

    #[test]
    fn arrays_look_as_in_numpy() {
        assert_eq!(format_array(&list(&[1.0, -2.0]), 80), "[ 1. -2.]");
        assert_eq!(format_array(&list(&[0.5, 0.25, f32::NAN]), 80), "[0.50 0.25  nan]");
        assert_eq!(format_array(&list(&[1e-5, 1.0]), 80), "[1.0000e-05 1.0000e+00]");
        assert_eq!(format_array(&ArrayNode::List(vec![]), 80), "[]");
        let statistics = [0.0, 1.5, -0.25, 1e-9, 123456.0].map(format_statistic);
        assert_eq!(statistics, ["0", "1.5", "-0.25", "1.0000e-09", "123456"]);
        let rows = ArrayNode::List(vec![list(&[1.0, 2.0]), ArrayNode::Gap, list(&[3.0, 4.0])]);
        assert_eq!(format_array(&rows, 80), "[[1. 2.]\n ...\n [3. 4.]]");
        assert_eq!(rows.to_json(), json!([[1.0, 2.0], "...", [3.0, 4.0]]));
        assert_eq!(format_array(&list(&[1.0, 2.0, 3.0]), 8), "[1. 2.\n 3.]");
    }

    #[test]
    fn elements_are_decoded() {
        for (descr, bytes, expected) in [
            ("<f4", &[0, 0, 128, 63][..], ShownElement::Single(1.0)),
            ("<f8", &[0, 0, 0, 0, 0, 0, 240, 63], ShownElement::Double(1.0)),
            ("<c8", &[0, 0, 128, 63, 0, 0, 128, 191], ShownElement::Complex(1.0, -1.0)),
            ("|i1", &[255], ShownElement::Integer(-1)),
            ("|u1", &[255], ShownElement::Integer(255)),
            ("<i8", &[254, 255, 255, 255, 255, 255, 255, 255], ShownElement::Integer(-2)),
            ("<u8", &[255; 8], ShownElement::Integer(u64::MAX.into())),
            ("<i2", &[0, 128], ShownElement::Integer(-32768)),
            ("|b1", &[1], ShownElement::Boolean(true)),
        ] {
            assert_eq!(ShownElement::decode(descr, bytes), expected, "{descr}");
        }
    }
}
