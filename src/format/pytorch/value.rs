//! The kinds of the values in a pickle: tensors, mappings, sequences, other objects, and values of one line.

use super::globals::REBUILDERS;
use crate::format::metadata::{ScalarType, float_text};
use crate::format::pickle::{PickleObject, PickleTree, PickleValue, describe_ndarray};

pub enum ValueKind<'t> {
    /// A function that builds a tensor, and its arguments.
    Tensor {
        function: &'t str,
        args: &'t [PickleValue],
    },
    Dict(PickledMapping<'t>),
    List(&'t [PickleValue]),
    Object(&'t PickleObject),
    /// A value of one line.
    Scalar(ScalarType, String),
}

/// A mapping: dict, or the arguments of a class of dicts and the items that are added. Nothing is copied, because many
/// objects can share their arguments.
#[derive(Clone, Copy)]
pub struct PickledMapping<'t> {
    tree: &'t PickleTree<'t>,
    /// Dicts and lists of pairs.
    args: &'t [PickleValue],
    added: &'t [(PickleValue, PickleValue)],
}

impl<'t> PickledMapping<'t> {
    pub fn items(self) -> impl Iterator<Item = (PickleValue, PickleValue)> + 't {
        let Self { tree, args, added } = self;
        // Python 2 writes pairs.
        let pairs = args.iter().flat_map(move |arg| tree.elements(*arg)).filter_map(move |pair| {
            let [key, value] = tree.elements(*pair) else { return None };
            Some((*key, *value))
        });
        args.iter().flat_map(move |arg| tree.items(*arg)).copied().chain(pairs).chain(added.iter().copied())
    }

    /// Number of values that are searched to find one.
    pub fn work(self) -> usize {
        let given = self.args.iter().map(|arg| self.tree.elements(*arg).len() + self.tree.items(*arg).len());
        given.sum::<usize>() + self.added.len()
    }
}

impl<'t> ValueKind<'t> {
    /// The values that it holds.
    pub fn parts(self) -> Box<dyn Iterator<Item = PickleValue> + 't> {
        match self {
            Self::Tensor { .. } | Self::Scalar(..) => Box::new(std::iter::empty()),
            Self::Dict(items) => Box::new(items.items().map(|(_, value)| value)),
            Self::List(values) => Box::new(values.iter().copied()),
            Self::Object(object) => {
                let items = object.items.iter();
                let items = items
                    .flat_map(|items| items.list.iter().copied().chain(items.dict.iter().map(|(_, value)| *value)));
                Box::new([object.args, object.state].into_iter().chain(items))
            }
        }
    }
}

/// The kind and the number of a value that can hold others.
pub fn container(value: PickleValue) -> Option<(&'static str, u32)> {
    match value {
        PickleValue::Tuple(at) => Some(("tuple", at)),
        PickleValue::List(at) => Some(("list", at)),
        PickleValue::Dict(at) => Some(("dict", at)),
        PickleValue::Object(at) => Some(("object", at)),
        _ => None,
    }
}

pub fn value_kind<'t>(tree: &'t PickleTree, value: PickleValue) -> ValueKind<'t> {
    match value {
        PickleValue::None => text_kind("None"),
        PickleValue::Bool(value) => ValueKind::Scalar(ScalarType::Bool, value.to_string()),
        PickleValue::Int(value) => ValueKind::Scalar(ScalarType::I64, value.to_string()),
        PickleValue::Big(span) => {
            let digits: String = tree.bytes(span).iter().rev().take(64).map(|byte| format!("{byte:02x}")).collect();
            text_kind(format!("0x{digits}"))
        }
        PickleValue::Float(value) => ValueKind::Scalar(ScalarType::F64, float_text(value)),
        PickleValue::Text(span) | PickleValue::Bytes(span) => {
            text_kind(String::from_utf8_lossy(tree.bytes(span)).into_owned())
        }
        PickleValue::Tuple(_) | PickleValue::List(_) => ValueKind::List(tree.elements(value)),
        PickleValue::Dict(_) => ValueKind::Dict(PickledMapping { tree, args: &[], added: tree.items(value) }),
        PickleValue::Global(_) => text_kind(match tree.global(value) {
            Some(("torch", name)) => format!("torch.{name}"),
            Some((module, name)) => format!("<{module}.{name}>"),
            None => String::new(),
        }),
        PickleValue::Persistent(_) => text_kind("<storage>"),
        PickleValue::Object(_) => match tree.object(value) {
            Some(object) => object_kind(tree, object),
            None => text_kind(String::new()),
        },
    }
}

fn object_kind<'t>(tree: &'t PickleTree, object: &'t PickleObject) -> ValueKind<'t> {
    let Some((module, name)) = tree.global(object.class) else { return ValueKind::Object(object) };
    let args = tree.elements(object.args);
    if let Some(function) = builder(module, name) {
        return ValueKind::Tensor { function, args };
    }
    if let Some((scalar, text)) = describe_ndarray(tree, object) {
        return ValueKind::Scalar(scalar, text);
    }
    let items = object.items.as_deref();
    let first = args.first().copied();
    match (module, name) {
        ("collections", "OrderedDict" | "Counter" | "defaultdict") | ("builtins" | "__builtin__", "dict") => {
            let added = items.map_or(&[][..], |items| &items.dict);
            // The class of a default value precedes the items.
            ValueKind::Dict(PickledMapping { tree, args: &args[..args.len().min(2)], added })
        }
        ("torch", "Size") | ("builtins" | "__builtin__", "set" | "frozenset" | "list" | "tuple") => {
            ValueKind::List(first.map_or(&[], |first| tree.elements(first)))
        }
        ("torch", "device") => match (first.and_then(|first| tree.text(first)), args.get(1)) {
            (Some(device), Some(PickleValue::Int(index))) => text_kind(format!("{device}:{index}")),
            (Some(device), _) => text_kind(device),
            (None, _) => ValueKind::Object(object),
        },
        ("torch.serialization", "_get_layout") | ("_codecs", "encode") | ("builtins" | "__builtin__", "bytearray") => {
            match first {
                Some(text @ (PickleValue::Text(_) | PickleValue::Bytes(_))) => value_kind(tree, text),
                _ => ValueKind::Object(object),
            }
        }
        ("builtins" | "__builtin__", "complex") => match args {
            [PickleValue::Float(real), PickleValue::Float(imaginary)] => text_kind(format!(
                "{}{}{}j",
                float_text(*real),
                if imaginary.is_sign_negative() { "" } else { "+" },
                float_text(*imaginary)
            )),
            _ => ValueKind::Object(object),
        },
        _ => ValueKind::Object(object),
    }
}

/// Stands for a function: a tensor of a tar archive, which lies outside of the pickle. Its argument is the key.
pub const TAR_TENSOR: &str = "tensor of the archive";

/// A function that copies a tensor to a device, and converts it to a dtype.
pub const CONVERTED: &str = "_rebuild_device_tensor_from_cpu_tensor";

/// Functions whose tensors have no data in a storage.
pub const NO_STORAGE: [&str; 3] = [FROM_NDARRAY, "_rebuild_meta_tensor_no_storage", WRAPPER];

pub const FROM_NDARRAY: &str = "_rebuild_device_tensor_from_numpy";

/// A function that builds an object of a subclass of Tensor, whose attributes are the tensors that have the data.
pub const WRAPPER: &str = "_rebuild_wrapper_subclass";

/// The function with that name, if it builds a tensor.
pub fn builder(module: &str, name: &str) -> Option<&'static str> {
    match (module, name) {
        ("torch._utils", name) => REBUILDERS.iter().find(|known| **known == name).copied(),
        ("torch._tensor", "_rebuild_from_type_v2") => Some("_rebuild_from_type_v2"),
        ("torch.nn.parameter", "Parameter") => Some("Parameter"),
        _ => None,
    }
}

fn text_kind(text: impl Into<String>) -> ValueKind<'static> {
    ValueKind::Scalar(ScalarType::String, text.into())
}
