//! Pickles that run code when Python loads them, in the ways by which they are hidden from scanners.

use crate::room::{Room, floats};

/// A zip archive of stored entries, without checksums.
pub fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let offset = out.len() as u32;
        let sizes = [(data.len() as u32).to_le_bytes(), (data.len() as u32).to_le_bytes()].concat();
        let lengths = [(name.len() as u16).to_le_bytes(), [0, 0]].concat();
        out.extend([b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0", &sizes[..], &lengths, name.as_bytes(), data].concat());
        directory.extend([b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0", &sizes[..], &lengths].concat());
        directory.extend([0; 10]);
        directory.extend(offset.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (start, count) = (out.len() as u32, (entries.len() as u16).to_le_bytes());
    out.extend(&directory);
    out.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count].concat());
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(start.to_le_bytes());
    out.extend([0, 0]);
    out
}

/// The tensor `w` of two numbers, as torch pickles it.
const TENSOR: &[u8] = b"X\x01\0\0\0wctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n\
    X\x01\0\0\x000X\x03\0\0\0cpuK\x02tQK\0K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRs";

/// The pickle of a dict with the tensor `w` and, under the key `note`, the value that these opcodes make.
fn pickle(value: &[u8]) -> Vec<u8> {
    [b"\x80\x04}", TENSOR, b"X\x04\0\0\0note", value, b"s."].concat()
}

/// A checkpoint of torch with this pickle and the numbers of the tensor `w`.
fn archive(pickle: &[u8], values: &[f32; 2]) -> Vec<u8> {
    zip(&[("a/data.pkl", pickle), ("a/data/0", &floats(values)), ("a/version", b"3\n")])
}

/// A checkpoint of torch with the tensor `w`.
pub fn checkpoint(values: &[f32; 2]) -> Vec<u8> {
    archive(&[b"\x80\x02}", TENSOR, b"."].concat(), values)
}

/// Runs `check`, and fails unless it reports an error with this text.
fn assert_reported(room: &Room, file: &[u8], expected: &str) {
    std::fs::write(room.path("model.bin"), file).unwrap();
    let output = room.sh("weightfs check model.bin");
    assert!(output.code == 1 && output.out.contains("error: "), "{expected}: {output:?}");
    assert!(output.out.contains(expected), "{expected}: {output:?}");
}

#[test]
fn check_names_every_function_that_runs_code() {
    // Opcodes that make a value, and what `check` says.
    const CALLS: [(&[u8], &str); 27] = [
        (b"cos\nsystem\n(X\x02\0\0\0idtR", "names os.system, which can run code"),
        (b"cposix\nsystem\n(tR", "names posix.system, which can run code"),
        (b"cbuiltins\neval\n(tR", "names builtins.eval, which can run code"),
        (b"csubprocess\nPopen\n(t\x81", "names subprocess.Popen, which can run code"),
        // A function that is an argument, and one that is only named.
        (b"cfunctools\npartial\n(cos\nsystem\nt\x81)b", "names os.system, which can run code"),
        (b"cos\nsystem\n", "names os.system, which can run code"),
        // Imports by functions of Python.
        (b"c__builtin__\n__import__\n(X\x02\0\0\0ostR", "names __builtin__.__import__, which can run code"),
        (
            b"c__builtin__\ngetattr\n(c__builtin__\n__import__\n(X\x02\0\0\0ostRX\x06\0\0\0systemtR(tR",
            "calls a value that is not a class or function with a name",
        ),
        (b"coperator\nattrgetter\n(tR", "names operator.attrgetter, which can run code"),
        // Names that are values of the pickle, also stored ones.
        (b"\x8c\x02os\x8c\x06system\x93(tR", "names os.system, which can run code"),
        (b"X\x06\0\0\0systemq\x070\x8c\x02osh\x07\x93(tR", "names os.system, which can run code"),
        // Modules that install, debug, measure and compile, and attributes of classes in other modules.
        (b"cpip\nmain\n(tR", "names pip.main, which can run code"),
        (b"censurepip\n_run_pip\n(tR", "names ensurepip._run_pip, which can run code"),
        (b"cpdb\nrun\n(tR", "names pdb.run, which can run code"),
        (b"cdoctest\ndebug_script\n(tR", "names doctest.debug_script, which can run code"),
        (b"ctimeit\ntimeit\n(tR", "names timeit.timeit, which can run code"),
        (b"ccProfile\nrun\n(tR", "names cProfile.run, which can run code"),
        (b"cpydoc\npipepager\n(tR", "names pydoc.pipepager, which can run code"),
        (b"cbz2\nopen\n(tR", "names bz2.open, which can run code"),
        (
            b"casyncio.unix_events\n_UnixSubprocessTransport._start\n(tR",
            "_UnixSubprocessTransport._start, which can run",
        ),
        (b"cidlelib.pyshell\nModifiedInterpreter.runcode\n(tR", "ModifiedInterpreter.runcode, which can run code"),
        (b"clib2to3.pgen2.grammar\nGrammar.loads\n(tR", "names lib2to3.pgen2.grammar.Grammar.loads, which can run"),
        (b"cnumpy.testing._private.utils\nrunstring\n(tR", "names numpy.testing._private.utils.runstring, which can"),
        (b"ctorch.hub\nload\n(tR", "names torch.hub.load, which can run code"),
        // A pickle in a pickle.
        (b"ctorch.storage\n_load_from_bytes\n(B\x02\0\0\0N.tR", "names torch.storage._load_from_bytes, which can run"),
        // Functions that nobody has listed.
        (b"ctorch.utils._config_module\nload_config\n(tR", "load_config, which is not known to be harmless"),
        (b"chelpers\nrun\n(tR", "calls helpers.run, which is not known to be harmless"),
    ];
    let room = Room::new();
    for (value, expected) in CALLS {
        assert_reported(&room, &archive(&pickle(value), &[1.0, 2.0]), expected);
        // Nothing is run, so the tensor is there.
        assert_eq!(room.sh("weightfs cat model.bin f32/w.f32 | od -An -tf4").out.trim(), "1               2");
    }
}

#[test]
fn pickles_that_scanners_cannot_read_are_refused() {
    const CALL: &[u8] = b"cos\nsystem\n(X\x02\0\0\0idtR";
    let (room, harmless, harmful) = (Room::new(), pickle(b"N"), pickle(CALL));
    let whole = archive(&harmful, &[1.0, 2.0]);
    let values = floats(&[1.0, 2.0]);
    // Opcodes with which Python calls functions, and which torch does not write.
    for (value, opcode) in [(&b"(ios\nsystem\n"[..], "INST"), (b"(cos\nsystem\no", "OBJ"), (b"\x82\x01", "EXT")] {
        let expected = format!("opcode {opcode} can run code, and torch does not write it");
        assert_reported(&room, &archive(&pickle(value), &[1.0, 2.0]), &expected);
    }
    // Python has called the function when it meets the fault.
    let broken = [&harmful[..harmful.len() - 1], b"\xff"].concat();
    assert_reported(&room, &archive(&broken, &[1.0, 2.0]), "opcode 0xff is not one that torch writes");
    // Archives that libraries of Python refuse and torch reads, or that have two readings.
    let directory = whole.windows(4).position(|part| part == b"PK\x01\x02").unwrap();
    let mut encrypted = whole.clone();
    encrypted[directory + 8] |= 1;
    assert_reported(&room, &encrypted, "entry \"a/data.pkl\" is encrypted");
    let mut renamed = whole.clone();
    renamed[30] = b'b';
    assert_reported(&room, &renamed, "entry \"a/data.pkl\" is called \"b/data.pkl\" in its local header");
    let mut sum = whole.clone();
    sum[directory + 16] ^= 1;
    assert_reported(&room, &sum, "names os.system, which can run code");
    let second = |name| zip(&[("a/data.pkl", &harmless[..]), ("a/data/0", &values), (name, &harmful)]);
    assert_reported(&room, &second("b/data.pkl"), "both \"a/data.pkl\" and \"b/data.pkl\" could be the pickle");
    assert_reported(&room, &second("a/data.pkl"), "both \"a/data.pkl\" and \"a/data.pkl\" could be the pickle");
    // A pickle in front of the archive, and one without an archive.
    assert_reported(&room, &[&harmful, &whole[..]].concat(), "not a model but a Python pickle");
    assert_reported(&room, &harmful, "not a model but a Python pickle");
    // torch does not read what follows the pickle.
    std::fs::write(room.path("model.bin"), archive(&[&harmless, &harmful[..]].concat(), &[1.0, 2.0])).unwrap();
    let output = room.sh("weightfs check model.bin");
    let expected = format!("{} bytes after the end of the pickle in data.pkl", harmful.len());
    assert!(output.code == 0 && output.out.contains(&expected), "{output:?}");
}
