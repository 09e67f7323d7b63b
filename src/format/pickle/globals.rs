//! Globals that pickles name: those that can run code when Python loads the file, and those that are harmless.

/// Names in a module, separated by spaces.
type ModuleNames = (&'static str, &'static str);

/// Modules whose functions can run code or change the system.
const DANGEROUS: &str = "\
    _ctypes _imp _io _pickle _posixsubprocess _thread asyncio bdb bz2 cloudpickle code codeop commands concurrent \
    cPickle cProfile ctypes dbm dill distutils distutils.core doctest ensurepip fileinput ftplib functools gc glob \
    gzip http imp importlib inspect io joblib linecache logging lzma marshal mmap multiprocessing nt nturl2path \
    numpy.ctypeslib numpy.f2py numpy.lib.npyio operator os pandas.io pdb pickle pip pkgutil platform popen2 posix \
    posixpath profile pty pydoc requests runpy setuptools shelve shutil signal site smtplib socket socketserver \
    sqlite3 ssl subprocess sys tarfile telnetlib tempfile thread threading timeit torch._dynamo torch._inductor \
    torch.fx torch.hub torch.jit torch.multiprocessing torch.onnx torch.package torch.utils.bottleneck \
    torch.utils.collect_env torch.utils.cpp_extension torch.utils.model_zoo trace types unittest urllib urllib2 venv \
    webbrowser wsgiref xmlrpc zipapp zipfile zipimport";

/// Functions of other modules that can run code, or return functions that can.
const DANGEROUS_FUNCTIONS: &[ModuleNames] = &[
    ("builtins", BUILTIN_FUNCTIONS),
    ("__builtin__", BUILTIN_FUNCTIONS),
    ("torch", "load compile"),
    ("torch.serialization", "load"),
    ("torch.storage", "_load_from_bytes"),
    ("numpy", "load fromfile memmap save savez savetxt loadtxt genfromtxt"),
    ("numpy.testing._private.utils", "runstring"),
];

const BUILTIN_FUNCTIONS: &str = "\
    eval exec execfile compile open file input apply map filter getattr setattr delattr __import__ globals vars \
    breakpoint";

/// Modules whose functions only build a value. Their submodules are not included.
const HARMLESS: &str = "\
    copyreg copy_reg datetime decimal fractions numpy._core.multiarray numpy._core.numeric numpy.core.multiarray \
    numpy.core.numeric numpy.ma.core numpy.random._pickle torch._tensor torch._utils uuid";

/// Single functions of other modules that only build a value, and classes whose names are in lower case.
const HARMLESS_FUNCTIONS: &[ModuleNames] = &[
    ("builtins", VALUES),
    ("__builtin__", VALUES),
    ("collections", "defaultdict deque"),
    ("numpy", "dtype ndarray"),
    ("numpy.random", "__RandomState_ctor"),
];

const VALUES: &str = "bool bytes dict float frozenset int list object range slice str tuple type";

/// The danger of a global that the format does not know, for whoever loads the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GlobalDanger {
    /// A class, or a harmless function.
    Unknown,
    /// A function that is called, and may do anything.
    UnknownCall,
    /// A function that can run code.
    Dangerous,
}

/// Whether the global `name` of `module` is in a list.
pub fn is_listed(list: &[ModuleNames], module: &str, name: &str) -> bool {
    list.iter().any(|(of, names)| *of == module && has_word(names, name))
}

/// Whether a list of words that are separated by spaces has this word.
fn has_word(words: &str, word: &str) -> bool {
    words.split_ascii_whitespace().any(|other| other == word)
}

/// The danger of the global `name` of `module`. `is_called` is whether the pickle calls it.
pub fn global_danger(module: &str, name: &str, is_called: bool) -> GlobalDanger {
    let mut modules = DANGEROUS.split_ascii_whitespace();
    let is_inside =
        modules.any(|of| module.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')));
    // Classes have capitals. Enumerations and paths are called too.
    let is_class = name.trim_start_matches('_').starts_with(char::is_uppercase);
    let is_harmless = is_class || has_word(HARMLESS, module) || is_listed(HARMLESS_FUNCTIONS, module, name);
    match () {
        // `a.b.c` can name an attribute of any object in a module.
        () if name.contains('.') || is_inside || is_listed(DANGEROUS_FUNCTIONS, module, name) => {
            GlobalDanger::Dangerous
        }
        () if is_called && !is_harmless => GlobalDanger::UnknownCall,
        () => GlobalDanger::Unknown,
    }
}
