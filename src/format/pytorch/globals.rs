//! The globals that pickles of PyTorch name: which ones `torch.load` with `weights_only=True` accepts, and which ones
//! can run code.
//!
//! Source of the first list: `torch/_weights_only_unpickler.py` of torch 2.15.

use super::dtype;

/// Functions and classes that weightfs understands.
const KNOWN: [(&str, &[&str]); 12] = [
    ("collections", &["OrderedDict", "Counter", "defaultdict"]),
    ("builtins", BUILTINS),
    ("__builtin__", BUILTINS),
    ("_codecs", &["encode"]),
    ("torch", &["Size", "device", "Tensor"]),
    ("torch.nn.parameter", &["Parameter"]),
    ("torch.nn", &["Parameter"]),
    ("torch.serialization", &["_get_layout"]),
    ("torch.storage", &["UntypedStorage", "TypedStorage"]),
    ("torch._tensor", &["_rebuild_from_type_v2"]),
    (
        "torch._utils",
        &[
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
        ],
    ),
    ("torch._C._nn", &["Parameter"]),
];

const BUILTINS: &[&str] = &["bytearray", "set", "frozenset", "complex", "dict", "list", "tuple"];

/// Modules whose functions can run code or change the system.
const DANGEROUS: [&str; 37] = [
    "os",
    "nt",
    "posix",
    "posixpath",
    "sys",
    "subprocess",
    "_posixsubprocess",
    "shutil",
    "socket",
    "ctypes",
    "_ctypes",
    "importlib",
    "runpy",
    "pty",
    "pickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "code",
    "codeop",
    "timeit",
    "pdb",
    "bdb",
    "cProfile",
    "profile",
    "trace",
    "asyncio",
    "multiprocessing",
    "webbrowser",
    "urllib",
    "http",
    "requests",
    "pip",
    "tempfile",
    "operator",
    "functools",
];

/// Functions of other modules that can run code, or lead to some that can.
const DANGEROUS_FUNCTIONS: [(&str, &[&str]); 6] = [
    ("builtins", BUILTIN_FUNCTIONS),
    ("__builtin__", BUILTIN_FUNCTIONS),
    ("torch", &["load", "compile"]),
    ("torch.hub", &["load", "load_state_dict_from_url"]),
    ("torch.serialization", &["load"]),
    ("numpy.testing._private.utils", &["runstring"]),
];

const BUILTIN_FUNCTIONS: &[&str] = &[
    "eval",
    "exec",
    "execfile",
    "compile",
    "open",
    "file",
    "input",
    "apply",
    "map",
    "filter",
    "getattr",
    "setattr",
    "delattr",
    "__import__",
    "globals",
    "vars",
    "breakpoint",
];

/// What a global means for whoever loads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `torch.load` with `weights_only=True` accepts it.
    Known,
    /// Another class or function, which `torch.load` refuses.
    Unknown,
    /// A function that can run code.
    Dangerous,
}

/// What the global `name` of `module` means.
pub fn kind(module: &str, name: &str) -> Kind {
    let is_in = |list: &[(&str, &[&str])]| list.iter().any(|(of, names)| *of == module && names.contains(&name));
    // `a.b.c` can name an attribute of any object in a module.
    let is_plain = !name.contains('.');
    if is_plain
        && (is_in(&KNOWN) || dtype::of_storage(module, name).is_some() || dtype::of_name(module, name).is_some())
    {
        return Kind::Known;
    }
    let is_scheme = ["per_tensor_affine", "per_channel_affine"].contains(&name);
    let is_tensor = module == "torch" && (name.ends_with("Tensor") || is_scheme);
    if is_plain && is_tensor {
        return Kind::Known;
    }
    let top = module.split('.').next().unwrap_or(module);
    match DANGEROUS.contains(&top) || DANGEROUS.contains(&module) || is_in(&DANGEROUS_FUNCTIONS) {
        true => Kind::Dangerous,
        false => Kind::Unknown,
    }
}
