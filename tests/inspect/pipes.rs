//! Standard output: a reader that has enough, a full disk, and colours only for a terminal.

use crate::room::Room;
use safetensors::Dtype;

/// More tensors than a pipe holds lines of.
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
fn a_reader_that_has_enough_is_no_failure() {
    let room = many();
    for command in COMMANDS {
        let said = room.sh(&format!("weightfs {command} | head -n 1 >line; echo ${{PIPESTATUS[0]}}; wc -l <line"));
        assert_eq!((&said.out[..], &said.err[..]), ("0\n1\n", ""), "{command}");
        // Nobody reads from the first.
        let said = room.sh(&format!("weightfs {command} | true; echo ${{PIPESTATUS[0]}}"));
        assert_eq!((&said.out[..], &said.err[..]), ("0\n", ""), "{command}");
    }
}

#[test]
fn a_full_disk_is_one() {
    let room = many();
    for command in COMMANDS {
        let said = room.sh(&format!("weightfs {command} >/dev/full"));
        // Of a check, 1 would say that the model is not sound.
        let code = if command.starts_with("check") { 2 } else { 1 };
        let expected = (code, "weightfs: standard output: No space left on device\n");
        assert_eq!((said.code, &said.err[..]), expected, "{command}");
    }
    // Nobody to tell: the exit code does.
    assert_eq!(room.sh("weightfs ls absent >&- 2>&-").code, 1);
}

#[test]
fn a_source_is_a_file_and_no_pipe() {
    let room = many();
    room.ok("mkfifo pipe");
    for command in ["ls", "inspect", "id", "summary", "check"] {
        let code = if command == "check" { 2 } else { 1 };
        for (line, name) in [
            (format!("weightfs {command} pipe"), "pipe"),
            (format!("true | weightfs {command} /dev/stdin"), "/dev/stdin"),
        ] {
            let said = room.sh(&line);
            let err = format!("weightfs: {name}: a named pipe, not a regular file\n");
            assert_eq!((said.code, said.out, said.err), (code, String::new(), err), "{line}");
        }
        // A file is one by any name.
        assert!(!room.ok(&format!("weightfs {command} /dev/stdin <m.safetensors")).is_empty(), "{command}");
    }
}

/// What a command shows on a terminal of so many columns, where standard error is that terminal, too.
fn on_terminal(room: &Room, columns: u16, command: &str) -> String {
    let said = room.sh(&format!("script -qc 'stty rows 25 cols {columns}; weightfs {command}' /dev/null"));
    let styles = ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m"];
    styles.iter().fold(said.out.replace("\r\n", "\n"), |text, style| text.replace(style, ""))
}

#[test]
fn a_list_on_a_terminal_ends_with_its_totals() {
    let room = many();
    let list = room.ok("weightfs ls m.safetensors *.7.weight");
    let totals = "\n1 tensor, 1 parameter, 1 B: U8 1 B\nmodules: model 1 B\n";
    assert_eq!(on_terminal(&room, 80, "ls m.safetensors *.7.weight"), list.clone() + totals);
    let plain = room.ok("weightfs ls -n m.safetensors *.7.weight");
    assert_eq!(on_terminal(&room, 80, "ls -n m.safetensors *.7.weight"), plain);
    // The middle of a name that does not fit is left out; in a pipe none is.
    let long = "x".repeat(5000);
    room.model("long.safetensors", &[(&long, Dtype::U8, &[1], vec![0]), ("short", Dtype::U8, &[1], vec![0])], &[]);
    assert!(room.ok("weightfs ls long.safetensors").contains(&long));
    let shown = on_terminal(&room, 60, "ls long.safetensors");
    assert!(shown.contains("xxx…xxx") && shown.lines().all(|line| line.chars().count() <= 60), "{shown}");
    // Nor is a value of metadata longer than what is left of one.
    room.model("meta.safetensors", &[], &[("key", &long)]);
    for columns in [60, 90] {
        let shown = on_terminal(&room, columns, "inspect meta.safetensors");
        let line = shown.lines().find(|line| line.starts_with("  key  xxx")).unwrap();
        assert!(line.len() == usize::from(columns) && line.ends_with("xxx... (5.00 kB)"), "{shown}");
    }
}

#[test]
fn how_far_a_check_has_come_is_shown_on_a_terminal_only() {
    let room = Room::new();
    // So much that to hash it takes more than a moment, and none of it on the disk.
    let len = 2_000_000_000u64;
    let metadata = format!(r#""__metadata__":{{"sshs_model_hash":"{}"}}"#, "0".repeat(64));
    let header = format!(r#"{{{metadata},"a":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
    let header = format!("{header:<200}");
    room.raw("m.safetensors", &header, &[]);
    room.ok(&format!("truncate -s {} m.safetensors", 8 + header.len() as u64 + len));
    let said = room.sh("weightfs check m.safetensors");
    assert_eq!((said.code, &said.err[..], said.out.lines().count()), (1, "", 3), "{said:?}");
    let shown = on_terminal(&room, 80, "check m.safetensors");
    assert!(shown.contains("checking") && shown.contains("GB of 2.00 GB"), "{shown:?}");
    assert!(shown.ends_with(&said.out), "{shown:?}");
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() {
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
    // Machines get none.
    assert!(!room.ok("CLICOLOR_FORCE=1 weightfs ls --json m.safetensors").contains('\u{1b}'));
}
