//! NumPy files, written and read by NumPy.

use crate::support::{Scene, require_fuse, run_ok};
use std::ffi::OsStr;
use std::path::Path;

/// Runs `arrays.py`.
pub fn numpy<const N: usize>(args: [&OsStr; N]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/arrays.py");
    let args = std::iter::once(script.as_os_str()).chain(args);
    run_ok(crate::support::python().to_str().unwrap(), args)
}

#[test]
fn arrays_are_those_that_numpy_loads() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("arrays");
    numpy(["write".as_ref(), dir.as_os_str()]);
    let mount = scene.mount(&dir, &[]);
    let count = numpy(["check".as_ref(), dir.as_os_str(), mount.point.as_os_str()]);
    assert_eq!(count.trim(), "210");
}

#[test]
fn commands_read_arrays() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("arrays");
    numpy(["write".as_ref(), dir.as_os_str()]);
    assert_eq!(
        scene.ok("weightfs ls arrays/dtype-f4.npy"),
        "DTYPE  SHAPE     SIZE  OFFSET  NAME\nF32    [3,4]     48 B     128  arr_0\n"
    );
    assert!(scene.ok("weightfs inspect arrays/version-2.npy").contains("\n  Format           npy\n"));
    assert!(
        scene.ok("weightfs check arrays/dtype-U3.npy").contains("note: dtype \"<U3\": its tensors are shown as raw")
    );
    let said = scene.sh("weightfs check arrays/two.npy");
    assert!(said.out.contains("warning: 152 bytes after the array, which begin with another array; only"), "{said:?}");
    let said = scene.sh("weightfs check arrays/mixed.npz");
    assert!(said.code == 0 && said.out.contains("OK, with 3 warnings (1 tensor, 24 B;"), "{said:?}");
    assert!(
        said.out.contains("warning: skipped \"small\": zip archive: entry \"small.npy\" is compressed"),
        "{said:?}"
    );
    let said = scene.sh("weightfs ls arrays/compressed.npz");
    assert!(
        said.code == 1 && said.err.contains("compressed.npz: tensor \"a\": zip archive: entry \"a.npy\""),
        "{said:?}"
    );
    let said = scene.sh("weightfs ls arrays/mixed.npz");
    assert!(
        said.out.contains("good\n") && said.err.contains("mixed.npz: skipped \"notes.txt\": not an array"),
        "{said:?}"
    );
    // A file that is cut has no directory.
    scene.ok("head -c 600 arrays/streamed.npz >cut.npz && head -c 150 arrays/dtype-f4.npy >cut.npy");
    let said = scene.sh("weightfs ls --lenient cut.npz");
    assert!(said.code == 1 && said.err.contains("cut.npz: zip archive: no directory in the last"), "{said:?}");
    let said = scene.sh("weightfs ls cut.npy");
    let missing = "cut.npy: truncated: the data ends at byte 176, but the file ends at byte 150; 26 bytes missing";
    assert!(said.code == 1 && said.err.contains(missing), "{said:?}");
    assert_eq!(scene.sh("weightfs ls --lenient cut.npy").code, 0);
    let said = scene.sh("weightfs check arrays/objects.npy");
    assert!(said.code == 1 && said.out.contains("objects.npy: error: NumPy array: Python objects"), "{said:?}");
    let said = scene.sh("weightfs metadata set arrays/two.npy a=b");
    assert!(said.code == 1 && said.err.contains("two.npy: metadata of npy files cannot be changed"), "{said:?}");
    let said = scene.sh("weightfs export --force arrays/dtype-U3.npy out.safetensors");
    assert!(said.code == 1 && said.err.contains("tensor \"arr_0\": the values of \"<U3\" are not known"), "{said:?}");
    for name in ["both-f8.npy", "streamed.npz"] {
        scene.ok(&format!("weightfs export --clean --force arrays/{name} {name}.safetensors"));
        let said = scene.ok(&format!("weightfs diff --data arrays/{name} {name}.safetensors"));
        assert!(said.contains("\ndata: 0 different, "), "{said}");
    }
    assert!(scene.ok("weightfs check --values both-f8.npy.safetensors arrays/streamed.npz").contains("OK"));
    let said = scene.ok("weightfs check --values arrays/both-f8.npy");
    assert!(said.contains("all values finite"), "{said}");
    scene.ok("weightfs export --clean --force arrays/dtype-f4.npy out.safetensors");
    assert!(
        scene
            .ok("weightfs diff --data arrays/dtype-f4.npy out.safetensors")
            .ends_with("\ndata: 0 different, 1 equal\n")
    );
}
