//! Recognises and decodes the weights of the cases.

use crate::cases::{Case, File, Tensor};
use std::collections::HashMap;
use std::ops::Range;
use weightfs::codec::quantized::{DecodedOutput, F32, GatheredParts, LayoutDecoder, Parts};
use weightfs::model::quantization::{
    QuantizationConfig, QuantizedWeight, RecognisedWeights, SiteTensor, StoredTensors, recognise_weights, wanted,
};

impl Case {
    pub fn config(&self) -> QuantizationConfig {
        let file = |wanted: &str| self.files.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        QuantizationConfig::new(file("config.json"), file("hf_quant_config.json"))
    }
}

/// The tensors of a file. Only the data of some of them can be read.
struct FileTensors<'f> {
    file: &'f File,
    by_name: HashMap<&'f str, usize>,
    wanted: Vec<usize>,
}

impl StoredTensors for FileTensors<'_> {
    fn count(&self) -> usize {
        self.file.tensors.len()
    }

    fn tensor(&self, index: usize) -> SiteTensor<'_> {
        let Tensor { name, dtype, shape, data } = &self.file.tensors[index];
        SiteTensor { index, name, dtype, shape, bytes: data.len() as u64 }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    fn contents(&self, index: usize) -> Option<&[u8]> {
        self.wanted.contains(&index).then_some(&self.file.tensors[index].data)
    }
}

impl File {
    pub fn recognise(&self, config: &QuantizationConfig) -> RecognisedWeights {
        let named = self.tensors.iter().enumerate().map(|(at, tensor)| (&tensor.name[..], at));
        let mut tensors = FileTensors { file: self, by_name: named.collect(), wanted: Vec::new() };
        tensors.wanted = wanted(&tensors).unwrap();
        recognise_weights(&tensors, config)
    }

    /// The sizes of the parts of a weight.
    pub fn sizes(&self, weight: &QuantizedWeight) -> Parts<u64> {
        weight.parts().map(|part| part.map_or(0, |at| self.tensors[at].data.len() as u64))
    }

    pub fn decoder(&self, weight: &QuantizedWeight) -> LayoutDecoder {
        LayoutDecoder::new(weight.class.layout, &self.sizes(weight)).unwrap()
    }

    /// The elements of `range`, from the bytes that are needed for `held`.
    pub fn decode(&self, weight: &QuantizedWeight, held: &Range<u64>, range: &Range<u64>) -> Vec<f32> {
        let decoder = self.decoder(weight);
        let gathered = GatheredParts::new(held.clone(), decoder.needs(held), |part, offset, bytes| {
            let data = &self.tensors[weight.parts()[part as usize].unwrap()].data;
            bytes.copy_from_slice(&data[offset as usize..offset as usize + bytes.len()]);
            Ok::<_, ()>(())
        });
        let gathered = gathered.unwrap();
        let mut out: Vec<F32> = vec![[0xaa; 4]; (range.end - range.start) as usize];
        gathered.decode(&decoder, range, DecodedOutput::F32(&mut out)).unwrap();
        out.into_iter().map(f32::from_le_bytes).collect()
    }
}
