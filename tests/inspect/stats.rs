//! `stats`: the statistics of all tensors, as a table, as JSON and as comma-separated values.

use crate::room::{Room, floats};
use safetensors::Dtype;
use serde_json::Value;

fn sample() -> Room {
    let room = Room::new();
    let values = floats(&[1.0, 2.0, 3.0, 0.0, f32::NAN, f32::NEG_INFINITY]);
    room.model(
        "m.safetensors",
        &[
            ("a.weight", Dtype::F32, &[2, 3], values),
            ("b,\"c\"", Dtype::U8, &[4], vec![1, 3, 5, 7]),
            ("empty", Dtype::BF16, &[0, 4], vec![]),
            ("z.complex", Dtype::C64, &[1], vec![0; 8]),
        ],
        &[],
    );
    room
}

#[test]
fn table_has_the_statistics_of_every_tensor() {
    let said = sample().sh("weightfs stats m.safetensors");
    let lines: Vec<String> =
        said.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "NAME MIN MAX MEAN STD ZEROS NAN INF",
        "a.weight 0 3 1.5 1.118034 1 1 1",
        "empty - - - - 0 0 0",
        "b,\"c\" 1 7 4 2.236068 0 0 0",
    ];
    let mut sorted = lines.clone();
    sorted.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!((said.code, sorted), (0, expected.into_iter().map(str::to_owned).collect()), "{said:?}");
    assert!(said.err.contains("1 tensor has no statistics: \"z.complex\" of C64"), "{said:?}");
}

#[test]
fn comma_separated_values_are_exact() {
    let room = sample();
    let out = room.sh("weightfs stats --csv m.safetensors").out;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "source,name,dtype,shape,count,zeros,nan,pos_inf,neg_inf,min,max,mean,std,abs_max");
    for line in [
        "m.safetensors,a.weight,F32,\"[2,3]\",6,1,1,0,1,0.0,3.0,1.5,1.118033988749895,3.0",
        "m.safetensors,\"b,\"\"c\"\"\",U8,[4],4,0,0,0,0,1.0,7.0,4.0,2.23606797749979,7.0",
        "m.safetensors,empty,BF16,\"[0,4]\",0,0,0,0,0,,,,,",
    ] {
        assert!(lines.contains(&line), "{line} in {out}");
    }
    assert_eq!(lines.len(), 4);
    let said = room.sh("weightfs stats --csv --json m.safetensors");
    assert_eq!(said.code, 2, "{said:?}");
}

#[test]
fn json_has_what_the_files_of_a_mount_have() {
    let room = sample();
    let out = room.sh("weightfs stats --json m.safetensors").out;
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["source"], "m.safetensors");
    let tensors = found["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 3);
    for tensor in tensors {
        let mut tensor = tensor.clone();
        let fields = tensor.as_object_mut().unwrap();
        let [name, _, _] = ["name", "dtype", "shape"].map(|key| fields.remove(key).unwrap());
        let path = format!("stats/{}.json", name.as_str().unwrap());
        let file = room.ok(&format!("weightfs cat m.safetensors '{path}'"));
        assert_eq!(tensor, serde_json::from_str::<Value>(&file).unwrap(), "{name}");
    }
    assert_eq!(found["without_statistics"], serde_json::json!([{"name": "z.complex", "dtype": "C64"}]));
    // One tensor per line, so that grep can be used on it.
    assert_eq!(out.lines().filter(|line| line.contains("\"count\"")).count(), 3);
}

#[test]
fn tensors_of_all_sizes_are_counted_in_their_order() {
    let room = Room::new();
    let names: Vec<String> = (0..200).map(|at| format!("t{at:03}")).collect();
    // The 50th is counted alone, on all cores.
    let tensors: Vec<crate::room::Tensor> = (0..200u8)
        .map(|at| {
            let len = if at == 50 { 20 << 20 } else { usize::from(at) + 1 };
            let shape: &[usize] = Box::leak(Box::new([len]));
            (&names[usize::from(at)][..], Dtype::U8, shape, vec![at; len])
        })
        .collect();
    room.model("m.safetensors", &tensors, &[]);
    room.sharded("x");
    room.ok("mkdir two && mv x* two");
    let out = room.ok("weightfs stats --csv m.safetensors");
    for (at, line) in out.lines().skip(1).enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        let (name, value) = (format!("t{at:03}"), format!("{at}.0"));
        assert_eq!([fields[1], fields[2], fields[9], fields[10]], [&name, "U8", &value, &value], "{line}");
    }
    assert_eq!(out.lines().count(), 201);

    let only = room.ok("weightfs stats --csv --only 't00?' --only t199 m.safetensors");
    assert_eq!(only.lines().count(), 12);
    let missed = room.sh("weightfs stats --only 'q*' m.safetensors");
    assert!(missed.code == 1 && missed.err.contains("no tensor matches \"q*\""), "{missed:?}");
    // Several models have a title each, and one line of names.
    room.ok("cp m.safetensors two/y.safetensors");
    let both = room.ok("weightfs stats two");
    assert!(both.starts_with("two/x.safetensors.index.json:\n") && both.contains("\n\ntwo/y.safetensors:\n"), "{both}");
    assert_eq!(room.ok("weightfs stats --csv two").matches("source,name").count(), 1);
}

#[test]
fn file_that_ends_early_is_an_error() {
    let room = sample();
    room.ok("truncate -s -4 m.safetensors");
    let said = room.sh("weightfs stats m.safetensors");
    assert!(said.code == 1 && said.err.contains("m.safetensors"), "{said:?}");
}
