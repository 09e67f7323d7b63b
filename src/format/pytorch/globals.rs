//! The globals that `torch.load` with `weights_only=True` accepts.
//!
//! Source: `torch/_weights_only_unpickler.py` of torch 2.15.

use super::dtype;
use crate::format::pickle::is_listed;

/// Functions of `torch._utils` that build a tensor.
pub const REBUILDERS: [&str; 11] = [
    "_rebuild_tensor",
    "_rebuild_tensor_v2",
    "_rebuild_tensor_v3",
    "_rebuild_parameter",
    "_rebuild_parameter_with_state",
    "_rebuild_qtensor",
    "_rebuild_sparse_tensor",
    "_rebuild_device_tensor_from_numpy",
    "_rebuild_device_tensor_from_cpu_tensor",
    "_rebuild_meta_tensor_no_storage",
    "_rebuild_wrapper_subclass",
];

/// Modules, and the names of the functions and classes in each.
const KNOWN: [(&str, &str); 11] = [
    ("collections", "OrderedDict Counter"),
    ("builtins", BUILTINS),
    ("__builtin__", BUILTINS),
    ("_codecs", "encode"),
    ("torch", "Size device Tensor per_tensor_affine per_channel_affine"),
    ("torch.nn.parameter", "Parameter"),
    ("torch.nn", "Parameter"),
    ("torch.serialization", "_get_layout"),
    ("torch.storage", "UntypedStorage TypedStorage"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch._C._nn", "Parameter"),
];

const BUILTINS: &str = "bytearray set complex";

pub fn is_known(module: &str, name: &str) -> bool {
    let is_dtype = dtype::of_storage(module, name).is_some() || dtype::of_name(module, name).is_some();
    let is_tensor_type = module == "torch" && name.ends_with("Tensor") && !name.contains('.');
    let is_rebuilder = module == "torch._utils" && REBUILDERS.contains(&name);
    is_dtype || is_tensor_type || is_rebuilder || is_listed(&KNOWN, module, name)
}
