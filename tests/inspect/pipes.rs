//! Standard output: closed pipes, full disks, colours and progress on terminals. Also pipes as sources.

use crate::room::Room;
use safetensors::Dtype;

/// A model whose list does not fit in the buffer of a pipe, and 40 hard links to it in `all`.
fn many() -> Room {
    let room = Room::new();
    let names: Vec<String> = (0..5000).map(|at| format!("model.layers.{at}.weight")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (&name[..], Dtype::U8, &[1usize][..], vec![0])).collect();
    room.model("m.safetensors", &tensors, &[("format", "pt")]);
    room.ok("mkdir all && for i in $(seq 40); do ln m.safetensors all/$i.safetensors; done");
    room
}

const COMMANDS: [&str; 8] = [
    "ls m.safetensors",
    "ls all",
    "ls --json m.safetensors",
    "ls --totals --depth 9 m.safetensors",
    "inspect --all all",
    "id all",
    "summary all",
    "check all",
];

#[test]
fn closed_pipe_is_not_an_error() {
    let room = many();
    for command in COMMANDS {
        let output = room.sh(&format!("weightfs {command} | head -n 1 >line; echo ${{PIPESTATUS[0]}}; wc -l <line"));
        assert_eq!((&output.out[..], &output.err[..]), ("0\n1\n", ""), "{command}");
        // The pipe is closed before anything is read.
        let output = room.sh(&format!("weightfs {command} | true; echo ${{PIPESTATUS[0]}}"));
        assert_eq!((&output.out[..], &output.err[..]), ("0\n", ""), "{command}");
    }
}

#[test]
fn full_disk_is_an_error() {
    let room = many();
    for command in COMMANDS {
        let output = room.sh(&format!("weightfs {command} >/dev/full"));
        // For `check`, exit code 1 means that a model is not sound.
        let code = if command.starts_with("check") { 2 } else { 1 };
        let expected = (code, "weightfs: standard output: No space left on device\n");
        assert_eq!((output.code, &output.err[..]), expected, "{command}");
    }
    // With standard error closed too, only the exit code reports the error.
    assert_eq!(room.sh("weightfs ls absent >&- 2>&-").code, 1);
}

#[test]
fn pipe_as_source_is_refused() {
    let room = many();
    room.ok("mkfifo pipe");
    for command in ["ls", "inspect", "id", "summary", "check"] {
        let code = if command == "check" { 2 } else { 1 };
        for (line, name) in [
            (format!("weightfs {command} pipe"), "pipe"),
            (format!("true | weightfs {command} /dev/stdin"), "/dev/stdin"),
        ] {
            let output = room.sh(&line);
            let err = format!("weightfs: {name}: a named pipe, not a regular file\n");
            assert_eq!((output.code, output.out, output.err), (code, String::new(), err), "{line}");
        }
        // A regular file is accepted as /dev/stdin.
        assert!(!room.ok(&format!("weightfs {command} /dev/stdin <m.safetensors")).is_empty(), "{command}");
    }
}

/// The output of a command on a terminal of this width, including standard error, without colours.
pub fn on_terminal(room: &Room, columns: u16, command: &str) -> String {
    on_terminal_in(room, "", columns, command)
}

/// The same with assignments to variables before the command, each followed by a space.
pub fn on_terminal_in(room: &Room, variables: &str, columns: u16, command: &str) -> String {
    let line = format!("stty rows 25 cols {columns}; {variables}weightfs {command}");
    let output = room.sh(&format!("script -qc '{line}' /dev/null"));
    let styles = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[36m"];
    styles.iter().fold(output.out.replace("\r\n", "\n"), |text, style| text.replace(style, ""))
}

#[test]
fn list_on_a_terminal_ends_with_totals() {
    let room = many();
    let list = room.ok("weightfs ls m.safetensors *.7.weight");
    let totals = "\n1 tensor, 1 parameter, 1 B: U8 1 B\nmodules: model 1 B\n";
    assert_eq!(on_terminal(&room, 80, "ls m.safetensors *.7.weight"), list.clone() + totals);
    let plain = room.ok("weightfs ls -n m.safetensors *.7.weight");
    assert_eq!(on_terminal(&room, 80, "ls -n m.safetensors *.7.weight"), plain);
    // On a terminal, a name that does not fit is cut in the middle. In a pipe, it is complete.
    let long = "x".repeat(5000);
    room.model("long.safetensors", &[(&long, Dtype::U8, &[1], vec![0]), ("short", Dtype::U8, &[1], vec![0])], &[]);
    assert!(room.ok("weightfs ls long.safetensors").contains(&long));
    let shown = on_terminal(&room, 60, "ls long.safetensors");
    assert!(shown.contains("xxx…xxx") && shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
    // A metadata value is cut to the rest of the line.
    room.model("meta.safetensors", &[], &[("key", &long)]);
    for columns in [60, 90] {
        let shown = on_terminal(&room, columns, "inspect meta.safetensors");
        let line = shown.lines().find(|line| line.starts_with("  key  xxx")).unwrap();
        assert!(line.len() == usize::from(columns) && line.ends_with("xxx... (5.00 kB)"), "{shown}");
    }
}

#[test]
fn check_progress_is_shown_on_terminals_only() {
    let room = Room::new();
    // A sparse file that takes a noticeable time to hash.
    let len = 2_000_000_000u64;
    let metadata = format!(r#""__metadata__":{{"format":"pt","sshs_model_hash":"{}"}}"#, "0".repeat(64));
    let header = format!(r#"{{{metadata},"a":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
    let header = format!("{header:<200}");
    room.raw("m.safetensors", &header, &[]);
    room.ok(&format!("truncate -s {} m.safetensors", 8 + header.len() as u64 + len));
    let output = room.sh("weightfs check m.safetensors");
    assert_eq!((output.code, &output.err[..], output.out.lines().count()), (1, "", 3), "{output:?}");
    let shown = on_terminal(&room, 80, "check m.safetensors");
    assert!(shown.contains("checking") && shown.contains("GB of 2.00 GB"), "{shown:?}");
    assert!(shown.ends_with(&output.out), "{shown:?}");
}

#[test]
fn colours_in_a_pipe_need_clicolor_force() {
    let room = many();
    room.raw("broken.safetensors", "{", &[]);
    let commands = [
        "ls m.safetensors model.layers.7.weight",
        "ls --totals m.safetensors",
        "inspect m.safetensors",
        "check m.safetensors broken.safetensors",
    ];
    for command in commands {
        let plain = room.sh(&format!("weightfs {command}")).out;
        assert!(!plain.contains('\u{1b}') && !plain.is_empty(), "{command}");
        let coloured = room.sh(&format!("CLICOLOR_FORCE=1 weightfs {command}")).out;
        assert!(coloured.contains('\u{1b}'), "{command}");
        let styles = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m"];
        let stripped = styles.iter().fold(coloured, |text, style| text.replace(style, ""));
        assert_eq!(stripped, plain, "{command}");
        assert_eq!(room.sh(&format!("NO_COLOR=1 weightfs {command}")).out, plain, "{command}");
    }
    // JSON is never coloured.
    assert!(!room.ok("CLICOLOR_FORCE=1 weightfs ls --json m.safetensors").contains('\u{1b}'));
}
