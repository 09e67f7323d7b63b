use super::*;

/// A key and a value, as opcodes.
type PickledItem = (Vec<u8>, Vec<u8>);

/// An object of a dataclass, as opcodes.
fn object(module: &str, class: &str, fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let fields: Vec<u8> = fields.iter().flat_map(|(name, value)| [text(name), value.clone()].concat()).collect();
    [global(module, class), b")\x81}(".to_vec(), fields, b"ub".to_vec()].concat()
}

fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

fn text(text: &str) -> Vec<u8> {
    [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()
}

fn int(number: i32) -> Vec<u8> {
    [b"J", &number.to_le_bytes()[..]].concat()
}

fn size(numbers: &[i32]) -> Vec<u8> {
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| int(*number)).collect();
    [global("torch", "Size"), b"(".to_vec(), numbers, b"t\x85R".to_vec()].concat()
}

fn list(values: &[Vec<u8>]) -> Vec<u8> {
    [b"](", &values.concat()[..], b"e"].concat()
}

fn dict(items: &[PickledItem]) -> Vec<u8> {
    let items: Vec<u8> = items.iter().flat_map(|(key, value)| [&key[..], value].concat()).collect();
    [b"}(", &items[..], b"u"].concat()
}

fn properties(dtype: &str) -> Vec<u8> {
    [global(CHECKPOINT, "TensorProperties"), b")\x81(".to_vec(), global("torch", dtype), b"N\x89N\x89tb".to_vec()]
        .concat()
}

fn chunk(offsets: &[i32], sizes: &[i32]) -> Vec<u8> {
    object(CHECKPOINT, "ChunkStorageMetadata", &[("offsets", size(offsets)), ("sizes", size(sizes))])
}

fn tensor(dtype: &str, shape: &[i32], chunks: &[Vec<u8>]) -> Vec<u8> {
    let fields = [("properties", properties(dtype)), ("size", size(shape)), ("chunks", list(chunks))];
    object(CHECKPOINT, "TensorStorageMetadata", &fields)
}

fn key(name: &str, offsets: &[i32]) -> Vec<u8> {
    object(CHECKPOINT, "MetadataIndex", &[("fqn", text(name)), ("offset", size(offsets)), ("index", int(7))])
}

fn place(path: &str, offset: i32, transforms: &[u8]) -> Vec<u8> {
    let (path, offset) = (("relative_path", text(path)), ("offset", int(offset)));
    let fields = [path, offset, ("length", int(100)), ("transform_descriptors", transforms.to_vec())];
    object("torch.distributed.checkpoint.filesystem", "_StorageInfo", &fields)
}

fn metadata(tensors: &[PickledItem], places: &[PickledItem]) -> Vec<u8> {
    let opaque = object("os", "system", &[("x", list(&[]))]);
    let fields = [("state_dict_metadata", dict(tensors)), ("planner_data", opaque), ("storage_data", dict(places))];
    [b"\x80\x04", &object(CHECKPOINT, "Metadata", &fields)[..], b"."].concat()
}

/// A tensor of two chunks, and where they lie.
fn sample() -> (Vec<u8>, [PickledItem; 2]) {
    let sample = tensor("float32", &[4, 3], &[chunk(&[0, 0], &[1, 3]), chunk(&[1, 0], &[3, 3])]);
    (sample, [(key("w", &[1, 0]), place("b", 50, b"N")), (key("w", &[0, 0]), place("a", 0, b"]"))])
}

fn fault(tensors: &[PickledItem], places: &[PickledItem]) -> String {
    CheckpointIndex::parse(&metadata(tensors, places)).unwrap_err()
}

#[test]
fn tensors_chunks_and_places_are_read() {
    let (sample, places) = sample();
    let step = object(CHECKPOINT, "BytesStorageMetadata", &[]);
    let empty = tensor("float4_e2m1fn_x2", &[2, 8], &[chunk(&[0, 0], &[2, 8]), chunk(&[2, 0], &[0, 8])]);
    let other = (key("step", &[]), place("c", 0, b"N"));
    let places = [&places[..], &[other, (key("e", &[0, 0]), place("a", 9, b"N"))]].concat();
    let bytes = metadata(&[(text("w"), sample), (text("step"), step), (text("e"), empty)], &places);
    let index = CheckpointIndex::parse(&bytes).unwrap();
    assert_eq!((&index.files[..], index.objects, index.part_count()), (&["b", "a"][..], 1, 3));
    let [w, e] = &index.tensors[..] else { panic!() };
    assert_eq!((w.name, w.dtype, index.shape(w)), ("w", Dtype::F32, &[4, 3][..]));
    // The shape of pairs counts elements here.
    assert_eq!((e.dtype.name(), index.shape(e)), ("F4", &[2, 16][..]));
    let part = |tensor: &CheckpointTensor, number: usize| {
        let part = index.part(number);
        let PartBounds { offsets, shape } = index.bounds(tensor, part);
        (offsets.to_vec(), shape.to_vec(), part.place.unwrap())
    };
    assert_eq!(part(w, 0), (vec![0, 0], vec![1, 3], ItemPlace { file: 1, offset: 0, len: 100 }));
    assert_eq!(part(w, 1), (vec![1, 0], vec![3, 3], ItemPlace { file: 0, offset: 50, len: 100 }));
    assert_eq!(part(e, 2), (vec![0, 0], vec![2, 16], ItemPlace { file: 1, offset: 9, len: 100 }));
}

#[test]
fn chunks_without_a_place_stay_without() {
    let (sample, places) = sample();
    let bytes = metadata(&[(text("w"), sample)], &places[..1]);
    let index = CheckpointIndex::parse(&bytes).unwrap();
    assert!(index.part(0).place.is_none() && index.part(1).place.is_some());
}

#[test]
fn other_globals_are_refused_by_name_in_both_fields() {
    let (sample, places) = sample();
    let name = "it names \"os.system\", which distributed checkpoints do not use";
    let call = [global("os", "system"), text("x"), b"\x85R".to_vec()].concat();
    assert_eq!(fault(&[(text("w"), sample.clone()), (text("v"), call.clone())], &places), name);
    assert_eq!(fault(&[(call.clone(), sample.clone())], &places), name);
    assert_eq!(fault(&[(text("w"), sample.clone())], &[(call, place("a", 0, b"N"))]), name);
    // A list that holds itself does not stop the search.
    let nested = [b"]\x94h\0a".to_vec(), global("torch", "load")].concat();
    let nested = [b"(".to_vec(), nested, b"t".to_vec()].concat();
    let found = fault(&[(text("w"), sample)], &[(nested, place("a", 0, b"N"))]);
    assert!(found.contains("torch.load"), "{found}");
}

#[test]
fn other_values_are_refused() {
    let (sample, places) = sample();
    let of =
        |dtype: &str, shape: &[i32], chunks: &[Vec<u8>]| fault(&[(text("w"), tensor(dtype, shape, chunks))], &places);
    let cases = [
        (of("float32", &[4], &[chunk(&[0, 0], &[4])]), "the offsets of a chunk have 2 dimensions instead of 1"),
        (of("float32", &[4], &[chunk(&[0], &[4, 1])]), "the sizes of a chunk have 2 dimensions instead of 1"),
        (of("float32", &[-4], &[]), "a size or an offset is no whole number from 0 on"),
        (of("float32", &[1; 65], &[]), "65 dimensions; torch has at most 64"),
        (of("quint4x2", &[1], &[]), "its dtype \"torch.quint4x2\" is not known"),
        (of("float32", &[4], &[chunk(&[0], &[4]), chunk(&[0], &[4])]), "two chunks begin at [0]"),
        (of("float32", &[4], &[size(&[4])]), "a chunk is no object of ChunkStorageMetadata"),
        (
            of("float32", &[4], &[key("w", &[])]),
            "a chunk is an object of \"torch.distributed.checkpoint.metadata.MetadataIndex\"",
        ),
        (fault(&[(text("w"), sample.clone()), (text("w"), sample.clone())], &places), "two tensors are called \"w\""),
        (fault(&[(int(5), sample.clone())], &places), "the name of a tensor is not a text"),
        (fault(&[(text("w"), int(5))], &places), "its description is no object of TensorStorageMetadata"),
    ];
    for (found, expected) in cases {
        assert!(found.contains(expected), "{found}\n{expected}");
    }
    let cases: [(Vec<u8>, &str); 9] = [
        (place("a", -1, b"N"), "the offset or the length of a chunk is no whole number from 0 on"),
        (place("../a", 0, b"N"), "refused: the path \"../a\" leads out of the directory"),
        (place("/a", 0, b"N"), "leads out of the directory"),
        (place("..", 0, b"N"), "is a directory"),
        (place("", 0, b"N"), "is empty"),
        (place("a\0b", 0, b"N"), "has a zero byte"),
        (place(&"a".repeat(256), 0, b"N"), "is too long"),
        (place("a", 0, &list(&[text("stream.zstd/1")])), "the transform \"stream.zstd/1\", which is not supported"),
        (place("a", 0, b"}"), "transform_descriptors is not a list"),
    ];
    for (place, expected) in cases {
        let found = fault(&[(text("w"), sample.clone())], &[(key("w", &[1, 0]), place)]);
        assert!(found.starts_with("tensor \"w\": ") && found.contains(expected), "{found}\n{expected}");
    }
    let found = fault(&[(text("w"), sample)], &[(int(1), int(1))]);
    assert_eq!(found, "a key of storage_data is no object of MetadataIndex");
}

#[test]
fn other_pickles_are_no_checkpoints() {
    let fault = |bytes: &[u8]| CheckpointIndex::parse(bytes).unwrap_err();
    assert_eq!(fault(b"\x80\x04N."), "the metadata of a distributed checkpoint is no object of Metadata");
    assert!(fault(b"").contains("truncated"));
    let empty = [b"\x80\x04", &object(CHECKPOINT, "Metadata", &[])[..], b"."].concat();
    assert_eq!(fault(&empty), "an object of \"Metadata\" has no field state_dict_metadata");
    let bytes = metadata(&sample().1, &[]);
    for len in 0..bytes.len() {
        assert!(CheckpointIndex::parse(&bytes[..len]).is_err());
    }
}

/// A few bytes of a pickle repeat a list of chunks, or a size of many dimensions, for many tensors.
#[test]
fn repeated_values_are_bounded() {
    let repeated = |tensor: Vec<u8>, count: usize| {
        let first = (text("first"), [&tensor[..], b"\x94"].concat());
        let others = (0..count).map(|at| (text(&at.to_string()), b"h\0".to_vec()));
        fault(&std::iter::once(first).chain(others).collect::<Vec<_>>(), &[])
    };
    let chunks: Vec<Vec<u8>> = (0..2000).map(|at| chunk(&[at], &[1])).collect();
    let found = repeated(tensor("float32", &[2000], &chunks), 1000);
    assert!(found.contains("more than 1048576 chunks of all tensors"), "{found}");
    let empty = vec![chunk(&[0], &[0]); 2000];
    let found = repeated(tensor("float32", &[0], &empty), 2200);
    assert!(found.contains("more than 4194304 chunks of all tensors"), "{found}");
    let chunks: Vec<Vec<u8>> = (0..200).map(|at| chunk(&[[at].as_slice(), &[0; 63]].concat(), &[1; 64])).collect();
    let found = repeated(tensor("float32", &[1; 64], &chunks), 1000);
    assert!(found.contains("more than 16777216 sizes and offsets"), "{found}");
}
