//! An ONNX model. The bytes of its tensors are parts of the `.onnx` file, or of other files that it names, or numbers
//! that were decoded into memory.

use super::set::{KnownFiles, SEVERAL_FILES, SHARDS_MAX, SetMismatches, plain_path};
use crate::format::onnx::{self, ExternalData, OnnxData, OnnxModel, OnnxTensor};
use crate::format::{Header, ParseMode, strip_suffix};
use crate::model::assembled::{SourcePart, TensorAssembly};
use crate::model::error::Error;
use crate::model::header;
use crate::model::ids::ModelFileId;
use crate::model::table::{Model, ModelAccess, ModelFile, ModelForm, NoteKind};
use crate::source::{self, FileId, Location, MemorySource, Source};
use crate::text::quote;
use crate::threads;
use crate::units::plural;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

const FORM: ModelForm = ModelForm {
    kind: "onnx",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: false,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Index,
};

pub fn is_onnx(location: &Location) -> bool {
    strip_suffix(location.file_name(), onnx::SUFFIX).is_some()
}

pub(super) fn onnx_files(location: &Location) -> KnownFiles {
    let walked = source::open_local(location).ok().and_then(|source| walk(&*source, ParseMode::Lenient).ok()).flatten();
    let dir = location.parent();
    let names = walked.iter().flat_map(|walked| external_files(walked)).take(SHARDS_MAX);
    KnownFiles::with(location, names.map(|name| dir.join(name)).collect())
}

/// What the model in a file has. `None` if the file is no sound ONNX model.
fn walk(source: &dyn Source, mode: ParseMode) -> Result<Option<Arc<OnnxModel>>, source::Error> {
    let (input, parsed) = header::load_header(source, mode)?;
    let is_onnx = parsed.is_ok_and(|header| header.format == onnx::NAME);
    Ok(if is_onnx { onnx::read_onnx(&input, mode).ok() } else { None })
}

/// The names of the other files that have data.
fn external_files(model: &OnnxModel) -> BTreeSet<&str> {
    let external = model.tensors.iter().filter_map(|(_, tensor)| match &tensor.data {
        OnnxData::External(external) => Some(&external.location[..]),
        _ => None,
    });
    external.collect()
}

pub(super) fn open_onnx(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let source = source::open_local(location)?;
    let (input, header) = header::read_parts(location, &*source, mode)?;
    let name = location.file_name().to_string_lossy().into_owned();
    let file = ModelFile { name, location: location.clone(), header, source };
    if file.header.format == onnx::NAME {
        let of_format = |error| Error::Format { location: location.clone(), error, is_lenient_better: false };
        // The parser has kept it.
        let walked = onnx::read_onnx(&input, mode).map_err(of_format)?;
        let is_in_file = |tensor: &OnnxTensor| !matches!(tensor.data, OnnxData::Decoded(_) | OnnxData::External(_));
        if !walked.tensors.iter().all(|(_, tensor)| tensor.is_repeated || is_in_file(tensor)) {
            let header = onnx::onnx_header(&walked, mode, false).map_err(of_format)?;
            return open_whole(location, ModelFile { header, ..file }, &walked, mode);
        }
    }
    Ok(Model::new(location, &ModelForm::FILE, vec![file]))
}

/// Opens a model whose main file does not have all bytes of its tensors as they are.
fn open_whole(location: &Location, main: ModelFile, walked: &OnnxModel, mode: ParseMode) -> Result<Model, Error> {
    let mut mismatches = SetMismatches::default();
    let metadata = main.header.metadata.clone();
    let DataFiles { files, homes, unopened } = open_files(location, main, walked, &mut mismatches)?;
    let others = files.len() as u64 - 1;
    let mut model = Model::new(location, &FORM, files);
    let mut assembly = TensorAssembly::new(model.sources());
    for (_, tensor) in &walked.tensors {
        // The header of the main file says what is left out.
        if tensor.is_repeated || matches!(tensor.data, OnnxData::LeftOut(_) | OnnxData::Fault(_)) {
            continue;
        }
        let pushed = part(tensor, &homes, &mut assembly).and_then(|part| {
            assembly.push(&tensor.name, tensor.known_dtype(), &tensor.shape, [part]).map_err(str::to_owned)
        });
        if let Err(reason) = pushed {
            mismatches.push(&tensor.name, || format!("tensor {}: {reason}", quote(&tensor.name)));
        }
    }
    let assembled = assembly.finish().map_err(|_| Error::of_set(location, "the names of its tensors are too long"))?;
    let mismatches = mismatches.settle(location, mode)?;
    model.set_assembled(assembled, Vec::new());
    let facts = &mut model.facts;
    if others > 0 {
        facts.description = format!("data in {}", plural(others, "other file"));
    }
    facts.metadata = Some(metadata);
    (facts.unopened, facts.mismatches) = (unopened, mismatches);
    Ok(model)
}

struct DataFiles<'m> {
    /// The main file, then those with data, sorted by name.
    files: Vec<ModelFile>,
    /// The index in `files` of each file with data, by its plain path, if it could be opened.
    homes: HashMap<Cow<'m, str>, Option<usize>>,
    unopened: Vec<Location>,
}

fn open_files<'m>(
    location: &Location,
    main: ModelFile,
    walked: &'m OnnxModel,
    mismatches: &mut SetMismatches,
) -> Result<DataFiles<'m>, Error> {
    let names: BTreeSet<Cow<str>> = external_files(walked).into_iter().map(plain_path).collect();
    let names: Vec<Cow<str>> = names.into_iter().collect();
    if names.len() > SHARDS_MAX {
        let count = names.len();
        return Err(Error::of_set(location, format!("names {count} files; at most {SHARDS_MAX} are opened")));
    }
    let dir = location.parent();
    let opened = threads::map_parallel(names.len(), |at| source::open_local(&dir.join(&*names[at])));
    let mut known: HashMap<FileId, usize> = main.source.id().map(|id| (id, 0)).into_iter().collect();
    let (mut files, mut homes, mut unopened) = (vec![main], HashMap::new(), Vec::new());
    for (name, opened) in names.into_iter().zip(opened) {
        let location = dir.join(&*name);
        match opened {
            Ok(source) => {
                // Several names may be those of one file.
                let home = source.id().map_or(files.len(), |id| *known.entry(id).or_insert(files.len()));
                let shown = name.clone().into_owned();
                homes.insert(name, Some(home));
                if home < files.len() {
                    continue;
                }
                let mut header = Header::empty(0);
                header.format = onnx::DATA;
                files.push(ModelFile { name: shown, location, header, source });
            }
            // The file may be intact.
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                mismatches.push_shard(&name, || format!("a file with external data is missing or broken: {error}"));
                homes.insert(name, None);
                unopened.push(location);
            }
        }
    }
    Ok(DataFiles { files, homes, unopened })
}

/// Where the bytes of a tensor are. The error is the reason why they are not there.
fn part(
    tensor: &OnnxTensor,
    homes: &HashMap<Cow<str>, Option<usize>>,
    assembly: &mut TensorAssembly,
) -> Result<SourcePart, String> {
    match &tensor.data {
        OnnxData::Range(range) => Ok((0, range.clone())),
        OnnxData::Decoded(bytes) => {
            let source = Arc::new(MemorySource::new(bytes.to_vec()));
            Ok(assembly.made(ModelFileId::new(0), source))
        }
        OnnxData::External(ExternalData { location, offset, len }) => {
            let name = quote(location);
            let home = homes.get(&plain_path(location)).copied().flatten();
            let home = home.ok_or_else(|| format!("its file {name} is missing or broken"))?;
            let has = assembly.source(home).len();
            let (offset, nbytes) = (*offset, tensor.nbytes);
            let len = len.unwrap_or_else(|| has.saturating_sub(offset));
            let end = offset.checked_add(len).filter(|end| *end <= has);
            let end = end.ok_or_else(|| {
                format!("its {nbytes} bytes at byte {offset} go beyond the end of {name}, which has {has} bytes")
            })?;
            match len == nbytes {
                true => Ok((home, offset..end)),
                false => Err(format!(
                    "its data from byte {offset} to the end of {name} has {len} bytes, but dtype and shape give {nbytes}"
                )),
            }
        }
        OnnxData::LeftOut(reason) => Err((*reason).to_owned()),
        OnnxData::Fault(fault) => Err(fault.clone()),
    }
}
