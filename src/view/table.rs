//! The table of views. To add a view, add a module and a row here.

use super::id::{ShownViews, View};
use super::results::ResultKey;
use super::views::ModelViews;
use super::{f32, gguf, index, metadata, npy, plots, single, stats, sums};
use crate::content::{Content, Data, Error, Extent, ReadRequest, Segment};
use crate::model::{MANIFEST, Model, ShardId, TensorId, TensorNumbers};
use crate::source::Source;
use std::borrow::Cow;
use std::sync::Arc;

/// A view: a set of files of one kind.
pub struct ViewRow {
    /// The number of the view in inode numbers, below 64. It must never change, and a number that was used before must
    /// not be used again, so that inode numbers are the same in later versions.
    pub number: u8,
    /// The name for `--views`. Several rows may share one.
    pub name: &'static str,
    /// The name of the view's file or directory.
    pub file: &'static str,
    /// Whether the root of a model has the view.
    pub in_root: fn(&Model) -> bool,
    /// Whether `shards/FILE/` has the view too.
    pub in_shards: ShardViews,
    /// The files of the view.
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
    /// One file.
    One {
        /// Whether the content is cached, because making it is slow.
        kept: bool,
        /// The content for the whole model, or for one shard.
        content: fn(&ModelViews, View, Option<ShardId>) -> Content,
    },
    /// A directory with a file for each tensor.
    Tensors {
        /// The suffix of the file name, after the name of the tensor.
        suffix: &'static str,
        /// Whether the files show numbers. Those of quantized weights are then dequantized and have logical names.
        is_numeric: bool,
        /// Whether a tensor is shown.
        shows: fn(&TensorNumbers) -> bool,
        /// Whether the file of a tensor is a hard link to the stored one.
        is_stored: fn(&TensorNumbers) -> bool,
        /// The content of a tensor's file.
        content: fn(&ModelViews, &TensorNumbers, ResultKey) -> Content,
    },
    /// A directory of files with individual names. File numbers are unique within the model.
    Named {
        /// Whether all names and contents are available without waiting.
        is_ready: fn(&ModelViews) -> bool,
        /// Number of positions in the directory of the whole model, or of one shard.
        len: fn(&ModelViews, Option<ShardId>) -> usize,
        /// The number of the file at a position.
        at: fn(&ModelViews, Option<ShardId>, usize) -> usize,
        /// The name of a file.
        name: fn(&ModelViews, usize) -> Option<Cow<'_, str>>,
        /// The number of the file with that name.
        find: fn(&ModelViews, Option<ShardId>, &str) -> Option<usize>,
        /// The content of a file, if there is one.
        content: fn(&ModelViews, usize) -> Option<Content>,
    },
    /// A directory of stored tensors, with the components of their names as directories.
    Tree,
    /// The directory `shards/`: a directory for each shard.
    Shards,
}

/// All views, sorted by file name, which is the order of directory listings.
pub const VIEWS: &[ViewRow] = &[
    ViewRow {
        number: 0,
        name: "sums",
        file: "SHA256SUMS",
        in_root: |_| true,
        in_shards: ShardViews::Never,
        files: ViewFiles::One {
            kept: true,
            content: |views, view, _| {
                sums::sums_content(views.model(), views.results(), ResultKey { model: views.number(), view, item: 0 })
            },
        },
    },
    ViewRow {
        number: 1,
        name: "manifest",
        file: MANIFEST,
        in_root: |model| model.documents().iter().any(|(name, _)| *name == MANIFEST),
        in_shards: ShardViews::Never,
        files: ViewFiles::One {
            kept: false,
            content: |views, _, _| {
                let extent = |source: &Arc<dyn Source>| Extent { source: source.clone(), range: 0..source.len() };
                Content::new(
                    views.model().documents().iter().map(|(_, source)| Segment::Data(Data::Extent(extent(source)))),
                )
            },
        },
    },
    ViewRow {
        number: 2,
        name: "export",
        file: "export",
        in_root: |_| true,
        in_shards: ShardViews::Never,
        files: ViewFiles::Named {
            is_ready: |views| views.exports_if_made().is_some(),
            len: |views, _| views.exports().len(),
            at: |_, _, position| position,
            name: |views, file| Some(views.exports().get(file)?.0[..].into()),
            find: |views, _, name| views.exports().iter().position(|export| export.0 == name),
            content: |views, file| Some(views.exports().get(file)?.1.clone()),
        },
    },
    ViewRow {
        number: 3,
        name: "f32",
        file: "f32",
        in_root: |_| true,
        in_shards: ShardViews::Datasets,
        files: ViewFiles::Tensors {
            suffix: ".f32",
            is_numeric: true,
            shows: f32::f32_shows,
            is_stored: f32::is_stored,
            content: |views, numbers, _| f32::f32_content(views.model(), numbers),
        },
    },
    ViewRow {
        number: 4,
        name: "gguf",
        file: "gguf",
        in_root: gguf::has,
        in_shards: ShardViews::Never,
        files: ViewFiles::Tensors {
            suffix: ".gguf",
            is_numeric: false,
            shows: gguf::gguf_shows,
            is_stored: |_| false,
            content: |views, numbers, _| gguf::gguf_content(views.model(), &numbers.tensor),
        },
    },
    ViewRow {
        number: 5,
        name: "header",
        file: "header.json",
        in_root: |model| !model.form().has_shards && model.has_text(),
        in_shards: ShardViews::IfText,
        files: ViewFiles::One {
            kept: false,
            content: |views, _, shard| {
                let (model, shard) = (views.model(), shard.unwrap_or(ShardId::new(0)));
                let text = model.shard(shard).header.text();
                let extent = |range| Extent { source: model.source(shard).clone(), range };
                Content::new(text.map(|range| Segment::Data(Data::Extent(extent(range)))))
            },
        },
    },
    ViewRow {
        number: 6,
        name: "index",
        file: "index.json",
        in_root: |_| true,
        in_shards: ShardViews::Never,
        files: ViewFiles::One {
            kept: true,
            content: |views, _, _| {
                let shown = views.shown();
                let tensors = shown.contains(View::STORED).then_some(View::STORED.row().file);
                let in_shards = tensors.is_some() && shown.contains(View::SHARDS);
                index::index_content(views.model(), index::TensorDirs { tensors, in_shards })
            },
        },
    },
    ViewRow {
        number: 7,
        name: "metadata",
        file: "metadata",
        in_root: |_| true,
        in_shards: ShardViews::Always,
        files: ViewFiles::Named {
            is_ready: |views| views.metadata().is_ready(),
            len: |views, shard| views.metadata().len(shard),
            at: |views, shard, position| views.metadata().at(shard, position),
            name: |views, file| views.metadata().name(file),
            find: |views, shard, name| views.metadata().find(shard, name),
            content: |views, file| views.metadata().content(file),
        },
    },
    ViewRow {
        number: 8,
        name: "metadata",
        file: "metadata.json",
        in_root: |_| true,
        in_shards: ShardViews::Always,
        files: ViewFiles::One { kept: true, content: |views, _, shard| metadata::json(views.model(), shard) },
    },
    ViewRow {
        number: 9,
        name: "npy",
        file: "npy",
        in_root: |_| true,
        in_shards: ShardViews::Datasets,
        files: ViewFiles::Tensors {
            suffix: ".npy",
            is_numeric: true,
            shows: npy::npy_shows,
            is_stored: |_| false,
            content: |views, numbers, _| npy::npy_content(views.model(), numbers),
        },
    },
    ViewRow {
        number: 10,
        name: "plots",
        file: "plots",
        in_root: |_| true,
        in_shards: ShardViews::Never,
        files: ViewFiles::Tensors {
            suffix: ".png",
            is_numeric: true,
            shows: stats::stats_shows,
            is_stored: |_| false,
            content: |views, numbers, key| plots::plot_content(views.model(), numbers, views.results(), key),
        },
    },
    ViewRow {
        number: 11,
        name: "safetensors",
        file: "safetensors",
        in_root: |_| true,
        in_shards: ShardViews::Datasets,
        files: ViewFiles::Tensors {
            suffix: ".safetensors",
            is_numeric: false,
            shows: single::single_shows,
            is_stored: |_| false,
            content: |views, numbers, _| single::single_content(views.model(), &numbers.tensor),
        },
    },
    ViewRow {
        number: 12,
        name: "samples",
        file: "samples",
        in_root: |model| model.separator().is_some(),
        in_shards: ShardViews::Never,
        files: ViewFiles::Tree,
    },
    ViewRow {
        number: 13,
        name: "shards",
        file: "shards",
        in_root: |model| model.form().has_shards,
        in_shards: ShardViews::Never,
        files: ViewFiles::Shards,
    },
    ViewRow {
        number: 14,
        name: "stats",
        file: "stats",
        in_root: |_| true,
        in_shards: ShardViews::Never,
        files: ViewFiles::Tensors {
            suffix: ".json",
            is_numeric: true,
            shows: stats::stats_shows,
            is_stored: |_| false,
            content: |views, numbers, key| stats::stats_content(views.model(), numbers, views.results(), key),
        },
    },
    ViewRow {
        number: 15,
        name: "tensors",
        file: "tensors",
        in_root: |_| true,
        in_shards: ShardViews::Datasets,
        files: ViewFiles::Tensors {
            suffix: "",
            is_numeric: false,
            shows: |_| true,
            is_stored: |_| true,
            content: |views, numbers, _| Content::new([Segment::Data(views.model().data(&numbers.tensor))]),
        },
    },
    ViewRow {
        number: 16,
        name: "tree",
        file: "tree",
        in_root: |_| true,
        in_shards: ShardViews::Never,
        files: ViewFiles::Tree,
    },
];

impl View {
    /// The stored tensors. Other views may have hard links to their files.
    pub const STORED: Self = Self::of("tensors");

    /// The directories of the shards.
    pub const SHARDS: Self = Self::of("shards");

    /// The stored tensors by path.
    pub const TREE: Self = Self::of("tree");

    /// The stored tensors of a dataset by key and column.
    pub const SAMPLES: Self = Self::of("samples");

    /// The view with that file name. In a constant, an unknown name is a compile error.
    const fn of(file: &str) -> Self {
        let (mut at, file) = (0, file.as_bytes());
        while at < VIEWS.len() {
            let other = VIEWS[at].file.as_bytes();
            let mut same = 0;
            while same < file.len() && other.len() == file.len() && other[same] == file[same] {
                same += 1;
            }
            if same == file.len() {
                break;
            }
            at += 1;
        }
        // Panics if the loop has found no view.
        let _ = &VIEWS[at];
        Self::new(at)
    }

    /// The view whose row has this number.
    pub fn of_number(number: usize) -> Option<Self> {
        /// The index of the row with each number, and `VIEWS.len()` where there is none.
        const INDEX: [u8; 64] = {
            let mut index = [VIEWS.len() as u8; 64];
            let mut at = 0;
            while at < VIEWS.len() {
                assert!(index[VIEWS[at].number as usize] as usize == VIEWS.len(), "two views have the same number");
                index[VIEWS[at].number as usize] = at as u8;
                at += 1;
            }
            index
        };
        let index = usize::from(*INDEX.get(number)?);
        (index < VIEWS.len()).then(|| Self::new(index))
    }

    /// All views, in the order of the table.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        (0..VIEWS.len()).map(Self::new)
    }

    /// The row of the view in the table.
    pub fn row(self) -> &'static ViewRow {
        &VIEWS[self.index()]
    }

    /// Whether the root of a model has the view.
    pub fn is_in_root(self, views: &ModelViews) -> bool {
        views.shown().contains(self) && (self.row().in_root)(views.model())
    }

    /// Whether the directory of each shard has the view.
    pub fn is_in_shards(self, views: &ModelViews) -> bool {
        match self.row().in_shards {
            ShardViews::Never => false,
            ShardViews::Always => true,
            ShardViews::IfText => views.model().has_text(),
            ShardViews::Datasets => views.shown().contains(self) && views.model().form().shows_stored,
        }
    }

    /// The number of a view's only file for the whole model, or for one shard.
    pub fn only_file(shard: Option<ShardId>) -> u32 {
        shard.map_or(0, |shard| u32::from(shard) + 1)
    }

    /// Whether the view shows the numbers of quantized weights dequantized, under logical names.
    pub fn is_dequantized(self, views: &ModelViews) -> bool {
        views.shown().is_dequantized() && matches!(self.row().files, ViewFiles::Tensors { is_numeric: true, .. })
    }

    /// A tensor as the view shows it.
    ///
    /// # Panics
    /// If no tensor has that number.
    pub fn numbers(self, views: &ModelViews, tensor: TensorId) -> TensorNumbers<'_> {
        views.model().numbers(tensor, self.is_dequantized(views))
    }

    /// The file with that number, if the view has it.
    pub fn file(self, views: &ModelViews, number: u32) -> Option<ViewFile<'_>> {
        let model = views.model();
        match &self.row().files {
            ViewFiles::One { .. } => {
                let shard = number.checked_sub(1).map(ShardId::from);
                let exists = match shard {
                    None => (self.row().in_root)(model),
                    Some(shard) => self.row().in_shards != ShardViews::Never && shard.index() < model.shards().len(),
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
            ViewFiles::Tree | ViewFiles::Shards => None,
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
                Some(content(views, numbers, ResultKey { model: views.number(), view: self, item: file.number() }))
            }
            (ViewFiles::Named { is_ready, content, .. }, ViewFile::Named(number)) => {
                views.check_wait(is_ready(views), request)?;
                content(views, *number as usize)
            }
            _ => None,
        };
        Ok(content)
    }
}

/// A file of a view.
#[derive(Debug, Clone)]
pub enum ViewFile<'m> {
    /// The only file of a view, for the whole model or for one shard.
    One(Option<ShardId>),
    /// The file of a tensor.
    Tensor(TensorNumbers<'m>),
    /// A file of a view with individual names.
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
    fn table_is_sorted_and_fits_into_a_set() {
        assert!(VIEWS.windows(2).all(|pair| pair[0].file < pair[1].file));
        assert!(VIEWS.len() < 64);
        assert_eq!((View::STORED.row().file, View::SHARDS.row().file), ("tensors", "shards"));
    }

    #[test]
    fn numbers_of_views_never_change() {
        let numbers: Vec<(u8, &str)> = VIEWS.iter().map(|row| (row.number, row.file)).collect();
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
        ];
        assert_eq!(numbers, known);
        for view in View::all() {
            assert_eq!(View::of_number(view.row().number.into()), Some(view));
        }
        assert_eq!(View::of_number(known.len()), None);
        assert_eq!(View::of_number(64), None);
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
             safetensors, samples, shards, stats, tensors, tree"
        );
    }
}
