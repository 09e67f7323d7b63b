//! Walks over the fields of a message of Protocol Buffers. It keeps its place, so that it goes on where bytes were
//! missing, and never asks for the data of tensors that are parts of the file.
//!
//! Source: "Encoding" of the documentation of Protocol Buffers.

use super::tensor::{OnnxTensor, TensorFields};
use crate::format::error::Error;
use crate::format::input::{HeaderInput, MissingRange, VARINT_MAX, take_varint};
use std::ops::Range;

/// Maximum depth of messages and groups, as in the readers of Google.
const DEPTH_MAX: usize = 100;

/// Maximum number of dimensions, and of numbers that are decoded into memory, because they have a variable size or are
/// in several parts: 64 MiB.
const NUMBERS_MAX: usize = 8 << 20;

/// Maximum number of tensors, and of graphs.
const TENSORS_MAX: usize = 1 << 20;

/// Maximum size of a name and of a value of the metadata, and of all of them, in bytes.
const TEXT_MAX: u64 = 16 << 20;
const TEXTS_MAX: u64 = 128 << 20;

/// Number of bytes that are read at once: after a jump over data, and after neighbours were read.
const WINDOW: u64 = 4 << 10;
const WINDOW_MAX: u64 = 1 << 20;

/// Maximum number of reads, which bounds the time. Tensors whose data is shorter than a read share one.
const READS_MAX: usize = 20_000;

/// The memory of a value of the metadata beside its text, in bytes.
const ENTRY: u64 = 128;

/// What a part of `float_data` and `double_data` counts for at least, in numbers: the memory of its place.
const PART: usize = 2;

/// The part of a model to which a tensor belongs.
#[derive(Debug, Clone, Copy)]
pub enum TensorOwner {
    /// It is an initializer of this graph.
    Graph(usize),
    /// It is the value of this attribute.
    Attribute(usize),
    /// The values of a sparse initializer of this graph, or their indices.
    Sparse { graph: usize, number: usize, has_indices: bool },
}

#[derive(Debug, Default)]
pub struct OnnxGraph {
    /// The attribute that holds it.
    pub attribute: Option<usize>,
    /// Precedes names that another graph has too, without an attribute; empty for the main graph.
    pub label: String,
}

#[derive(Debug, Default)]
pub struct OnnxNode {
    pub graph: usize,
    pub name: String,
    /// The first one.
    pub output: Option<String>,
    pub is_constant: bool,
}

#[derive(Debug, Default)]
pub struct OnnxAttribute {
    pub node: usize,
    pub name: String,
    has_tensor: bool,
}

/// What a file has, as far as it was walked.
#[derive(Debug, Default)]
pub struct OnnxModel {
    pub graphs: Vec<OnnxGraph>,
    /// Those that have tensors or graphs.
    pub nodes: Vec<OnnxNode>,
    pub attributes: Vec<OnnxAttribute>,
    pub tensors: Vec<(TensorOwner, OnnxTensor)>,
    pub metadata: Vec<(String, String)>,
    /// Why it ends there, if not at the end.
    pub error: Option<Error>,
}

/// A message that is open.
#[derive(Debug)]
struct Frame {
    kind: FrameKind,
    start: u64,
    end: u64,
}

/// The kind of a message, with the number of what it describes.
#[derive(Debug, Clone, Copy)]
enum FrameKind {
    Model,
    Training,
    Function(usize),
    Graph(usize),
    Node {
        node: usize,
        first: FirstInside,
    },
    Attribute {
        attribute: usize,
        first: FirstInside,
    },
    Sparse {
        graph: usize,
        number: usize,
    },
    Tensor(TensorOwner),
    /// A key and a value, of the metadata or of external data.
    Entry {
        is_metadata: bool,
    },
    /// A group with this number, whose fields are skipped.
    Group(u64),
}

/// The numbers of tensors and graphs before a message, to find out whether it has any.
#[derive(Debug, Clone, Copy)]
struct FirstInside {
    tensors: usize,
    graphs: usize,
}

#[derive(Debug)]
pub struct OnnxWalk {
    at: u64,
    frames: Vec<Frame>,
    model: OnnxModel,
    tensor: TensorFields,
    entry: (String, String),
    sparse: usize,
    numbers: usize,
    text: u64,
    /// The end of the last read, and its size.
    read_to: u64,
    window: u64,
    reads: usize,
}

/// The value of a field.
enum FieldValue {
    Varint(u64),
    /// Four or eight bytes, or as many as a length says.
    Bytes {
        wire: u64,
        range: Range<u64>,
    },
}

const FIXED64: u64 = 1;
const COUNTED: u64 = 2;
const FIXED32: u64 = 5;

impl OnnxWalk {
    pub fn new(len: u64) -> Self {
        let model = OnnxModel { graphs: vec![OnnxGraph::default()], ..OnnxModel::default() };
        let frames = vec![Frame { kind: FrameKind::Model, start: 0, end: len }];
        let (tensor, entry) = Default::default();
        Self {
            at: 0,
            frames,
            model,
            tensor,
            entry,
            sparse: 0,
            numbers: 0,
            text: 0,
            read_to: 0,
            window: WINDOW,
            reads: 0,
        }
    }

    /// Goes to the end of the file, or to its first fault. Fails until `input` has everything that is needed.
    pub fn run(&mut self, input: &HeaderInput) -> Result<OnnxModel, MissingRange> {
        loop {
            match self.step(input) {
                Ok(true) => {}
                Ok(false) => break,
                Err(Error::Missing(MissingRange(range))) if self.reads < READS_MAX => {
                    self.reads += 1;
                    return Err(self.wider(range, input.len()));
                }
                Err(Error::Missing(_)) => {
                    let message = format!("ONNX model: its fields are spread over more than {READS_MAX} places");
                    self.model.error.get_or_insert(Error::Limit(message));
                    break;
                }
                Err(error) => {
                    self.model.error.get_or_insert(error);
                    break;
                }
            }
        }
        Ok(std::mem::take(&mut self.model))
    }

    /// The range to read instead of one that is missing: more, as long as neighbours are read.
    fn wider(&mut self, range: Range<u64>, len: u64) -> MissingRange {
        let is_next = (self.read_to.saturating_sub(VARINT_MAX as u64)..=self.read_to).contains(&range.start);
        self.window = if is_next { (self.window * 2).min(WINDOW_MAX) } else { WINDOW };
        self.read_to = range.end.max(range.start.saturating_add(self.window)).min(len);
        MissingRange(range.start..self.read_to)
    }

    /// Reads a field, or ends a message. Returns whether anything is left. Changes nothing if bytes are missing.
    fn step(&mut self, input: &HeaderInput) -> Result<bool, Error> {
        let Some(Frame { kind, start, end }) = self.frames.last() else { return Ok(false) };
        let (kind, start, end, at) = (*kind, *start, *end, self.at);
        if at >= end {
            self.close(kind, start, input)?;
            self.frames.pop();
            return Ok(!self.frames.is_empty());
        }
        let (tag, next) = varint(input, at, end)?;
        let (number, wire) = (tag >> 3, tag & 7);
        if number == 0 || tag > u64::from(u32::MAX) {
            return Err(fault(at, &format!("a field has the number {number}")));
        }
        let value = match wire {
            0 => {
                let (value, next) = varint(input, next, end)?;
                self.at = next;
                self.field(kind, number, FieldValue::Varint(value), input, at)?;
                return Ok(true);
            }
            FIXED64 => next..next + 8,
            FIXED32 => next..next + 4,
            COUNTED => {
                let (len, next) = varint(input, next, end)?;
                next..next.saturating_add(len)
            }
            3 => {
                self.open(FrameKind::Group(number), next, end, at)?;
                return Ok(true);
            }
            4 => {
                return match kind {
                    FrameKind::Group(open) if open == number => {
                        self.at = next;
                        self.frames.pop();
                        Ok(true)
                    }
                    _ => Err(fault(at, &format!("the end of group {number} has no beginning"))),
                };
            }
            other => return Err(fault(at, &format!("a field has the type {other}, which is not known"))),
        };
        let mut range = value;
        if range.end > end {
            // What is complete of a file without its end can be shown.
            if end < input.len() || range.end <= input.len() {
                let len = range.end - range.start;
                return Err(fault(
                    at,
                    &format!("a field of {len} bytes goes beyond its message, which ends at byte {end}"),
                ));
            }
            let cut = Error::data_cut(range.end, input.len());
            self.model.error.get_or_insert(cut);
            if wire != COUNTED {
                return Err(fault(at, "a field is cut"));
            }
            range.end = end.max(range.start);
        }
        let before = self.at;
        self.at = range.end;
        let result = self.field(kind, number, FieldValue::Bytes { wire, range }, input, at);
        if matches!(result, Err(Error::Missing(_))) {
            self.at = before;
        }
        result.map(|()| true)
    }

    /// Goes into a message, or into a group.
    fn open(&mut self, kind: FrameKind, start: u64, end: u64, at: u64) -> Result<(), Error> {
        if self.frames.len() >= DEPTH_MAX {
            return Err(fault(at, &format!("messages are nested more than {DEPTH_MAX} deep")));
        }
        self.frames.push(Frame { kind, start, end });
        self.at = start;
        Ok(())
    }

    /// Takes a field of a message. `at` is where it begins. Fields that are not needed are skipped.
    fn field(
        &mut self,
        kind: FrameKind,
        number: u64,
        value: FieldValue,
        input: &HeaderInput,
        at: u64,
    ) -> Result<(), Error> {
        let FieldValue::Bytes { wire: COUNTED, range } = &value else {
            return match kind {
                FrameKind::Tensor(_) => self.tensor_field(number, value, input, at),
                _ => Ok(()),
            };
        };
        let range = range.clone();
        let first = FirstInside { tensors: self.model.tensors.len(), graphs: self.model.graphs.len() };
        let opened = match (kind, number) {
            (FrameKind::Model, 7) => FrameKind::Graph(0),
            (FrameKind::Model, 14) => FrameKind::Entry { is_metadata: true },
            (FrameKind::Model, 20) => FrameKind::Training,
            (FrameKind::Model, 25) => FrameKind::Function(self.add_graph(None, "function", at)?),
            (FrameKind::Training, 1 | 2) => FrameKind::Graph(self.add_graph(None, "training", at)?),
            (FrameKind::Function(graph), 1) => {
                self.model.graphs[graph].label = self.text(range, input, at)?;
                return Ok(());
            }
            (FrameKind::Function(graph), 7) | (FrameKind::Graph(graph), 1) => {
                self.model.nodes.push(OnnxNode { graph, ..OnnxNode::default() });
                FrameKind::Node { node: self.model.nodes.len() - 1, first }
            }
            (FrameKind::Graph(graph), 5) => FrameKind::Tensor(TensorOwner::Graph(graph)),
            (FrameKind::Graph(graph), 15) => {
                self.sparse += 1;
                FrameKind::Sparse { graph, number: self.sparse }
            }
            (FrameKind::Sparse { graph, number: sparse }, 1 | 2) => {
                FrameKind::Tensor(TensorOwner::Sparse { graph, number: sparse, has_indices: number == 2 })
            }
            (FrameKind::Node { node, .. }, 2..=4) => {
                let text = self.text(range, input, at)?;
                let node = &mut self.model.nodes[node];
                match number {
                    2 => drop(node.output.get_or_insert(text)),
                    3 => node.name = text,
                    _ => node.is_constant = text == "Constant",
                }
                return Ok(());
            }
            (FrameKind::Node { node, .. }, 5) => {
                self.model.attributes.push(OnnxAttribute { node, ..OnnxAttribute::default() });
                FrameKind::Attribute { attribute: self.model.attributes.len() - 1, first }
            }
            (FrameKind::Attribute { attribute, .. }, 1) => {
                self.model.attributes[attribute].name = self.text(range, input, at)?;
                return Ok(());
            }
            (FrameKind::Attribute { attribute, .. }, 5) => {
                // Readers of Protocol Buffers would merge them.
                if std::mem::replace(&mut self.model.attributes[attribute].has_tensor, true) {
                    return Err(fault(at, "an attribute has its tensor twice, which is not supported"));
                }
                FrameKind::Tensor(TensorOwner::Attribute(attribute))
            }
            (FrameKind::Attribute { attribute, .. }, 6 | 11) => {
                FrameKind::Graph(self.add_graph(Some(attribute), "", at)?)
            }
            (FrameKind::Entry { .. }, 1 | 2) => {
                let text = self.text(range, input, at)?;
                if number == 1 {
                    self.entry.0 = text
                } else {
                    self.entry.1 = text
                }
                return Ok(());
            }
            (FrameKind::Tensor(_), 8) => {
                self.tensor.name = self.text(range, input, at)?;
                return Ok(());
            }
            (FrameKind::Tensor(_), 13) => FrameKind::Entry { is_metadata: false },
            (FrameKind::Tensor(_), _) => return self.tensor_field(number, value, input, at),
            _ => return Ok(()),
        };
        if let FrameKind::Tensor(_) = opened {
            if self.model.tensors.len() == TENSORS_MAX {
                return Err(Error::Limit(format!("ONNX model: more than {TENSORS_MAX} tensors")));
            }
            self.tensor = TensorFields::default();
        }
        if let FrameKind::Entry { is_metadata } = opened {
            self.entry = Default::default();
            self.text += if is_metadata { ENTRY } else { 0 };
            if self.text > TEXTS_MAX {
                return Err(texts_too_long(at));
            }
        }
        self.open(opened, range.start, range.end, at)
    }

    fn add_graph(&mut self, attribute: Option<usize>, label: &str, at: u64) -> Result<usize, Error> {
        let number = self.model.graphs.len();
        if number == TENSORS_MAX {
            return Err(fault(at, &format!("there are more than {TENSORS_MAX} graphs")));
        }
        self.model.graphs.push(OnnxGraph { attribute, label: label.to_owned() });
        Ok(number)
    }

    fn text(&mut self, range: Range<u64>, input: &HeaderInput, at: u64) -> Result<String, Error> {
        let len = range.end - range.start;
        if len > TEXT_MAX || self.text + len > TEXTS_MAX {
            return Err(texts_too_long(at));
        }
        let text = String::from_utf8_lossy(input.get(range)?).into_owned();
        self.text += len;
        Ok(text)
    }

    fn tensor_field(&mut self, number: u64, value: FieldValue, input: &HeaderInput, at: u64) -> Result<(), Error> {
        let left = NUMBERS_MAX - self.numbers;
        let tensor = &mut self.tensor;
        let numbers = match number {
            1 => &mut tensor.dims,
            5 => &mut tensor.int32,
            7 => &mut tensor.int64,
            11 => &mut tensor.uint64,
            _ => {
                match (number, value) {
                    (2, FieldValue::Varint(value)) => tensor.data_type = value,
                    (14, FieldValue::Varint(value)) => tensor.location = value,
                    (3, FieldValue::Bytes { wire: COUNTED, .. }) => tensor.is_segment = true,
                    (9, FieldValue::Bytes { wire: COUNTED, range }) => tensor.raw = Some(range),
                    (4, FieldValue::Bytes { wire: COUNTED | FIXED32, range }) => tensor.floats.push(range),
                    (10, FieldValue::Bytes { wire: COUNTED | FIXED64, range }) => tensor.doubles.push(range),
                    _ => return Ok(()),
                }
                let added =
                    if number == 4 { added_numbers(&tensor.floats, 4) } else { added_numbers(&tensor.doubles, 8) };
                if added > left {
                    return Err(too_many(at));
                }
                self.numbers += added;
                return Ok(());
            }
        };
        let before = numbers.len();
        match value {
            FieldValue::Varint(value) if left > 0 => numbers.push(value),
            FieldValue::Bytes { wire: COUNTED, range } => {
                if range.end - range.start > (left * VARINT_MAX) as u64 {
                    return Err(too_many(at));
                }
                let mut rest = input.get(range.clone())?;
                while !rest.is_empty() {
                    let Some((value, len)) = take_varint(rest).filter(|_| numbers.len() - before < left) else {
                        return Err(if numbers.len() - before < left {
                            fault(at, "a number is cut or too long")
                        } else {
                            too_many(at)
                        });
                    };
                    numbers.push(value);
                    rest = &rest[len..];
                }
            }
            FieldValue::Varint(_) => return Err(too_many(at)),
            FieldValue::Bytes { .. } => {}
        }
        self.numbers += numbers.len() - before;
        Ok(())
    }

    /// Ends a message that begins at byte `start`.
    fn close(&mut self, kind: FrameKind, start: u64, input: &HeaderInput) -> Result<(), Error> {
        match kind {
            FrameKind::Group(number) => return Err(fault(self.at, &format!("group {number} has no end"))),
            FrameKind::Tensor(owner) => {
                let mut tensor = self.tensor.finish(start, input)?;
                tensor.name = std::mem::take(&mut self.tensor.name);
                self.tensor = TensorFields::default();
                self.model.tensors.push((owner, tensor));
            }
            FrameKind::Entry { is_metadata } => {
                let entry = std::mem::take(&mut self.entry);
                match is_metadata {
                    true => self.model.metadata.push(entry),
                    false => self.tensor.external.set(entry),
                }
            }
            // What has no tensor is not kept.
            FrameKind::Node { first, .. } if self.is_empty_since(first) => drop(self.model.nodes.pop()),
            FrameKind::Attribute { first, .. } if self.is_empty_since(first) => drop(self.model.attributes.pop()),
            _ => {}
        }
        Ok(())
    }

    fn is_empty_since(&self, first: FirstInside) -> bool {
        first.tensors == self.model.tensors.len() && first.graphs == self.model.graphs.len()
    }
}

/// The numbers that the last part of the data of a tensor adds to those that are decoded. One part is a part of the
/// file, and several are copied into memory.
fn added_numbers(parts: &[Range<u64>], width: usize) -> usize {
    let numbers = |part: &Range<u64>| ((part.end - part.start) as usize / width).max(PART);
    match parts {
        [_] => PART,
        [first, second] => numbers(first) + numbers(second),
        [.., last] => numbers(last),
        [] => 0,
    }
}

fn fault(at: u64, what: &str) -> Error {
    Error::Broken(format!("ONNX model: byte {at}: {what}"))
}

fn texts_too_long(at: u64) -> Error {
    Error::Limit(format!(
        "ONNX model: byte {at}: a name or a value of the metadata has more than {TEXT_MAX} bytes, or all of them have more \
         than {TEXTS_MAX}"
    ))
}

fn too_many(at: u64) -> Error {
    Error::Limit(format!(
        "ONNX model: byte {at}: more than {NUMBERS_MAX} numbers in fields such as int32_data, which weightfs decodes into \
         memory (save the model again with its tensors as raw_data)"
    ))
}

/// The number at byte `at` of a message that ends at byte `end`, and where it ends.
fn varint(input: &HeaderInput, at: u64, end: u64) -> Result<(u64, u64), Error> {
    // Most numbers are short, and the bytes after them may not be there yet.
    let held = input.from(at);
    let held = &held[..held.len().min((VARINT_MAX as u64).min(end - at.min(end)) as usize)];
    if let Some((value, len)) = take_varint(held) {
        return Ok((value, at + len as u64));
    }
    let bytes = input.get(at..at.saturating_add(VARINT_MAX as u64).min(end))?;
    let (value, len) = take_varint(bytes).ok_or_else(|| fault(at, "a number is cut or has more than 10 bytes"))?;
    Ok((value, at + len as u64))
}
