//! Completion in real shells: what bash, fish and zsh offer for an unfinished command line.

use crate::support::{Scene, require_root};
use std::io::{Read, Write};
use std::process::Stdio;

/// A scene with two models, a directory, and the completions as they are installed.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.sample();
    scene.ok("mkdir dir && cp sample.safetensors model.safetensors && weightfs write-docs .");
    std::fs::write(scene.path("bashrc"), BASH).unwrap();
    std::fs::write(scene.path(".zshrc"), ZSH).unwrap();
    scene
}

const BASH: &str = "
PS1=ready
bind 'set enable-bracketed-paste off'
bind 'set completion-query-items 0'
source share/bash-completion/completions/weightfs
";

/// With `_all_matches`, completion inserts all candidates.
const ZSH: &str = "
PS1=ready
unsetopt zle_bracketed_paste
bindkey -e
fpath=($PWD/share/zsh/site-functions $fpath)
autoload -U compinit
compinit -u -D
zstyle ':completion:*' completer _all_matches _complete
zstyle ':completion:*' insert true
zstyle ':completion:*' old-matches false
";

/// What each shell offers for the last word of `line`, sorted.
fn offered(scene: &Scene, line: &str) -> [(&'static str, Vec<String>); 3] {
    // Escape and * insert all candidates.
    let bash = typed(scene, "bash --noprofile --rcfile bashrc -i", line, "\x1b*");
    let zsh = typed(scene, "zsh -i", line, "\t");
    let file = "share/fish/vendor_completions.d/weightfs.fish";
    let fish = scene.ok(&format!("HOME=$PWD fish --no-config -c 'source {file}; complete -C \"{line}\"'"));
    let fish = fish.lines().filter_map(|line| Some(line.split('\t').next()?.to_owned())).collect();
    [("bash", bash), ("fish", fish), ("zsh", zsh)].map(|(shell, words)| {
        let mut words: Vec<String> = words.into_iter().map(|word| word.trim_end_matches('/').to_owned()).collect();
        words.sort();
        (shell, words)
    })
}

/// Types `line` and `key` into an interactive shell on a terminal, and returns the words that take the place of the
/// last one.
fn typed(scene: &Scene, shell: &str, line: &str, key: &str) -> Vec<String> {
    // A shell that waits for more than what is typed is ended.
    let mut command = scene.command("timeout");
    command
        .args(["--foreground", "120", "script", "-qc", shell, "/dev/null"])
        .env("TERM", "dumb")
        .env("ZDOTDIR", scene.dir.path());
    // What is typed here does not belong into the history of the user.
    command.env("HISTFILE", "/dev/null");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut shown = Vec::new();
    while !shown.ends_with(b"ready") {
        let mut byte = [0];
        screen.read_exact(&mut byte).unwrap();
        shown.push(byte[0]);
    }
    // The completed line becomes the arguments of echo: Ctrl-A goes to its beginning, and Ctrl-E to its end.
    write!(keys, "{line}{key}\x01echo '[' \x05 ']'\nexit\n").unwrap();
    screen.read_to_end(&mut shown).unwrap();
    child.wait().unwrap();
    let shown = String::from_utf8_lossy(&shown).replace('\r', "");
    let echoed = shown.lines().find_map(|line| line.strip_prefix("[ ")?.strip_suffix(" ]"));
    let before = line.split(' ').count() - 1;
    let words = echoed.unwrap_or_else(|| panic!("{shell}: {line}: {shown:?}")).split(' ');
    words.skip(before).map(str::to_owned).collect()
}

#[test]
fn shells_complete_commands_files_and_values() {
    let scene = scene();
    let table: [(&str, &[&str]); 15] = [
        ("weightfs umo", &["umount"]),
        ("weightfs mo", &["model.safetensors", "mount"]),
        ("weightfs mod", &["model.safetensors"]),
        ("weightfs ls --sort n", &["name"]),
        ("weightfs ls --sort dtype,s", &["dtype,shape", "dtype,size"]),
        ("weightfs help exp", &["export"]),
        ("weightfs model.safetensors d", &["dir"]),
        ("weightfs --vie", &["--views"]),
        ("weightfs --views npy,t", &["npy,tensors", "npy,tree"]),
        ("weightfs --views=te", &["--views=tensors"]),
        ("weightfs model.safetensors -o u", &["uid=", "umask="]),
        ("weightfs model.safetensors -o ro,au", &["ro,auto_unmount"]),
        ("weightfs model.safetensors -o views=npy:te", &["views=npy:tensors"]),
        ("weightfs --log-file=mod", &["--log-file=model.safetensors"]),
        ("weightfs --uid roo", &["root"]),
    ];
    for (line, expected) in table {
        for (shell, words) in offered(&scene, line) {
            assert_eq!(words, expected, "{shell}: {line}");
        }
    }
}

#[test]
fn shells_complete_what_a_model_has() {
    let scene = scene();
    let table: [(&str, &[&str]); 6] = [
        ("weightfs cat model.safetensors head", &["header.json"]),
        ("weightfs cat model.safetensors tensors/model.e", &["tensors/model.embed.weight"]),
        ("weightfs cat model.safetensors tre", &["tree"]),
        ("weightfs show model.safetensors model.layers.2", &["model.layers.2.w"]),
        ("weightfs ls model.safetensors model.e", &["model.embed.weight"]),
        ("weightfs metadata get model.safetensors fo", &["format"]),
    ];
    for (line, expected) in table {
        for (shell, words) in offered(&scene, line) {
            assert_eq!(words, expected, "{shell}: {line}");
        }
    }
}

#[test]
fn shells_complete_no_lone_dash() {
    let scene = scene();
    for line in ["weightfs -", "weightfs export model.safetensors -", "weightfs metadata set model.safetensors -"] {
        for (shell, words) in offered(&scene, line) {
            assert!(words.len() > 2 && words.iter().all(|word| word.len() > 1), "{shell}: {line}: {words:?}");
        }
    }
    for (shell, words) in offered(&scene, "weightfs ") {
        assert!(words.iter().all(|word| !word.starts_with('-')), "{shell}: {words:?}");
    }
}

#[test]
fn umount_completes_mount_points() {
    require_root!();
    let scene = scene();
    scene.ok("mkdir mnt deep deep/mnt && weightfs sample.safetensors mnt && weightfs sample.safetensors deep/mnt");
    for (shell, words) in offered(&scene, "weightfs umount m") {
        assert_eq!(words, ["mnt"], "{shell}");
    }
    for (shell, words) in offered(&scene, "weightfs umount -l mnt d") {
        assert_eq!(words, ["deep/mnt"], "{shell}");
    }
    // Mounts of other tests are elsewhere.
    let dir = scene.dir.path().display();
    for (shell, words) in offered(&scene, &format!("weightfs umount {dir}/")) {
        assert_eq!(words, [format!("{dir}/deep/mnt"), format!("{dir}/mnt")], "{shell}");
    }
    scene.ok("weightfs umount mnt deep/mnt");
}
