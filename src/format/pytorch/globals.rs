//! The globals that pickles of PyTorch name: which ones `torch.load` with `weights_only=True` accepts, and which ones
//! can run code.
//!
//! Source of the first list: `torch/_weights_only_unpickler.py` of torch 2.15.

use super::dtype;

/// Functions and classes that weightfs understands.
const KNOWN: [(&str, &[&str]); 12] = [
    ("collections", &["OrderedDict", "Counter"]),
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

const BUILTINS: &[&str] = &["bytearray", "set", "complex"];

/// Modules whose functions can run code or change the system.
const DANGEROUS: &[&str] = &[
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
    "bz2",
    "commands",
    "cPickle",
    "concurrent",
    "dbm",
    "distutils",
    "distutils.core",
    "doctest",
    "ensurepip",
    "fileinput",
    "ftplib",
    "gc",
    "glob",
    "gzip",
    "imp",
    "_imp",
    "inspect",
    "io",
    "_io",
    "joblib",
    "linecache",
    "logging",
    "lzma",
    "mmap",
    "nturl2path",
    "numpy.f2py",
    "numpy.lib.npyio",
    "numpy.ctypeslib",
    "pandas.io",
    "pkgutil",
    "platform",
    "popen2",
    "pydoc",
    "_thread",
    "thread",
    "threading",
    "setuptools",
    "shelve",
    "signal",
    "site",
    "smtplib",
    "socketserver",
    "sqlite3",
    "ssl",
    "tarfile",
    "telnetlib",
    "torch._dynamo",
    "torch._inductor",
    "torch.fx",
    "torch.hub",
    "torch.jit",
    "torch.multiprocessing",
    "torch.onnx",
    "torch.package",
    "torch.utils.cpp_extension",
    "torch.utils.collect_env",
    "torch.utils.bottleneck",
    "torch.utils.model_zoo",
    "types",
    "unittest",
    "urllib2",
    "venv",
    "wsgiref",
    "xmlrpc",
    "zipapp",
    "zipfile",
    "zipimport",
];

/// Functions of other modules that can run code, or lead to some that can.
const DANGEROUS_FUNCTIONS: &[(&str, &[&str])] = &[
    ("builtins", BUILTIN_FUNCTIONS),
    ("__builtin__", BUILTIN_FUNCTIONS),
    ("torch", &["load", "compile"]),
    ("torch.serialization", &["load"]),
    ("torch.storage", &["_load_from_bytes"]),
    ("numpy", &["load", "fromfile", "memmap", "save", "savez", "savetxt", "loadtxt", "genfromtxt"]),
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

/// Modules whose functions do nothing but build a value. The modules in them are others.
const HARMLESS: &[&str] = &[
    "copyreg",
    "copy_reg",
    "datetime",
    "decimal",
    "fractions",
    "numpy._core.multiarray",
    "numpy._core.numeric",
    "numpy.core.multiarray",
    "numpy.core.numeric",
    "numpy.ma.core",
    "numpy.random._pickle",
    "torch._tensor",
    "torch._utils",
    "uuid",
];

/// The same for single functions, and for classes with names in lower case.
const HARMLESS_FUNCTIONS: &[(&str, &[&str])] = &[
    ("builtins", VALUES),
    ("__builtin__", VALUES),
    ("collections", &["defaultdict", "deque"]),
    ("numpy", &["dtype", "ndarray"]),
    ("numpy.random", &["__RandomState_ctor"]),
];

const VALUES: &[&str] =
    &["bool", "bytes", "dict", "float", "frozenset", "int", "list", "object", "range", "slice", "str", "tuple", "type"];

/// What a global means for whoever loads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalKind {
    /// `torch.load` with `weights_only=True` accepts it.
    Known,
    /// Another class or function, which `torch.load` refuses.
    Unknown,
    /// A function that is called, and may do anything.
    UnknownCall,
    /// A function that can run code.
    Dangerous,
}

/// What the global `name` of `module` means. `is_called` is whether the pickle calls it.
pub fn global_kind(module: &str, name: &str, is_called: bool) -> GlobalKind {
    let is_in = |list: &[(&str, &[&str])]| list.iter().any(|(of, names)| *of == module && names.contains(&name));
    // `a.b.c` can name an attribute of any object in a module.
    if name.contains('.') {
        return GlobalKind::Dangerous;
    }
    if is_in(&KNOWN) || dtype::of_storage(module, name).is_some() || dtype::of_name(module, name).is_some() {
        return GlobalKind::Known;
    }
    let is_scheme = ["per_tensor_affine", "per_channel_affine"].contains(&name);
    if module == "torch" && (name.ends_with("Tensor") || is_scheme) {
        return GlobalKind::Known;
    }
    let inside = |dangerous: &&str| {
        module.strip_prefix(*dangerous).is_some_and(|rest| matches!(rest.as_bytes(), [] | [b'.', ..]))
    };
    // Classes have capitals. Enumerations and paths are called too.
    let is_class = name.trim_start_matches('_').starts_with(char::is_uppercase);
    match () {
        () if DANGEROUS.iter().any(inside) || is_in(DANGEROUS_FUNCTIONS) => GlobalKind::Dangerous,
        () if is_called && !is_class && !HARMLESS.contains(&module) && !is_in(HARMLESS_FUNCTIONS) => {
            GlobalKind::UnknownCall
        }
        () => GlobalKind::Unknown,
    }
}
