//! Checkpoints of torch before versions 1.6 and 0.1.10. `tests/checkpoints/legacy` has one that torch has written, and
//! a tar archive that torch reads, with the sums of their tensors.

use crate::checkpoints::sums_of;
use crate::room::Room;
use std::path::{Path, PathBuf};

fn written() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/legacy")
}

fn room() -> Room {
    let room = Room::new();
    for name in ["plain.pth", "tar.pth"] {
        std::fs::copy(written().join(name), room.path(name)).unwrap();
    }
    room
}

/// What a command prints that must fail.
fn failed(room: &Room, line: &str) -> String {
    let output = room.sh(line);
    assert!(output.code != 0, "{output:?}");
    output.out + &output.err
}

#[test]
fn old_checkpoints_have_their_tensors() {
    let room = room();
    let sums = std::fs::read_to_string(written().join("sums.tsv")).unwrap();
    for case in ["plain", "tar"] {
        let mut expected: Vec<&str> = sums.lines().filter_map(|line| line.strip_prefix(&format!("{case}\t"))).collect();
        expected.sort();
        assert_eq!(sums_of(&room, &format!("{case}.pth")), expected, "{case}");
        let check = room.ok(&format!("weightfs check {case}.pth"));
        assert!(check.contains(": OK ("), "{check}");
        room.ok(&format!("weightfs check --values {case}.pth && weightfs export {case}.pth {case}.safetensors"));
        assert_eq!(sums_of(&room, &format!("{case}.safetensors")), expected, "{case}");
    }
    let metadata = room.json("weightfs ls --json plain.pth");
    assert_eq!(metadata[0]["format"], "pytorch");
}

#[test]
fn suffixes_are_those_of_new_checkpoints() {
    let room = room();
    room.ok("mkdir all && cp tar.pth all/a.pth.tar && cp plain.pth all/b.pt && cp plain.pth all/model.bin");
    room.ok("cp plain.pth all/c.ckpt && cp plain.pth all/other.bin");
    let listed = room.json("weightfs ls --json all");
    assert_eq!(listed.len(), 4, "{listed:?}");
}

#[test]
fn damaged_files_are_refused_or_read_in_part() {
    let room = room();
    let bytes = std::fs::read(room.path("plain.pth")).unwrap();
    std::fs::write(room.path("cut.pth"), &bytes[..bytes.len() - 100]).unwrap();
    let failed = failed(&room, "weightfs ls cut.pth");
    assert!(failed.contains("truncated: the data ends at byte 3597, but the file ends at byte 3497"), "{failed}");
    let listed = room.json("weightfs ls --json --lenient cut.pth");
    let whole = room.json("weightfs ls --json plain.pth");
    let count = |listed: &[serde_json::Value]| listed[0]["tensors"].as_array().unwrap().len();
    assert!((1..count(&whole)).contains(&count(&listed)), "{listed:?}");
    let place = bytes.windows(14).position(|part| part == b"little_endian\x88" || part == b"little_endianq").unwrap();
    let at = (place..).find(|at| bytes[*at] == 0x88).unwrap();
    let mut big = bytes;
    big[at] = 0x89;
    std::fs::write(room.path("big.pth"), big).unwrap();
    let failed = self::failed(&room, "weightfs check big.pth");
    assert!(failed.contains("saved by a big-endian machine (little_endian is False)"), "{failed}");
}

#[test]
fn code_in_pickles_is_reported() {
    let room = room();
    let mut bytes = std::fs::read(room.path("plain.pth")).unwrap();
    let name = b"collections\nOrderedDict";
    let at = bytes.windows(name.len()).position(|part| part == name).unwrap();
    bytes.splice(at..at + name.len(), *b"os\nsystem");
    std::fs::write(room.path("code.pth"), bytes).unwrap();
    let failed = failed(&room, "weightfs check code.pth");
    assert!(failed.contains("the pickle names os.system, which can run code"), "{failed}");
}
