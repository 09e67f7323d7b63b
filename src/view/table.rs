//! The table of views. To add a view, add a module and a row here.

use super::export::ExportFile;
use super::id::{ShownViews, View};
use super::results::ResultKey;
use super::values::{self, FloatDtype};
use super::views::ModelViews;
use super::{gguf, index, metadata, npy, plots, single, stats, sums};
use crate::content::{Content, Error, ReadRequest, Segment};
use crate::model::{MANIFEST, Model, ModelFileId, OtherFile, TensorId, TensorNumbers, TreeFolder};
use std::borrow::Cow;

/// A view: a set of files of one kind.
pub struct ViewRow {
    /// The name for `--views`. Several rows may share one.
    pub name: &'static str,
    /// The name of the view's file or directory.
    pub file: &'static str,
    /// Whether the root of a model has the view.
    pub in_root: fn(&Model) -> bool,
    /// Whether `shards/FILE/` has the view too.
    pub in_shards: ShardViews,
    pub files: ViewFiles,
}

/// Whether `shards/FILE/` has a view too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardViews {
    /// Only the whole model has the view.
    Never,
    /// Each shard has its own, even if the view is not shown in the root.
    Always,
    /// Each shard has its own, if the header of the format is text.
    IfText,
    /// Each shard of a dataset has its own: a stored tensor can differ from the logical one of the same name.
    Datasets,
}

/// The files of a view.
pub enum ViewFiles {
    One {
        /// Whether the content is cached, because making it is slow.
        kept: bool,
        /// The content for the whole model, or for one shard.
        content: fn(&ModelViews, View, Option<ModelFileId>) -> Content,
    },
    /// A directory with a file for each tensor.
    Tensors {
        /// The suffix of the file name, after the name of the tensor.
        suffix: &'static str,
        /// Whether the files show numbers. Those of quantized weights are then dequantized and have logical names.
        is_numeric: bool,
        shows: fn(&TensorNumbers) -> bool,
        /// Whether the file of a tensor is a hard link to the stored one.
        is_stored: fn(&TensorNumbers) -> bool,
        content: fn(&ModelViews, &TensorNumbers, ResultKey) -> Content,
    },
    /// A directory of files with individual names. File numbers are unique within the model.
    Named {
        /// Whether all names and contents are available without waiting.
        is_ready: fn(&ModelViews) -> bool,
        /// Number of positions in the directory of the whole model, or of one shard.
        len: fn(&ModelViews, Option<ModelFileId>) -> usize,
        at: fn(&ModelViews, Option<ModelFileId>, usize) -> usize,
        name: fn(&ModelViews, usize) -> Option<Cow<'_, str>>,
        find: fn(&ModelViews, Option<ModelFileId>, &str) -> Option<usize>,
        content: fn(&ModelViews, usize) -> Option<Content>,
    },
    /// A directory of stored tensors, with the components of their names as directories.
    Tree,
    /// The directory `shards/`: a directory for each shard.
    Shards,
    /// A directory of files and folders with individual names.
    Folders {
        /// Makes the files. Fails if the request must not wait for this. Before, the view has none.
        prepare: fn(&ModelViews, &ReadRequest) -> Result<(), Error>,
        /// The folder with a number; 0 is the directory of the view itself.
        folder: fn(&ModelViews, usize) -> Option<&TreeFolder>,
        file: fn(&ModelViews, usize) -> Option<FolderFile<'_>>,
    },
}

/// The values of most rows. Each row has at least the names and the files.
const PLAIN: ViewRow =
    ViewRow { name: "", file: "", in_root: |_| true, in_shards: ShardViews::Never, files: ViewFiles::Tree };

/// All views, in the order of directory listings. Inode numbers contain the index of the row. So that they are the same
/// in later versions, a new row comes last, and no row is moved or removed.
pub const VIEWS: &[ViewRow] = &[
    ViewRow {
        name: "sums",
        file: "SHA256SUMS",
        files: ViewFiles::One {
            kept: true,
            content: |views, view, _| {
                sums::sums_content(&views.model, &views.results, ResultKey { model: views.number, view, item: 0 })
            },
        },
        ..PLAIN
    },
    ViewRow {
        name: "manifest",
        file: MANIFEST,
        in_root: |model| model.facts.documents.iter().any(|(name, _)| *name == MANIFEST),
        files: ViewFiles::One {
            kept: false,
            content: |views, _, _| {
                let documents = views.model.facts.documents.iter();
                Content::new(documents.map(|(_, source)| Segment::extent(source, 0..source.len())))
            },
        },
        ..PLAIN
    },
    ViewRow {
        name: "export",
        file: "export",
        files: ViewFiles::Folders {
            prepare: |views, request| views.exports(request).map(drop),
            folder: |views, folder| views.exports_if_made()?.folder(folder),
            file: |views, file| match views.exports_if_made()?.file(file)? {
                ExportFile::Made(content) | ExportFile::Weights(content, _) => Some(FolderFile::Made(content)),
                ExportFile::Other(number) => views.other(*number).map(FolderFile::Other),
                ExportFile::Edited(content, number) => {
                    views.other(*number).map(|other| FolderFile::Edited(content, other))
                }
            },
        },
        ..PLAIN
    },
    ViewRow {
        name: "f32",
        file: "f32",
        in_shards: ShardViews::Datasets,
        files: ViewFiles::Tensors {
            suffix: ".f32",
            is_numeric: true,
            shows: values::f32_shows,
            is_stored: values::is_stored_f32,
            content: |views, numbers, _| Content::new(values::segment(&views.model, numbers, FloatDtype::F32)),
        },
        ..PLAIN
    },
    ViewRow {
        name: "gguf",
        file: "gguf",
        in_root: gguf::has,
        files: ViewFiles::Tensors {
            suffix: ".gguf",
            is_numeric: false,
            shows: gguf::gguf_shows,
            is_stored: |_| false,
            content: |views, numbers, _| gguf::gguf_content(&views.model, &numbers.tensor),
        },
        ..PLAIN
    },
    ViewRow {
        name: "header",
        file: "header.json",
        in_root: |model| !model.form.has_shards && model.has_text(),
        in_shards: ShardViews::IfText,
        files: ViewFiles::One {
            kept: false,
            content: |views, _, shard| {
                let (model, shard) = (&views.model, shard.unwrap_or(ModelFileId::new(0)));
                let text = model.file(shard).header.text();
                Content::new(text.map(|range| Segment::extent(model.source(shard), range)))
            },
        },
    },
    ViewRow {
        name: "index",
        file: "index.json",
        files: ViewFiles::One {
            kept: true,
            content: |views, _, _| {
                let shown = &views.shown;
                let tensors = shown.contains(View::STORED).then_some(View::STORED.row().file);
                let in_shards = tensors.is_some() && shown.contains(View::SHARDS);
                index::index_content(&views.model, index::TensorDirs { tensors, in_shards })
            },
        },
        ..PLAIN
    },
    ViewRow {
        name: "metadata",
        file: "metadata",
        in_shards: ShardViews::Always,
        files: ViewFiles::Named {
            is_ready: |views| views.metadata.is_ready(),
            len: |views, shard| views.metadata.len(shard),
            at: |views, shard, position| views.metadata.at(shard, position),
            name: |views, file| views.metadata.name(file),
            find: |views, shard, name| views.metadata.find(shard, name),
            content: |views, file| views.metadata.content(file),
        },
        ..PLAIN
    },
    ViewRow {
        name: "metadata",
        file: "metadata.json",
        in_shards: ShardViews::Always,
        files: ViewFiles::One { kept: true, content: |views, _, shard| metadata::json(&views.model, shard) },
        ..PLAIN
    },
    ViewRow {
        name: "npy",
        file: "npy",
        in_shards: ShardViews::Datasets,
        files: ViewFiles::Tensors {
            suffix: ".npy",
            is_numeric: true,
            shows: npy::npy_shows,
            is_stored: |_| false,
            content: |views, numbers, _| npy::npy_content(&views.model, numbers),
        },
        ..PLAIN
    },
    ViewRow {
        name: "plots",
        file: "plots",
        files: ViewFiles::Tensors {
            suffix: ".png",
            is_numeric: true,
            shows: stats::has_statistics,
            is_stored: |_| false,
            content: plots::plot_content,
        },
        ..PLAIN
    },
    ViewRow {
        name: "safetensors",
        file: "safetensors",
        in_shards: ShardViews::Datasets,
        files: ViewFiles::Tensors {
            suffix: ".safetensors",
            is_numeric: false,
            shows: single::single_shows,
            is_stored: |_| false,
            content: |views, numbers, _| single::single_content(&views.model, &numbers.tensor),
        },
        ..PLAIN
    },
    ViewRow { name: "samples", file: "samples", in_root: |model| model.facts.separator.is_some(), ..PLAIN },
    ViewRow {
        name: "shards",
        file: "shards",
        in_root: |model| model.form.has_shards,
        files: ViewFiles::Shards,
        ..PLAIN
    },
    ViewRow {
        name: "stats",
        file: "stats",
        files: ViewFiles::Tensors {
            suffix: ".json",
            is_numeric: true,
            shows: stats::has_statistics,
            is_stored: |_| false,
            content: stats::stats_content,
        },
        ..PLAIN
    },
    ViewRow {
        name: "tensors",
        file: "tensors",
        in_shards: ShardViews::Datasets,
        files: ViewFiles::Tensors {
            suffix: "",
            is_numeric: false,
            shows: |_| true,
            is_stored: |_| true,
            content: |views, numbers, _| views.model.data(&numbers.tensor).into(),
        },
        ..PLAIN
    },
    ViewRow { name: "tree", file: "tree", ..PLAIN },
    ViewRow {
        name: "files",
        file: "files",
        in_root: |model| !model.facts.others.files().is_empty(),
        files: ViewFiles::Folders {
            prepare: |_, _| Ok(()),
            folder: |views, folder| views.model.facts.others.folder(folder),
            file: |views, file| views.other(file).map(FolderFile::Other),
        },
        ..PLAIN
    },
];

impl View {
    /// The stored tensors. Other views may have hard links to their files.
    pub const STORED: Self = Self::new(15);

    pub const SHARDS: Self = Self::new(13);

    /// The stored tensors by path.
    pub const TREE: Self = Self::new(16);

    /// The other files of the model's directory.
    pub const OTHERS: Self = Self::new(17);

    /// Whole models as files.
    pub const EXPORT: Self = Self::new(2);

    /// The stored tensors of a dataset by key and column.
    pub const SAMPLES: Self = Self::new(12);

    /// The view whose row has this index, if there is one.
    pub fn at(number: u32) -> Option<Self> {
        Self::all().nth(number as usize)
    }

    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        (0..VIEWS.len()).map(Self::new)
    }

    pub fn row(self) -> &'static ViewRow {
        &VIEWS[usize::from(self.index())]
    }

    /// Whether the root of a model has the view.
    pub fn is_in_root(self, views: &ModelViews) -> bool {
        views.shown.contains(self) && (self.row().in_root)(&views.model)
    }

    /// Whether the directory of each shard has the view.
    pub fn is_in_shards(self, views: &ModelViews) -> bool {
        match self.row().in_shards {
            ShardViews::Never => false,
            ShardViews::Always => true,
            ShardViews::IfText => views.model.has_text(),
            ShardViews::Datasets => views.shown.contains(self) && views.model.form.shows_stored,
        }
    }

    /// The number of a view's only file for the whole model, or for one shard.
    pub fn only_file(shard: Option<ModelFileId>) -> u32 {
        shard.map_or(0, |shard| u32::from(shard) + 1)
    }

    /// Whether the view shows the numbers of quantized weights dequantized, under logical names.
    pub fn is_dequantized(self, views: &ModelViews) -> bool {
        views.shown.is_dequantized() && matches!(self.row().files, ViewFiles::Tensors { is_numeric: true, .. })
    }

    /// A tensor as the view shows it. Panics if no tensor has that number.
    pub fn numbers(self, views: &ModelViews, tensor: TensorId) -> TensorNumbers<'_> {
        views.model.numbers(tensor, self.is_dequantized(views))
    }

    /// The file with that number, if the view has it.
    pub fn file(self, views: &ModelViews, number: u32) -> Option<ViewFile<'_>> {
        let model = &views.model;
        match &self.row().files {
            ViewFiles::One { .. } => {
                let shard = number.checked_sub(1).map(ModelFileId::from);
                let exists = match shard {
                    None => (self.row().in_root)(model),
                    Some(shard) => self.row().in_shards != ShardViews::Never && shard.index() < model.files.len(),
                };
                exists.then_some(ViewFile::One(shard))
            }
            ViewFiles::Tensors { shows, is_stored, .. } => {
                let tensor = TensorId::from(number);
                let numbers = model.contains(tensor).then(|| self.numbers(views, tensor))?;
                let is_own = self == Self::STORED || shows(&numbers) && !is_stored(&numbers);
                is_own.then_some(ViewFile::Tensor(numbers))
            }
            ViewFiles::Named { .. } => Some(ViewFile::Named(number)),
            ViewFiles::Folders { file, .. } => file(views, number as usize).map(|_| ViewFile::Named(number)),
            ViewFiles::Tree | ViewFiles::Shards => None,
        }
    }

    /// The file of the model's directory that has the owner and permissions of a file of the view, if one has. Makes no
    /// files.
    pub fn other(self, views: &ModelViews, number: u32) -> Option<&OtherFile> {
        match &self.row().files {
            ViewFiles::Folders { file, .. } => match file(views, number as usize)? {
                FolderFile::Other(other) | FolderFile::Edited(_, other) => Some(other),
                FolderFile::Made(_) => None,
            },
            _ => None,
        }
    }

    /// The content of a file of the view. `None` if the view has no such file.
    pub fn content(self, views: &ModelViews, file: &ViewFile, request: &ReadRequest) -> Result<Option<Content>, Error> {
        let row = self.row();
        let content = match (&row.files, file) {
            (ViewFiles::One { kept: true, content }, ViewFile::One(shard)) => {
                Some(views.keep(self, file.number(), request, || content(views, self, *shard))?)
            }
            (ViewFiles::One { content, .. }, ViewFile::One(shard)) => Some(content(views, self, *shard)),
            (ViewFiles::Tensors { content, .. }, ViewFile::Tensor(numbers)) => {
                Some(content(views, numbers, ResultKey { model: views.number, view: self, item: file.number() }))
            }
            (ViewFiles::Named { is_ready, content, .. }, ViewFile::Named(number)) => {
                views.check_wait(is_ready(views), request)?;
                content(views, *number as usize)
            }
            (ViewFiles::Folders { prepare, file, .. }, ViewFile::Named(number)) => {
                prepare(views, request)?;
                file(views, *number as usize).map(|file| match file {
                    FolderFile::Made(content) | FolderFile::Edited(content, _) => content.clone(),
                    FolderFile::Other(other) => other.content(),
                })
            }
            _ => None,
        };
        Ok(content)
    }
}

/// A file in a folder of a view.
#[derive(Debug, Clone, Copy)]
pub enum FolderFile<'v> {
    /// Has the owner and the permissions of the model.
    Made(&'v Content),
    /// A file of the model's directory.
    Other(&'v OtherFile),
    /// A file of the model's directory with another content.
    Edited(&'v Content, &'v OtherFile),
}

/// A file of a view.
#[derive(Debug, Clone)]
pub enum ViewFile<'m> {
    /// The only file of a view, for the whole model or for one shard.
    One(Option<ModelFileId>),
    Tensor(TensorNumbers<'m>),
    Named(u32),
}

impl ViewFile<'_> {
    /// The number of the file in its view.
    pub fn number(&self) -> u32 {
        match self {
            Self::One(shard) => View::only_file(*shard),
            Self::Tensor(numbers) => numbers.tensor.id.into(),
            Self::Named(number) => *number,
        }
    }
}

/// No view has that name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("no view is called {name:?}; there are {}", names().join(", "))]
pub struct UnknownView {
    name: String,
}

/// The names of all views for `--views`, in the order of the table.
pub fn names() -> Vec<&'static str> {
    let mut names: Vec<_> = VIEWS.iter().map(|row| row.name).collect();
    names.dedup();
    names
}

/// The views with these names.
pub fn shown_views<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<ShownViews, UnknownView> {
    names.into_iter().try_fold(ShownViews::NONE, |shown, name| {
        let mut named = View::all().filter(|view| view.row().name == name).peekable();
        named.peek().ok_or_else(|| UnknownView { name: name.to_owned() })?;
        Ok(named.fold(shown, ShownViews::with))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_fits_into_a_set_and_constants_are_its_rows() {
        assert!(VIEWS.len() < 64);
        let constants = [View::STORED, View::SHARDS, View::TREE, View::SAMPLES, View::OTHERS, View::EXPORT];
        assert_eq!(constants.map(|view| view.row().file), ["tensors", "shards", "tree", "samples", "files", "export"]);
    }

    #[test]
    fn numbers_of_views_never_change() {
        let numbers: Vec<(usize, &str)> = VIEWS.iter().map(|row| row.file).enumerate().collect();
        // A new view gets the next number and a place in this list. No other line may change.
        let known = [
            (0, "SHA256SUMS"),
            (1, "dataset_manifest.json"),
            (2, "export"),
            (3, "f32"),
            (4, "gguf"),
            (5, "header.json"),
            (6, "index.json"),
            (7, "metadata"),
            (8, "metadata.json"),
            (9, "npy"),
            (10, "plots"),
            (11, "safetensors"),
            (12, "samples"),
            (13, "shards"),
            (14, "stats"),
            (15, "tensors"),
            (16, "tree"),
            (17, "files"),
        ];
        assert_eq!(numbers, known);
        assert_eq!(View::at(16), Some(View::TREE));
        assert_eq!((View::at(known.len() as u32), View::at(u32::MAX)), (None, None));
    }

    #[test]
    fn names_select_views() {
        let all: Vec<&str> = names();
        assert_eq!(all.len(), VIEWS.len() - 1, "metadata and metadata.json share a name");
        let set = shown_views(["metadata", "tensors"]).unwrap();
        let files: Vec<&str> = View::all().filter(|view| set.contains(*view)).map(|view| view.row().file).collect();
        assert_eq!(files, ["metadata", "metadata.json", "tensors"]);
        assert!(View::all().all(|view| ShownViews::default().contains(view)));
        assert_eq!(shown_views(["tensors", "tensors"]), shown_views(["tensors"]));
        assert_eq!(
            shown_views(["tensor"]).unwrap_err().to_string(),
            "no view is called \"tensor\"; there are sums, manifest, export, f32, gguf, header, index, metadata, npy, plots, \
             safetensors, samples, shards, stats, tensors, tree, files"
        );
    }
}
