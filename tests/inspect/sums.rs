//! `sums`: the SHA-256 of the bytes of tensors, in one run and in parts.

use crate::room::{Output, Room, floats};
use safetensors::Dtype;

/// A directory of two models. In `a`, one tensor has more bytes than all others together.
fn sample() -> Room {
    let room = Room::new();
    room.model(
        "a.safetensors",
        &[
            ("large", Dtype::U8, &[3_000_000], (0..3_000_000u32).map(|at| (at / 5) as u8).collect()),
            ("layers.0.norm", Dtype::F32, &[2], floats(&[1.0, 2.0])),
            ("layers.1.norm", Dtype::F32, &[2], floats(&[3.0, 4.0])),
            ("with\\backslash and\nline", Dtype::U8, &[1], vec![1]),
            ("with/slash", Dtype::U8, &[1], vec![2]),
            ("empty", Dtype::F32, &[0], vec![]),
        ],
        &[],
    );
    room.model("b.safetensors", &[("only", Dtype::U8, &[3], vec![1, 2, 3])], &[]);
    room
}

/// Runs `weightfs sums` in parts, and combines them.
fn combined(room: &Room, args: &str, parts: u32) -> Output {
    room.sh(&format!(
        "rm -f *.part; for i in $(seq {parts}); do weightfs sums {args} --part $i/{parts} > $i.part; done
        weightfs combine *.part",
    ))
}

#[test]
fn sums_are_those_of_the_file_in_a_mount() {
    let room = sample();
    let all = room.ok("weightfs sums a.safetensors");
    assert_eq!(all, room.ok("weightfs cat a.safetensors SHA256SUMS"));
    let only = "039058c6f2c0cb492c533b0a4d14ef77cc0f78abccced5287d84a1a2011cfb81  tensors/only\n";
    assert_eq!(room.ok("weightfs sums b.safetensors"), only);
    let norms = room.ok("weightfs sums a.safetensors --only '*.norm'");
    assert_eq!(norms.lines().count(), 2);
    assert!(norms.lines().all(|line| all.lines().any(|other| other == line) && line.contains(".norm")), "{norms}");
    // In a directory of several models, each line has the path in a mount of the directory.
    let of_b = only.replace("tensors/", "b/tensors/");
    let both = room.ok("weightfs sums .");
    assert_eq!(both, all.replace("  tensors/", "  a/tensors/") + &of_b);
    assert!(both.contains("\n\\"), "{both}");
}

#[test]
fn parts_make_what_one_run_prints() {
    let room = sample();
    for args in ["a.safetensors", ".", ". --only '*n*'", ". --only empty"] {
        let whole = room.ok(&format!("weightfs sums {args}"));
        for parts in [1, 2, 3, 9] {
            let said = combined(&room, args, parts);
            assert_eq!((said.code, &said.out, &said.err[..]), (0, &whole, ""), "{args} in {parts} parts");
        }
    }
    // Each tensor is in one part.
    let lines = room.ok("cat *.part | grep -c '{\"item\"'");
    assert_eq!(lines.trim(), "1");
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let room = sample();
    combined(&room, "a.safetensors", 3);
    room.ok("weightfs stats a.safetensors --part 2/3 > stats.part 2> /dev/null");
    for (line, error) in [
        ("weightfs combine 1.part 3.part", "1 part of 3 is missing: 2"),
        ("weightfs combine 1.part stats.part 3.part", "1.part and stats.part were made with different options"),
        ("grep -v '\"large\"\\|tensors/large' 2.part 1.part -h > cut; weightfs combine cut", "cut: line "),
        (
            "sed 's/\"index\":0/\"index\":6/' 1.part > cut1; sed 's/\"index\":0/\"index\":6/' 2.part > cut2
            sed 's/\"index\":0/\"index\":6/' 3.part > cut3; weightfs combine cut1 cut2 cut3",
            "a.safetensors: the parts do not have each of 6 items once",
        ),
        (
            "sed -E 's/\"sha256\":\"./\"sha256\":\"\\\\n/' 1.part > cut; weightfs combine cut 2.part 3.part",
            "a.safetensors: there is no sum like \"\\n",
        ),
        (
            "sed -E 's#tensors/#\\\\u001b/#' 1.part > cut; weightfs combine cut 2.part 3.part",
            "there is no sum like",
        ),
        (
            "sed -E 's/(\"sha256\":\").{4}/\\10000/' 1.part > cut; weightfs combine 1.part 2.part cut 3.part",
            "1.part and cut are part 1/3 with different contents",
        ),
        (
            "awk '/\"item\"/ && !twice {print; twice = 1} {print}' 1.part | sed -E 's/(\"lines\":)[0-9]+/\\17/' > cut
            sed -i \"s/\\\"lines\\\":7/\\\"lines\\\":$(($(wc -l < cut) - 1))/\" cut; weightfs combine cut 2.part 3.part",
            "do not have each of",
        ),
        (
            "sed 's/\"weightfs\":\"[0-9.]*/\"weightfs\":\"0.0.9/' 2.part > cut; weightfs combine 1.part cut 3.part",
            "cut: printed by weightfs 0.0.9, and this is ",
        ),
        (
            "touch -d '2001-01-01' a.safetensors; weightfs sums a.safetensors --part 2/3 > cut
            weightfs combine 1.part cut 3.part",
            "1.part and cut are of different versions of a.safetensors",
        ),
        (
            "weightfs export --dtype bf16 a.safetensors c.safetensors && weightfs sums c.safetensors --part 2/3 > 2.part
            for i in 1 2 3; do sed 's/\"versions\":\\[\"[^\"]*\"/\"versions\":[null/' $i.part > cut$i; done
            weightfs combine cut1 cut2 cut3",
            "cut1 and cut2 have different tensors or metadata of a.safetensors",
        ),
        ("weightfs sums a.safetensors --only nothing", "nothing"),
        ("weightfs sums none.safetensors", "none.safetensors"),
    ] {
        let said = room.sh(line);
        assert!(said.code == 1 && said.out.is_empty() && said.err.contains(error), "{line}: {said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
    }
}

#[test]
fn models_that_cannot_be_opened_are_reported_and_the_others_hashed() {
    let room = sample();
    room.raw("broken.safetensors", "{", &[]);
    let whole = room.sh("weightfs sums .");
    assert!(whole.code == 1 && whole.err.contains("broken.safetensors") && whole.out.contains("b/tensors/only"));
    let said = combined(&room, ".", 2);
    assert_eq!((said.code, said.out), (1, whole.out));
    assert!(said.err.contains("1.part: its process has reported an error"), "{}", said.err);
    // Small models are spread over the parts, whatever their number.
    let last = room.sh("weightfs sums . --part 4294967295/4294967295");
    assert!(last.code == 1 && !last.err.contains("bug"), "{last:?}");
}
