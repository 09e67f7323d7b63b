//! Quantized tensors, and the values that the libraries compute from them: the contents of `cases.safetensors`.

use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

/// A tensor in memory.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub data: Vec<u8>,
}

/// The tensors of a file.
#[derive(Debug, Clone, Default)]
pub struct File {
    pub tensors: Vec<Tensor>,
}

impl File {
    pub fn new(tensors: Vec<Tensor>) -> Self {
        Self { tensors }
    }
}

/// Quantized tensors, and the values that a library or a formula computes from them.
pub struct Case {
    pub name: String,
    pub file: File,
    pub expected: File,
    /// The configuration as files beside the model.
    pub files: Vec<(&'static str, Value)>,
    /// Whether the library keeps the sign of zero.
    pub zero_sign: bool,
}

/// The cases of the repository.
pub fn cases() -> Vec<Case> {
    let cases = cases_of(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/quantized/cases.safetensors"));
    assert!(cases.len() >= 128, "{}", cases.len());
    cases
}

/// The cases in a file of `vectors.py` or `random_vectors.py`.
pub fn cases_of(path: &Path) -> Vec<Case> {
    let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (len, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*len) as usize);
    let header: Value = serde_json::from_slice(header).unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let mut tensors: HashMap<(String, String), Vec<Tensor>> = HashMap::new();
    for (name, value) in header.as_object().unwrap().iter().filter(|(name, _)| *name != "__metadata__") {
        let [case, kind, name] = name.splitn(3, '/').collect::<Vec<_>>()[..] else { panic!("{name}") };
        let offsets = &value["data_offsets"];
        tensors.entry((case.to_owned(), kind.to_owned())).or_default().push(Tensor {
            name: name.to_owned(),
            dtype: value["dtype"].as_str().unwrap().to_owned(),
            shape: value["shape"].as_array().unwrap().iter().map(number).collect(),
            data: data[number(&offsets[0]) as usize..number(&offsets[1]) as usize].to_vec(),
        });
    }
    let cases: Value = serde_json::from_str(header["__metadata__"]["cases"].as_str().unwrap()).unwrap();
    let mut case = |case: &Value| {
        let name = case["name"].as_str().unwrap();
        let mut take = |kind: &str| File::new(tensors.remove(&(name.to_owned(), kind.to_owned())).unwrap());
        let given = |key: &str| Some(&case[key]).filter(|value| !value.is_null());
        Case {
            file: take("stored"),
            expected: take("expected"),
            files: [("config.json", "config"), ("hf_quant_config.json", "other")]
                .into_iter()
                .filter_map(|(file, key)| Some((file, given(key)?.clone())))
                .collect(),
            zero_sign: case["zero_sign"].as_bool().unwrap(),
            name: name.to_owned(),
        }
    };
    let cases: Vec<Case> = cases.as_array().unwrap().iter().map(&mut case).collect();
    assert!(tensors.is_empty(), "{}", tensors.len());
    cases
}

/// Whether two numbers are the same, bit for bit. All NaNs are the same.
pub fn is_same(found: f32, expected: f32, zero_sign: bool) -> bool {
    found.to_bits() == expected.to_bits()
        || found.is_nan() && expected.is_nan()
        || !zero_sign && found == 0.0 && expected == 0.0
}

pub fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}
