//! State that the views of a model share: the model, and cached contents and results.

use super::export::{self, ExportTree};
use super::id::{ShownViews, View};
use super::results::CachedResults;
use super::{hf, metadata};
use crate::content::{Content, Error, ReadRequest, ResultId, WaitFor, WaitResource};
use crate::model::{Model, OtherFile};
use std::collections::HashMap;
use std::slice;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// From this many tensors on, measuring a text or building a table is too slow for a request that must not wait.
const MANY_TENSORS: usize = 1 << 14;

/// Approximate number of bytes of a table for each tensor.
const BYTES_EACH: u64 = 100;

/// A model and the cached contents of its files.
#[derive(Debug)]
pub struct ModelViews {
    pub model: Arc<Model>,
    pub shown: ShownViews,
    /// The results of all models of the mount. `number` identifies this model in them.
    pub results: Arc<CachedResults>,
    pub number: u32,
    pub metadata: metadata::MetadataFiles,
    /// The files in `export/`.
    exports: OnceLock<ExportTree>,
    kept: Mutex<HashMap<(View, u32), Kept>>,
}

/// The content of a file, once it has been made.
type Kept = Arc<OnceLock<Content>>;

impl ModelViews {
    /// The views of a model in a mount. Models that share `results` must have different numbers.
    pub fn new(mut model: Model, shown: ShownViews, results: Arc<CachedResults>, number: u32) -> Self {
        if let Some(separator) = shown.separator() {
            model.set_separator(separator);
        }
        let model = Arc::new(model);
        let metadata = metadata::MetadataFiles::new(model.clone());
        Self { model, shown, results, number, metadata, exports: OnceLock::new(), kept: Mutex::default() }
    }

    /// The files in `export/`. Fails if the request must not wait for what they are made of.
    pub fn exports(&self, request: &ReadRequest) -> Result<&ExportTree, Error> {
        if let Some(tree) = self.exports.get() {
            return Ok(tree);
        }
        let weights = hf::model_weights(&self.model, request)?;
        self.check_wait(false, request)?;
        Ok(self.exports.get_or_init(|| {
            let dequantized = self.shown.is_dequantized();
            let mut tree = export::export_files(&self.model, dequantized);
            let dir = self.model.main_file().parent();
            let others = (&self.model.facts.others, dir.file_name());
            weights.iter().for_each(|all| hf::add_folders(others, slice::from_ref(all), dequantized, &mut tree));
            tree
        }))
    }

    /// The files in `export/`, if they have been made.
    pub fn exports_if_made(&self) -> Option<&ExportTree> {
        self.exports.get()
    }

    /// A file of the model's directory that is not a part of it, if there is one with that number.
    pub fn other(&self, number: usize) -> Option<&OtherFile> {
        self.model.facts.others.file(number)
    }

    /// Fails if the request must not wait, and a text or table of `MANY_TENSORS` tensors or more has to be made first.
    /// `is_made` means that it exists already.
    pub fn check_wait(&self, is_made: bool, request: &ReadRequest) -> Result<(), Error> {
        if is_made { Ok(()) } else { wait_for_tables(self.model.listed().len(), self.number, request) }
    }

    /// The content of a file. `make` is called at the first request; after that, the content is cached.
    pub fn keep(
        &self,
        view: View,
        item: u32,
        request: &ReadRequest,
        make: impl FnOnce() -> Content,
    ) -> Result<Content, Error> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).entry((view, item)).or_default().clone();
        self.check_wait(kept.get().is_some(), request)?;
        Ok(kept.get_or_init(make).clone())
    }
}

/// Waits to make texts or tables of this many tensors, if they are many. `number` is that of a model or, for a table of
/// several models, 0. Fails if the request must not wait.
pub fn wait_for_tables(tensors: usize, number: u32, request: &ReadRequest) -> Result<(), Error> {
    if tensors < MANY_TENSORS {
        return Ok(());
    }
    let need = WaitResource::Cores { bytes: tensors as u64 * BYTES_EACH, device: None };
    // One table is made at a time. Each is made once.
    let key = ResultId { model: number, kind: ResultId::TABLES, item: 0 };
    request.wait(WaitFor { need, key: Some(key) })
}
