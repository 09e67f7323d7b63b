//! `export/` in the root of a directory that is a pipeline of diffusers. Its files are made when the directory is
//! entered, which opens the parts.

use super::attr::{Attr, Dentry, Error, FileKind, Ino, Ownership, ROOT};
use super::folders::{CatalogFolders, EXPORT_FILES, HeaderVerdict, export_folder_ino, folder_ino};
use super::ino;
use crate::content::{self, Content, ReadRequest, ResultId};
use crate::model::{self, FolderId, ModelId, OtherFile, TreeEntry};
use crate::source;
use crate::text::quote;
use crate::view::{CONFIG_MAX, ExportFile, ExportTree, pipeline_index, pipeline_parts, pipeline_tree, wait_for_tables};
use std::ffi::OsStr;

/// The number of the directory `export/` itself.
const TOP: usize = 0;

/// Why the files of a pipeline are not made.
enum ExportFault {
    /// They will never be.
    Refused(String),
    /// Another request tries again.
    Failed(Error),
}

impl From<String> for ExportFault {
    fn from(refusal: String) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Error> for ExportFault {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<content::Error> for ExportFault {
    fn from(error: content::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl CatalogFolders {
    /// The files of `export/`. A pipeline that cannot be shown has none, which is logged once.
    fn exports(&self, request: &ReadRequest) -> Result<&ExportTree, Error> {
        if let Some(tree) = self.exports.get() {
            return Ok(tree);
        }
        let made = match self.make_exports(request) {
            Err(ExportFault::Failed(error)) => return Err(error),
            Err(ExportFault::Refused(refusal)) => Err(refusal),
            Ok(tree) => Ok(tree),
        };
        Ok(self.exports.get_or_init(|| {
            made.unwrap_or_else(|refusal| {
                log::warn!("export/hf/: skipped: {refusal}");
                let mut tree = ExportTree::default();
                tree.add_folder(TOP, None);
                tree
            })
        }))
    }

    fn make_exports(&self, request: &ReadRequest) -> Result<ExportTree, ExportFault> {
        let index = pipeline_index(&self.catalog)?;
        let text = index.plan(0..index.len()).read_owned(request)?;
        let parts = pipeline_parts(&self.catalog, &text)?;
        let models: Vec<ModelId> = parts.iter().map(|part| part.weights).collect();
        models.iter().for_each(|model| source::announce(self.catalog.model(*model), None));
        self.open_parts(&models, request)?;
        let (mut opened, mut left) = (Vec::new(), CONFIG_MAX);
        for part in parts {
            if let HeaderVerdict::Broken(reason, _) = self.check(part.weights, request)? {
                return Err(format!("part {}: {reason}", quote(&part.name)).into());
            }
            let model = self.volume(part.weights, request)?.model();
            opened.push(part.folder_weights(&self.catalog, model, &mut left, request)?);
        }
        // The models have the numbers from 1 on.
        wait_for_tables(opened.iter().map(|weights| weights.model.listed().len()).sum(), 0, request)?;
        Ok(pipeline_tree(&self.catalog, &opened, self.shown.is_dequantized()))
    }

    /// Opens the models of all parts, except those that can never be opened.
    fn open_parts(&self, models: &[ModelId], request: &ReadRequest) -> Result<(), Error> {
        let closed: Vec<ModelId> = models.iter().filter(|model| !self.is_open(**model)).copied().collect();
        let key = ResultId { model: 0, kind: ResultId::PARTS, item: 0 };
        self.each_on_its_device(&closed, key, request, |model| match self.check(model, &ReadRequest::WAIT)? {
            HeaderVerdict::Sound(_) => self.volume(model, &ReadRequest::WAIT).map(drop),
            HeaderVerdict::Broken(..) => Ok(()),
        })
    }

    pub(super) fn find_export(&self, folder: usize, name: &[u8], request: &ReadRequest) -> Result<Attr, Error> {
        let folder = self.exports(request)?.folder(folder).ok_or(Error::NoEntry)?;
        let entry = str::from_utf8(name).ok().and_then(|name| folder.find(name)).ok_or(Error::NoEntry)?;
        self.getattr(entry_ino(entry).0)
    }

    pub(super) fn list_exports<'s>(
        &'s self,
        number: usize,
        offset: u64,
        request: &ReadRequest,
        mut add: impl FnMut(Dentry<'s>) -> bool,
    ) -> Result<(), Error> {
        let folder = self.exports(request)?.folder(number).ok_or(Error::NoEntry)?;
        let parent = if number == TOP { folder_ino(FolderId::new(0)) } else { export_folder_ino(folder.parent) };
        Dentry::list((export_folder_ino(number), parent), folder.entries(), offset, &mut add, |(name, entry)| {
            let (ino, kind) = entry_ino(*entry);
            Some((ino, kind, OsStr::new(name)))
        });
        Ok(())
    }

    /// The directory itself has the attributes of that of the pipeline, so its files need not be made for this.
    pub(super) fn export_folder_attr(&self, number: usize) -> Result<Attr, Error> {
        let made = self.exports.get().and_then(|tree| tree.folder(number)?.stat);
        let top = self.catalog.folder(FolderId::new(0)).ok_or(Error::NoEntry)?;
        Ok(self.ownership.of_folder(made.unwrap_or(top.stat)).folder(export_folder_ino(number)))
    }

    pub(super) fn export_attr(&self, ino: Ino, file: &ExportFile) -> Result<Attr, Error> {
        let size = self.export_content(file)?.len();
        let owner = match file {
            ExportFile::Weights(_, model) => match self.check(*model, &ReadRequest::NOWAIT)? {
                HeaderVerdict::Sound(owner) => *owner,
                HeaderVerdict::Broken(..) => return Err(Error::NoEntry),
            },
            ExportFile::Made(_) => self.owner(FolderId::new(0))?,
            ExportFile::Other(number) | ExportFile::Edited(_, number) => {
                self.ownership.of_unnamed(self.other_file(*number)?.stat, Ownership::of)
            }
        };
        Ok(owner.file(ino, size, u64::from(size > 0)))
    }

    pub(super) fn export_content(&self, file: &ExportFile) -> Result<Content, Error> {
        match file {
            ExportFile::Weights(content, _) | ExportFile::Made(content) | ExportFile::Edited(content, _) => {
                Ok(content.clone())
            }
            ExportFile::Other(number) => Ok(self.other_file(*number)?.content()),
        }
    }

    /// See [`super::Superblock::version`].
    pub(super) fn export_version(&self, file: &ExportFile) -> Option<String> {
        match file {
            ExportFile::Weights(_, model) => self.volume(*model, &ReadRequest::NOWAIT).ok()?.version(ROOT),
            ExportFile::Made(_) => None,
            ExportFile::Other(number) | ExportFile::Edited(_, number) => {
                model::version_of(&**self.other_file(*number).ok()?.local()?)
            }
        }
    }

    fn other_file(&self, number: usize) -> Result<&OtherFile, Error> {
        self.catalog.others().file(number).ok_or(Error::NoEntry)
    }
}

fn entry_ino(entry: TreeEntry) -> (Ino, FileKind) {
    match entry {
        TreeEntry::Folder(folder) => (export_folder_ino(folder), FileKind::Dir),
        TreeEntry::File(file) => (ino::pack(EXPORT_FILES, file as u32), FileKind::File),
    }
}
