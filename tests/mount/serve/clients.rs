//! Programs that read what is served: curl, jq, fsspec and NumPy, and weightfs itself.

use super::support::Server;
use crate::support::{Scene, python, real_file, real_model, run_ok};

#[test]
fn numpy_reads_arrays_through_fsspec() {
    let scene = Scene::new();
    let model = real_model("silero_vad_16k");
    let server = Server::new(&scene, model.to_str().unwrap(), &[]);
    let script = "
import sys, fsspec, numpy
from safetensors.numpy import load_file
url, model = sys.argv[1:]
fs = fsspec.filesystem('http')
expected = load_file(model)
assert len(expected) > 10
for name, values in expected.items():
    with fs.open(f'{url}npy/{name}.npy', block_size=4096) as file:
        numpy.testing.assert_array_equal(numpy.load(file), values)
    info = fs.info(f'{url}tensors/{name}')
    assert info['size'] == values.nbytes, info
    if values.nbytes > 64:
        assert fs.cat_file(f'{url}tensors/{name}', start=32, end=64) == values.tobytes()[32:64]
names = {path.rsplit('/', 1)[1] for path in fs.ls(f'{url}npy/', detail=False)}
assert {name + '.npy' for name in expected} <= names, names
";
    run_ok(python().to_str().unwrap(), ["-c", script, &server.url(""), model.to_str().unwrap()]);
}

#[test]
fn curl_resumes_and_jq_reads_the_index() {
    let scene = Scene::new();
    let model = real_model("silero_vad_16k");
    let server = Server::new(&scene, model.to_str().unwrap(), &[]);
    let url = server.url("export/silero_vad_16k-whole.safetensors");
    let path = "export/silero_vad_16k-whole.safetensors";
    scene.ok(&format!("weightfs cat {} {path} >whole && head -c 100000 whole >part", model.display()));
    scene.ok(&format!("curl -s -C - -o part {url} && cmp part whole"));
    let names = scene.ok(&format!("curl -s {} | jq -r '.tensors[].name'", server.url("index.json")));
    assert_eq!(names, scene.ok(&format!("weightfs cat {} index.json | jq -r '.tensors[].name'", model.display())));
    assert!(names.lines().count() > 10, "{names}");
    // A directory without the slash at its end leads to its page, with the query.
    let moved =
        scene.ok(&format!("curl -s -L -o page -w '%{{http_code}} %{{url_effective}}' '{}'", server.url("npy?x=1")));
    assert_eq!(moved, format!("200 {}", server.url("npy/?x=1")));
    scene.ok("grep -q '</html>' page");
}

#[cfg(feature = "remote")]
#[test]
fn weightfs_reads_what_it_serves() {
    let scene = Scene::new();
    let model = real_model("silero_vad_16k");
    let local = model.to_str().unwrap();
    let server = Server::new(&scene, local, &[]);
    let url = server.url("export/silero_vad_16k-whole.safetensors");
    assert_eq!(
        scene.ok(&format!("weightfs id {url}")).split(' ').next(),
        scene.ok(&format!("weightfs id {local}")).split(' ').next()
    );
    scene.ok(&format!("weightfs diff --data {local} {url}"));
    for command in ["inspect", "ls"] {
        let said = |source: &str| scene.ok(&format!("weightfs {command} --json {source} | jq .totals"));
        assert_eq!(said(&url), said(local), "{command}");
    }
    scene.ok(&format!("weightfs cp {url} npy remote-copy && weightfs cp {local} npy copy && diff -r copy remote-copy"));
    // A server may serve what another one serves.
    let second = Server::new(&scene, &url, &[]);
    let name = scene.ok(&format!("weightfs ls --json {local} | jq -r '.tensors[3].name'"));
    let path = format!("npy/{}.npy", name.trim_end());
    assert!(second.get(&path).status == 200 && second.get(&path).body == server.get(&path).body);
}

#[test]
fn pages_of_all_kinds_of_sources_are_served() {
    let scene = Scene::new();
    scene.sample();
    let sources = [real_file("gemma-3-270m.gguf"), scene.path(".")];
    for source in sources {
        let server = Server::new(&scene, source.to_str().unwrap(), &[]);
        let page = server.get("");
        assert_eq!(page.status, 200, "{}", source.display());
        assert!(page.text().ends_with("</html>\n"), "{}", source.display());
    }
}
