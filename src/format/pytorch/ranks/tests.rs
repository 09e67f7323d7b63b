//! Files of one process that are built opcode by opcode.

use super::*;
use crate::format::pytorch::tests::{Pickle, file};

/// A placement: the name of its class, the dimension, and the split factor of those that have one.
type Placed = (&'static str, i32, Option<i32>);

/// A DTensor of float32 values.
struct TestTensor {
    size: &'static [i32],
    local: &'static [i32],
    mesh: &'static [i32],
    coordinate: &'static [i32],
    placements: &'static [Placed],
}

fn class(pickle: Pickle, module: &str, name: &str) -> Pickle {
    pickle.raw(format!("ctorch.distributed.{module}\n{name}\n").as_bytes())
}

impl TestTensor {
    fn write(&self, pickle: Pickle) -> Pickle {
        let strides: Vec<i32> = (0..self.local.len()).map(|at| self.local[at + 1..].iter().product()).collect();
        self.write_as(pickle, &strides, b"N", b"\x86")
    }

    /// Writes it with strides of the local tensor, with what precedes its dict in the state, and with the opcode that
    /// makes a tuple of both.
    fn write_as(&self, pickle: Pickle, strides: &[i32], before: &[u8], tuple: &[u8]) -> Pickle {
        let pickle = pickle.raw(b"ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\n");
        let pickle = class(class(pickle, "tensor", "DTensor").raw(b"("), "tensor", "DTensor");
        let pickle = pickle.raw(b"ctorch\nfloat32\n").ints(self.size).raw(b"t").raw(before).raw(b"}(");
        let pickle = pickle.text("_local_tensor").tensor("FloatStorage", "0", 12, 0, self.local, strides);
        let pickle = pickle.text("_spec");
        let pickle = class(pickle, "tensor._dtensor_spec", "DTensorSpec").raw(b")\x81}(").text("mesh");
        let pickle = class(pickle, "device_mesh", "DeviceMesh").raw(b")\x81}(").text("_layout");
        let pickle =
            class(pickle, "_mesh_layout", "_MeshLayout").raw(b")\x81}").text("shape").ints(self.mesh).raw(b"sb");
        let pickle = pickle.text("_coordinate_on_dim").ints(self.coordinate).raw(b"ub").text("placements").raw(b"(");
        let pickle = self.placements.iter().fold(pickle, |pickle, (name, dim, split)| {
            let pickle = class(pickle, "tensor.placement_types", name).raw(b")\x81}(").text("dim").int(*dim);
            let pickle = split.iter().fold(pickle, |pickle, split| pickle.text("split_factor").int(*split));
            pickle.raw(b"ub")
        });
        pickle.raw(b"tubu").raw(tuple).raw(b"tR")
    }

    fn read(&self) -> Result<HeldTensor, String> {
        Self::read_one(|pickle| self.write(pickle))
    }

    /// Reads the only tensor of a file.
    fn read_one(write: impl Fn(Pickle) -> Pickle) -> Result<HeldTensor, String> {
        let pickle = write(Pickle::new().raw(b"}").text("w")).raw(b"s").end();
        let mut found = read_file(pickle).unwrap();
        assert_eq!((found.tensors.len(), &found.tensors[0].name[..]), (1, "w"));
        found.tensors.remove(0).held
    }
}

fn read_with<T>(pickle: Vec<u8>, parse: impl Fn(&HeaderInput) -> Result<T, Error>) -> Result<T, Error> {
    let bytes = file(pickle);
    parse(&HeaderInput::with_prefix(bytes.len() as u64, bytes))
}

fn read_file(pickle: Vec<u8>) -> Result<RankFile, Error> {
    read_with(pickle, |input| parse_rank_file(input, &RankLimits::default()))
}

#[test]
fn parts_of_tensors_have_their_places() {
    const SIZE: &[i32] = &[6, 4];
    let of = |local, mesh, coordinate, placements| TestTensor { size: SIZE, local, mesh, coordinate, placements };
    type Expected = &'static [([u64; 2], [u64; 2], u64)];
    let cases: [(TestTensor, Expected); 5] = [
        (of(&[3, 4], &[2], &[1], &[("Shard", 0, None)]), &[([3, 0], [3, 4], 0)]),
        // The last part of four is empty.
        (of(&[0, 4], &[4], &[3], &[("Shard", 0, None)]), &[]),
        (of(&[2, 2], &[3, 2], &[1, 1], &[("Shard", 0, None), ("Shard", 1, None)]), &[([2, 2], [2, 2], 0)]),
        (of(&[3, 4], &[2, 2], &[0, 0], &[("Replicate", 0, None), ("Shard", 0, None)]), &[([0, 0], [3, 4], 0)]),
        // Two boxes of columns, whose rows are those of the local tensor.
        (of(&[6, 2], &[2], &[1], &[("_StridedShard", 1, Some(2))]), &[([0, 1], [6, 1], 0), ([0, 3], [6, 1], 4)]),
    ];
    for (tensor, expected) in cases {
        let held = tensor.read().unwrap();
        assert_eq!((held.is_sharded, held.dtype.name(), &held.shape[..]), (true, "F32", &[6, 4][..]));
        let start = held.boxes.first().map_or(0, |one| one.part.range.start);
        let found = held.boxes.iter().map(|RankBox { offsets, part }| {
            let (offsets, shape) = (offsets[..].try_into().unwrap(), part.shape[..].try_into().unwrap());
            (offsets, shape, part.range.start - start)
        });
        assert_eq!(found.collect::<Vec<([u64; 2], [u64; 2], u64)>>(), expected);
        for one in &held.boxes {
            let stored = one.part.stored("w");
            assert_eq!(
                stored.layout.map(|layout| layout.strides.to_vec()),
                (one.part.shape[1] == 1).then(|| vec![2, 1])
            );
        }
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    const SHARD: Placed = ("Shard", 0, None);
    let of = |size, local, mesh, coordinate, placements| TestTensor { size, local, mesh, coordinate, placements };
    let cases = [
        (of(&[6], &[2], &[2], &[0], &[SHARD]), "its part in the file is F32 [2], and should be F32 [3]"),
        (of(&[6], &[3], &[2], &[2], &[SHARD]), "the process is at [2] in a mesh of [2] processes"),
        (of(&[6], &[3], &[2], &[0, 0], &[SHARD]), "the process is at [0, 0] in a mesh of [2] processes"),
        (of(&[6], &[3], &[2], &[0], &[]), "0 placements on a mesh of 1 dimensions"),
        (of(&[6], &[3], &[2], &[0], &[("Shard", 1, None)]), "a placement cuts dimension 1 of 1"),
        (of(&[6], &[3], &[2], &[0], &[("Shard", -1, None)]), "another value than whole numbers from 0 on"),
        (of(&[6], &[3], &[2], &[0], &[("Partial", 0, None)]), "its placement is Partial"),
        (of(&[6], &[3], &[2], &[0], &[("Ragged", 0, None)]), "placement_types.Ragged\" is not known"),
        (of(&[6], &[3], &[2], &[0], &[("_StridedShard", 0, None)]), "\"_StridedShard\" has no field split_factor"),
        (of(&[6], &[3], &[2], &[0], &[("_StridedShard", 0, Some(0))]), "the split factor 0"),
        (of(&[6], &[3], &[2], &[0], &[("_StridedShard", 0, Some(i32::MAX))]), "at most 10000 is read"),
        (of(&[6, i32::MAX], &[3], &[2], &[0], &[SHARD]), "its part in the file is F32 [3], and should be F32 [3, 2147"),
        (of(&[-6], &[3], &[2], &[0], &[SHARD]), "its size has another value than whole numbers"),
    ];
    for (tensor, expected) in cases {
        let fault = tensor.read().unwrap_err();
        assert!(fault.contains(expected), "{fault}\n{expected}");
    }
}

#[test]
fn number_of_boxes_is_bounded() {
    // All elements of the local tensor are the same one.
    let of = |size, local, placements| TestTensor { size, local, mesh: &[2, 2], coordinate: &[0, 0], placements };
    let most = of(&[200, 200], &[100, 100], &[("_StridedShard", 0, Some(100)), ("_StridedShard", 1, Some(100))]);
    let more = of(&[202, 202], &[101, 101], &[("_StridedShard", 0, Some(101)), ("_StridedShard", 1, Some(101))]);
    let far = of(&[5000, 5000], &[2500, 2500], &[("_StridedShard", 0, Some(2500)), ("_StridedShard", 1, Some(2500))]);
    let read = |tensor: &TestTensor| TestTensor::read_one(|pickle| tensor.write_as(pickle, &[0, 0], b"N", b"\x86"));
    assert_eq!(read(&most).unwrap().boxes.len(), TENSOR_BOXES_MAX);
    for (tensor, count) in [(more, 10_201), (far, 6_250_000)] {
        let expected = format!("it has {count} parts in the file; at most 10000 are joined");
        assert_eq!(read(&tensor).unwrap_err(), expected);
    }
    // Many tensors with many ranges that are empty.
    let wide = TestTensor {
        size: &[0],
        local: &[0],
        mesh: &[2],
        coordinate: &[0],
        placements: &[("_StridedShard", 0, Some(10_000))],
    };
    let pickle = (0..7000).fold(Pickle::new().raw(b"}("), |pickle, at| wide.write(pickle.text(&at.to_string())));
    let found = read_file(pickle.raw(b"u").end()).unwrap();
    let fault = found.tensors.last().unwrap().held.as_ref().unwrap_err();
    assert!(fault.contains("ranges of indices") && found.tensors[0].held.is_ok(), "{fault}");
    // Each tensor takes from what is left for all files.
    let read_within = |limits: &RankLimits, name: &str, shape: &[i32]| {
        let pickle =
            Pickle::new().raw(b"}").text(name).tensor("FloatStorage", "0", 12, 0, shape, shape).raw(b"s").end();
        read_with(pickle, |input| parse_rank_file(input, limits)).map(|_| ()).map_err(|error| error.to_string())
    };
    let limits = |boxes, text, work| {
        let [boxes, text, work] = [boxes, text, work].map(AtomicUsize::new);
        RankLimits { boxes, text, work }
    };
    let few = limits(1, 5, 100);
    assert_eq!(read_within(&few, "name", &[1]), Ok(()));
    assert!(read_within(&few, "name", &[1]).unwrap_err().contains("MiB of names"));
    assert!(read_within(&few, "n", &[1]).unwrap_err().contains("parts of tensors"));
    // Those of many dimensions count as several.
    assert!(read_within(&limits(15, 5, 100), "n", &[1; 64]).unwrap_err().contains("parts of tensors"));
    assert_eq!(read_within(&limits(16, 5, 100), "n", &[1; 64]), Ok(()));
    // A dict with one item takes two.
    let few = limits(2, 5, 2);
    assert_eq!(read_within(&few, "n", &[1]), Ok(()));
    assert!(read_within(&few, "n", &[1]).unwrap_err().contains("items of dicts"));
}

#[test]
fn states_are_a_dict_or_two() {
    let tensor =
        TestTensor { size: &[6], local: &[3], mesh: &[2], coordinate: &[1], placements: &[("Shard", 0, None)] };
    let read = |before: &[u8], tuple: &[u8]| {
        TestTensor::read_one(|pickle| tensor.write_as(pickle, &[1], before, tuple)).map(|held| held.boxes.len())
    };
    let attributes = |name: &str| {
        let pickle = Pickle::new().raw(b"}").text(name).int(1).raw(b"s").end();
        pickle[2..pickle.len() - 1].to_vec()
    };
    assert_eq!(read(b"", b""), Ok(1));
    // The second dict counts, as in Python.
    for before in [b"N".to_vec(), b"}".to_vec(), attributes("x"), attributes("_local_tensor")] {
        assert_eq!(read(&before, b"\x86"), Ok(1), "{before:?}");
    }
    // What it does not have is in the first.
    assert_eq!(read(b"", &[attributes("x"), b"\x86".to_vec()].concat()), Ok(1));
    for (before, tuple, count) in [(&b""[..], &b"\x85"[..], 1), (b"NN", b"\x87", 3)] {
        assert_eq!(
            read(before, tuple).unwrap_err(),
            format!("the state of an object has {count} parts instead of two")
        );
    }
}

#[test]
fn files_whose_tensors_would_be_left_out_are_refused() {
    let tensor = |pickle: Pickle| pickle.tensor("FloatStorage", "0", 12, 0, &[1], &[1]);
    let nested = tensor(Pickle::new().raw(b"}(").text("state_dict").raw(b"}").text("w")).raw(b"s");
    let beside = tensor(Pickle::new().raw(b"}(").text("w")).text("more").raw(b"}").text("v");
    for (pickle, expected) in [
        (nested.text("step").int(3).raw(b"u"), "key \"state_dict\" of its dict has a dict of tensors"),
        (tensor(beside).raw(b"su"), "key \"more\" of its dict has a dict of tensors"),
        (Pickle::new().raw(b"}").text("step").int(3).raw(b"s"), "none of the values of its dict is a tensor"),
        (Pickle::new().raw(b"}"), "none of the values of its dict is a tensor"),
        (tensor(Pickle::new().raw(b"}").int(3)).raw(b"s"), "key \"3\" of its dict is no text"),
    ] {
        let error = read_file(pickle.end()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let extra = tensor(Pickle::new().raw(b"}(").text("w")).text("extra").raw(b"}").text("step").int(3).raw(b"su");
    let found = read_file(extra.end()).unwrap();
    assert_eq!((found.objects, found.tensors.len()), (1, 1));
}

#[test]
fn other_values_are_not_looked_into() {
    let pickle = Pickle::new().raw(b"}(").text("step").int(7).text("extra").raw(b"cos\nsystem\n").text("true");
    let pickle = pickle.raw(b"\x85R").text("w").tensor("HalfStorage", "0", 24, 4, &[2, 3], &[1, 2]).raw(b"u").end();
    let found = read_file(pickle).unwrap();
    assert_eq!((found.objects, found.tensors.len()), (2, 1));
    let held = found.tensors[0].held.as_ref().unwrap();
    let stored = held.boxes[0].part.stored("w");
    assert!(!held.is_sharded && stored.dtype.name() == "F16" && stored.layout.unwrap().strides == [1, 2]);
    for (pickle, expected) in [
        (Pickle::new().int(1).end(), "the file is not a dict"),
        (
            (0..2)
                .fold(Pickle::new().raw(b"}("), |pickle, _| {
                    pickle.text("w").tensor("FloatStorage", "0", 12, 0, &[1], &[1])
                })
                .raw(b"u")
                .end(),
            "two tensors are called \"w\"",
        ),
    ] {
        assert!(read_file(pickle).unwrap_err().to_string().contains(expected));
    }
}

#[test]
fn files_of_deepspeed_are_read() {
    let shapes = |pickle: Pickle| pickle.text("a").ints(&[2, 3]).text("b").ints(&[]).raw(b"u");
    let pickle = Pickle::new().raw(b"}(").text("module").raw(b"}").text("freq");
    let pickle = pickle.tensor("BFloat16Storage", "0", 24, 0, &[4], &[1]).raw(b"s").text("buffer_names").raw(b"](");
    let pickle = pickle.text("freq").text("absent").raw(b"e").text("param_shapes").raw(b"]}(");
    let pickle = shapes(pickle).raw(b"a").text("shared_params").raw(b"}").text("alias").text("a").raw(b"s");
    let pickle = pickle.text("frozen_param_shapes").raw(b"}").text("f").ints(&[5]).raw(b"s");
    let pickle = pickle.text("frozen_param_fragments").raw(b"}").text("f");
    let pickle = pickle.tensor("FloatStorage", "0", 12, 0, &[3], &[1]).raw(b"su").end();
    for is_first in [true, false] {
        let limits = RankLimits::default();
        let model = read_with(pickle.clone(), |input| parse_zero_model(input, &limits, is_first)).unwrap();
        let frozen = &model.frozen[0];
        assert_eq!(
            (&frozen.0.name[..], &frozen.0.shape[..], frozen.1.as_ref().unwrap().elements()),
            ("f", &[5][..], 3)
        );
        assert_eq!(model.buffers.len() + model.aliases.len() + model.groups.len(), if is_first { 3 } else { 0 });
        if is_first {
            assert_eq!((&model.buffers[0].0[..], model.buffers[0].1.nbytes), ("freq", 8));
            let found: Vec<(&str, &[u64])> =
                model.groups[0].iter().map(|one| (&one.name[..], &one.shape[..])).collect();
            assert_eq!(found, [("a", &[2, 3][..]), ("b", &[])]);
            assert_eq!(model.aliases, [("alias".to_owned(), "a".to_owned())]);
        }
    }
    // The names of buffers may be missing.
    let few = || Pickle::new().raw(b"}(").text("param_shapes").raw(b"]");
    for pickle in [few(), few().text("buffer_names").raw(b"N")] {
        let pickle = pickle.raw(b"u").end();
        let model = read_with(pickle, |input| parse_zero_model(input, &RankLimits::default(), true)).unwrap();
        assert!(model.buffers.is_empty() && model.groups.is_empty());
    }
    let partition = |stage: i32, count: Pickle, key: &str, shape: &[i32]| {
        let pickle = count.text("zero_stage").raw(b"cdeepspeed.runtime.zero.config\nZeroStageEnum\n").int(stage);
        let pickle = pickle.raw(b"\x85R").text(key).raw(b"]");
        let pickle = pickle.tensor("FloatStorage", "0", 12, 0, shape, &[1, 1][..shape.len()]).raw(b"a");
        let pickle = pickle.text("param_alignment_paddings").raw(b"](").raw(b"](").int(2).int(1).raw(b"eeus").end();
        read_with(pickle, |input| parse_zero_partition(input, &RankLimits::default()))
    };
    let start = || Pickle::new().raw(b"}").text("optimizer_state_dict").raw(b"}(").text("partition_count");
    let key = "single_partition_of_fp32_groups";
    let found = partition(2, start().raw(b"](").int(3).int(4).raw(b"e"), key, &[9]).unwrap();
    assert_eq!((found.stage, found.count, found.vectors[0].elements()), (2, 4, 9));
    assert_eq!(found.paddings, [[2, 1]]);
    let found = partition(3, start().int(2), "fp32_flat_groups", &[9]).unwrap();
    assert!(found.count == 2 && found.paddings.is_empty());
    for (found, expected) in [
        (partition(3, start().int(2), key, &[9]), "it has no fp32_flat_groups"),
        (partition(2, start().int(2), key, &[3, 3]), "has 2 dimensions instead of one"),
        (partition(0, start().int(2), key, &[9]), "ZeRO stage 0 is not known"),
        (partition(1, start().int(-2), key, &[9]), "partition_count has another value"),
    ] {
        assert!(found.unwrap_err().to_string().contains(expected), "{expected}");
    }
}
