//! The place of a tensor in the file, by the arguments of the function that builds it.

use super::RANK_MAX;
use super::dtype::{self, F4_PAIR, TorchDtype};
use super::storages::{TarTensor, TorchStorages, object_key};
use super::value::{TAR_TENSOR, ValueKind, value_kind};
use crate::format::pickle::{PickleTree, PickleValue};
use crate::format::tensors::{c_strides, fits};
use crate::text::{brackets, quote};
use std::ops::Range;

/// A tensor, as the pickle describes it.
pub struct PickledTensor {
    pub dtype: TorchDtype,
    pub shape: Vec<u64>,
    /// `None` if the elements lie in C order.
    pub strides: Option<Vec<u64>>,
    pub range: Range<u64>,
}

/// The tensor that a function builds from these arguments.
pub fn rebuild_tensor(
    tree: &PickleTree,
    storages: &TorchStorages,
    function: &str,
    args: &[PickleValue],
) -> Result<PickledTensor, String> {
    if let (TAR_TENSOR, [id]) = (function, args) {
        return tar_tensor(tree, storages, *id);
    }
    let [storage, offset, shape, strides, rest @ ..] = args else {
        return Err(wrong_arguments(function));
    };
    let (bits, v3) = match (function, rest) {
        ("_rebuild_tensor_v3", [_, _, dtype, rest @ ..]) => (rest.first(), Some(*dtype)),
        ("_rebuild_tensor_v2", [_, _, rest @ ..]) => (rest.first(), None),
        ("_rebuild_tensor" | "_rebuild_qtensor", _) => (None, None),
        _ => return Err(wrong_arguments(function)),
    };
    check_bits(tree, bits.copied())?;
    let (shape, strides) = (numbers(tree, *shape, function)?, numbers(tree, *strides, function)?);
    let PickleValue::Int(offset) = *offset else { return Err(wrong_arguments(function)) };
    let (class, key, numel) = storage_of(tree, *storage)?;
    let dtype = match v3 {
        None => class,
        Some(dtype) => {
            let (module, name) = tree.global(dtype).ok_or_else(|| wrong_arguments(function))?;
            dtype::of_name(module, name)
                .ok_or_else(|| format!("dtype {} is not known", quote(&format!("{module}.{name}"))))?
        }
    };
    if dtype.size == 0 || class.size == 0 {
        return Err("several elements of quint4x2 or quint2x4 share a byte, which is not supported".to_owned());
    }
    let (entry, data) = storages.find(key)?;
    let size = data.end - data.start;
    if Some(size) != numel.checked_mul(class.size.into()) {
        let width = class.size;
        return Err(format!("its storage {entry} has {size} bytes, but {numel} elements of {width} bytes"));
    }
    let data = match view_of(tree, *storage)? {
        None => data,
        Some((_, Range { start, end })) if end <= numel => {
            let width = u64::from(class.size);
            data.start + start * width..data.start + end * width
        }
        Some((_, Range { start, end })) => {
            return Err(format!("its storage is a view of elements {start} to {end} of {entry}, which has {numel}"));
        }
    };
    place(dtype, &shape, &strides, offset, &data)
}

/// The tensor of a tar archive with this id in the pickle.
fn tar_tensor(tree: &PickleTree, storages: &TorchStorages, id: PickleValue) -> Result<PickledTensor, String> {
    let key = object_key(tree, id).unwrap_or_default();
    let found = storages.tensor(&key);
    let TarTensor { dtype, shape, strides, offset, range } =
        found.ok_or_else(|| format!("the file has no tensor with the id {}", quote(&key)))?;
    place(*dtype, shape, strides, *offset, range)
}

/// A view of a storage: its key, and the elements of the storage. Only files of torch before version 1.6 have views.
pub fn view_of<'t>(tree: &'t PickleTree, value: PickleValue) -> Result<Option<(&'t str, Range<u64>)>, String> {
    let parts = tree.persistent(value).map_or(&[][..], |id| tree.elements(id));
    let Some(view) = parts.get(5).filter(|view| **view != PickleValue::None) else { return Ok(None) };
    let found = match tree.elements(*view) {
        [key, PickleValue::Int(offset @ 0..), PickleValue::Int(len @ 0..)] => {
            let start = offset.unsigned_abs();
            let range = start.checked_add(len.unsigned_abs()).map(|end| start..end);
            tree.text(*key).zip(range)
        }
        _ => None,
    };
    found.map(Some).ok_or_else(|| "its storage is a view with a key or numbers that torch does not write".to_owned())
}

fn numbers(tree: &PickleTree, value: PickleValue, function: &str) -> Result<Vec<i64>, String> {
    // Before the numbers are copied: many tensors can share a long tuple.
    let rank = tree.elements(value).len();
    if rank > RANK_MAX {
        return Err(format!("{rank} dimensions; torch has at most {RANK_MAX}"));
    }
    let ValueKind::List(values) = value_kind(tree, value) else { return Err(wrong_arguments(function)) };
    let numbers = values.iter().take(RANK_MAX + 1).map(|value| match value {
        PickleValue::Int(number) => Some(*number),
        _ => None,
    });
    let numbers = numbers.collect::<Option<Vec<i64>>>().filter(|numbers| numbers.len() <= RANK_MAX);
    numbers.ok_or_else(|| wrong_arguments(function))
}

/// The class of a storage, its key, and its number of elements.
pub fn storage_of<'t>(tree: &'t PickleTree, value: PickleValue) -> Result<(TorchDtype, &'t str, u64), String> {
    let parts = tree.persistent(value).map_or(&[][..], |id| tree.elements(id));
    if let [kind, class, key, _, PickleValue::Int(numel @ 0..), ..] = parts
        && tree.is_text(*kind, "storage")
        && let (Some(key), Some((module, name))) = (tree.text(*key), tree.global(*class))
    {
        let class = dtype::of_storage(module, name);
        let class =
            class.ok_or_else(|| format!("storage class {} is not known", quote(&format!("{module}.{name}"))))?;
        return Ok((class, key, numel.unsigned_abs()));
    }
    Err("its storage is not a storage of the file".to_owned())
}

/// Fails if the values of a tensor differ from its bytes.
fn check_bits(tree: &PickleTree, bits: Option<PickleValue>) -> Result<(), String> {
    let Some(bits) = bits else { return Ok(()) };
    // Torch writes at most two items, and several tensors can share what another program writes.
    let items = tree.items(bits);
    if items.len() > 16 || matches!(bits, PickleValue::Object(_)) {
        return Err(wrong_arguments("_rebuild_tensor"));
    }
    for (bit, what, method) in [("conj", "conjugate", "resolve_conj"), ("neg", "negative", "resolve_neg")] {
        if items.iter().any(|(key, value)| tree.is_text(*key, bit) && *value == PickleValue::Bool(true)) {
            return Err(format!(
                "it is a {what} view of its storage, so that its values differ from the bytes (save tensor.{method}())"
            ));
        }
    }
    Ok(())
}

fn wrong_arguments(function: &str) -> String {
    format!("{function} has arguments that torch does not write")
}

/// Checks the place of a tensor in the range `data` of its storage.
fn place(
    dtype: TorchDtype,
    shape: &[i64],
    strides: &[i64],
    offset: i64,
    data: &Range<u64>,
) -> Result<PickledTensor, String> {
    let rank = shape.len();
    if rank != strides.len() {
        return Err(format!("shape {shape:?} has {rank} dimensions, but there are {} strides", strides.len()));
    }
    let (Some(dims), Some(steps), Ok(offset)) = (unsigned(shape), unsigned(strides), u64::try_from(offset)) else {
        return Err(format!("shape {shape:?} or strides {strides:?}: a number is negative"));
    };
    let size = u64::from(dtype.size);
    if dims.contains(&0) {
        return Ok(PickledTensor { dtype, shape: dims, strides: None, range: data.start..data.start });
    }
    let nbytes = dims.iter().try_fold(2 * size, |product, dim| fits(product.checked_mul(*dim)?));
    if nbytes.is_none() {
        return Err(format!("shape {} of {} is larger than 2^63-1 bytes", brackets(&dims), dtype.name));
    }
    let last =
        dims.iter().zip(&steps).try_fold(0u64, |last, (dim, step)| last.checked_add((dim - 1).checked_mul(*step)?));
    let needed = last.and_then(|last| last.checked_add(offset)?.checked_add(1)).unwrap_or(u64::MAX);
    let numel = (data.end - data.start) / size;
    if needed > numel {
        return Err(format!(
            "shape {} with strides {} from element {offset} on needs {needed} elements, but its storage has {numel}",
            brackets(&dims),
            brackets(&steps)
        ));
    }
    let range = data.start + offset * size..data.start + needed * size;
    let dense = c_strides(&dims);
    let is_dense = dims.iter().zip(steps.iter().zip(&dense)).all(|(dim, (step, dense))| *dim == 1 || step == dense);
    if !is_dense && dtype.name == F4_PAIR {
        return Err(format!("strides {} of pairs of 4-bit numbers are not supported", brackets(&steps)));
    }
    Ok(PickledTensor { dtype, shape: dims, strides: (!is_dense).then_some(steps), range })
}

fn unsigned(numbers: &[i64]) -> Option<Vec<u64>> {
    numbers.iter().map(|number| u64::try_from(*number).ok()).collect()
}
