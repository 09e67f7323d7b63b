//! The table of views. To add a view, add a module and a row here.

use super::id::{Shown, View};
use super::results::Key;
use super::views::Views;
use super::{f32, gguf, index, metadata, npy, plots, single, stats, stored, sums};
use crate::content::{Content, Data, Error, Extent, Request, Segment};
use crate::model::{Kind, MANIFEST, Model, Numbers, ShardId, TensorId};
use crate::source::Source;
use std::borrow::Cow;
use std::sync::Arc;

/// A view: a set of files of one kind.
pub struct Row {
    /// The name for `--views`. Several rows may share one.
    pub name: &'static str,
    /// The name of the view's file or directory.
    pub file: &'static str,
    /// Whether the root of a model has the view.
    pub in_root: fn(&Model) -> bool,
    /// Whether `shards/FILE/` has the view too.
    pub in_shards: InShards,
    /// The files of the view.
    pub files: Files,
}

/// Whether `shards/FILE/` has a view too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InShards {
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
pub enum Files {
    /// One file.
    One {
        /// Whether the content is cached, because making it is slow.
        kept: bool,
        /// The content for the whole model, or for one shard.
        content: fn(&Views, View, Option<ShardId>) -> Content,
    },
    /// A directory with a file for each tensor.
    Tensors {
        /// The suffix of the file name, after the name of the tensor.
        suffix: &'static str,
        /// Whether the files show numbers. Those of quantized weights are then dequantized and have logical names.
        is_numeric: bool,
        /// Whether a tensor is shown.
        shows: fn(&Numbers) -> bool,
        /// Whether the file of a tensor is a hard link to the stored one.
        is_stored: fn(&Numbers) -> bool,
        /// The content of a tensor's file.
        content: fn(&Views, &Numbers, Key) -> Content,
    },
    /// A directory of files with individual names. File numbers are unique within the model.
    Named {
        /// Whether all names and contents are available without waiting.
        is_ready: fn(&Views) -> bool,
        /// Number of positions in the directory of the whole model, or of one shard.
        len: fn(&Views, Option<ShardId>) -> usize,
        /// The number of the file at a position.
        at: fn(&Views, Option<ShardId>, usize) -> usize,
        /// The name of a file.
        name: fn(&Views, usize) -> Option<Cow<'_, str>>,
        /// The number of the file with that name.
        find: fn(&Views, Option<ShardId>, &str) -> Option<usize>,
        /// The content of a file, if there is one.
        content: fn(&Views, usize) -> Option<Content>,
    },
    /// A directory of stored tensors, with the components of their names as directories.
    Tree,
    /// The directory `shards/`: a directory for each shard.
    Shards,
}

/// All views, sorted by file name, which is the order of directory listings. Inode numbers contain the index of a row.
pub const VIEWS: &[Row] = &[
    Row {
        name: "sums",
        file: "SHA256SUMS",
        in_root: |_| true,
        in_shards: InShards::Never,
        files: Files::One {
            kept: true,
            content: |views, view, _| {
                sums::content(views.model(), views.results(), Key { model: views.number(), view, item: 0 })
            },
        },
    },
    Row {
        name: "manifest",
        file: MANIFEST,
        in_root: |model| model.kind() == Kind::Dataset,
        in_shards: InShards::Never,
        files: Files::One {
            kept: false,
            content: |views, _, _| {
                let extent = |source: &Arc<dyn Source>| Extent { source: source.clone(), range: 0..source.len() };
                Content::new(views.model().manifest().map(|source| Segment::Data(Data::Extent(extent(source)))))
            },
        },
    },
    Row {
        name: "export",
        file: "export",
        in_root: |_| true,
        in_shards: InShards::Never,
        files: Files::Named {
            is_ready: |views| views.exports_if_made().is_some(),
            len: |views, _| views.exports().len(),
            at: |_, _, position| position,
            name: |views, file| Some(views.exports().get(file)?.0[..].into()),
            find: |views, _, name| views.exports().iter().position(|export| export.0 == name),
            content: |views, file| Some(views.exports().get(file)?.1.clone()),
        },
    },
    Row {
        name: "f32",
        file: "f32",
        in_root: |_| true,
        in_shards: InShards::Datasets,
        files: Files::Tensors {
            suffix: ".f32",
            is_numeric: true,
            shows: f32::shows,
            is_stored: f32::is_stored,
            content: |views, numbers, _| f32::content(views.model(), numbers),
        },
    },
    Row {
        name: "gguf",
        file: "gguf",
        in_root: gguf::has,
        in_shards: InShards::Never,
        files: Files::Tensors {
            suffix: ".gguf",
            is_numeric: false,
            shows: gguf::shows,
            is_stored: |_| false,
            content: |views, numbers, _| gguf::content(views.model(), &numbers.tensor),
        },
    },
    Row {
        name: "header",
        file: "header.json",
        in_root: |model| model.is_single() && has_text(model),
        in_shards: InShards::IfText,
        files: Files::One {
            kept: false,
            content: |views, _, shard| {
                let (model, shard) = (views.model(), shard.unwrap_or(ShardId::new(0)));
                let text = model.shard(shard).header.text();
                let extent = |range| Extent { source: model.source(shard).clone(), range };
                Content::new(text.map(|range| Segment::Data(Data::Extent(extent(range)))))
            },
        },
    },
    Row {
        name: "index",
        file: "index.json",
        in_root: |_| true,
        in_shards: InShards::Never,
        files: Files::One {
            kept: true,
            content: |views, _, _| {
                let shown = views.shown();
                let tensors = shown.contains(View::STORED).then_some(View::STORED.row().file);
                let in_shards = tensors.is_some() && shown.contains(View::SHARDS);
                index::content(views.model(), index::Dirs { tensors, in_shards })
            },
        },
    },
    Row {
        name: "metadata",
        file: "metadata",
        in_root: |_| true,
        in_shards: InShards::Always,
        files: Files::Named {
            is_ready: |views| views.metadata().is_ready(),
            len: |views, shard| views.metadata().len(shard),
            at: |views, shard, position| views.metadata().at(shard, position),
            name: |views, file| views.metadata().name(file),
            find: |views, shard, name| views.metadata().find(shard, name),
            content: |views, file| views.metadata().content(file),
        },
    },
    Row {
        name: "metadata",
        file: "metadata.json",
        in_root: |_| true,
        in_shards: InShards::Always,
        files: Files::One { kept: true, content: |views, _, shard| metadata::json(views.model(), shard) },
    },
    Row {
        name: "npy",
        file: "npy",
        in_root: |_| true,
        in_shards: InShards::Datasets,
        files: Files::Tensors {
            suffix: ".npy",
            is_numeric: true,
            shows: npy::shows,
            is_stored: |_| false,
            content: |views, numbers, _| npy::content(views.model(), numbers),
        },
    },
    Row {
        name: "plots",
        file: "plots",
        in_root: |_| true,
        in_shards: InShards::Never,
        files: Files::Tensors {
            suffix: ".png",
            is_numeric: true,
            shows: stats::shows,
            is_stored: |_| false,
            content: |views, numbers, key| plots::content(views.model(), numbers, views.results(), key),
        },
    },
    Row {
        name: "safetensors",
        file: "safetensors",
        in_root: |_| true,
        in_shards: InShards::Datasets,
        files: Files::Tensors {
            suffix: ".safetensors",
            is_numeric: false,
            shows: single::shows,
            is_stored: |_| false,
            content: |views, numbers, _| single::content(views.model(), &numbers.tensor),
        },
    },
    Row {
        name: "samples",
        file: "samples",
        in_root: |model| model.separator().is_some(),
        in_shards: InShards::Never,
        files: Files::Tree,
    },
    Row {
        name: "shards",
        file: "shards",
        in_root: |model| !model.is_single(),
        in_shards: InShards::Never,
        files: Files::Shards,
    },
    Row {
        name: "stats",
        file: "stats",
        in_root: |_| true,
        in_shards: InShards::Never,
        files: Files::Tensors {
            suffix: ".json",
            is_numeric: true,
            shows: stats::shows,
            is_stored: |_| false,
            content: |views, numbers, key| stats::content(views.model(), numbers, views.results(), key),
        },
    },
    Row {
        name: "tensors",
        file: "tensors",
        in_root: |_| true,
        in_shards: InShards::Datasets,
        files: Files::Tensors {
            suffix: "",
            is_numeric: false,
            shows: |_| true,
            is_stored: |_| true,
            content: |views, numbers, _| stored::content(views.model(), &numbers.tensor),
        },
    },
    Row { name: "tree", file: "tree", in_root: |_| true, in_shards: InShards::Never, files: Files::Tree },
];

/// Whether the header of the format is text.
fn has_text(model: &Model) -> bool {
    model.shards().first().is_some_and(|shard| shard.header.text().is_some())
}

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

    /// All views, in the order of the table.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        (0..VIEWS.len()).map(Self::new)
    }

    /// The row of the view in the table.
    pub fn row(self) -> &'static Row {
        &VIEWS[self.index()]
    }

    /// Whether the root of a model has the view.
    pub fn is_in_root(self, views: &Views) -> bool {
        views.shown().contains(self) && (self.row().in_root)(views.model())
    }

    /// Whether the directory of each shard has the view.
    pub fn is_in_shards(self, views: &Views) -> bool {
        match self.row().in_shards {
            InShards::Never => false,
            InShards::Always => true,
            InShards::IfText => has_text(views.model()),
            InShards::Datasets => views.shown().contains(self) && views.model().kind() == Kind::Dataset,
        }
    }

    /// The number of a view's only file for the whole model, or for one shard.
    pub fn only_file(shard: Option<ShardId>) -> u32 {
        shard.map_or(0, |shard| u32::from(shard) + 1)
    }

    /// Whether the view shows the numbers of quantized weights dequantized, under logical names.
    pub fn is_dequantized(self, views: &Views) -> bool {
        views.shown().is_dequantized() && matches!(self.row().files, Files::Tensors { is_numeric: true, .. })
    }

    /// A tensor as the view shows it.
    ///
    /// # Panics
    /// If no tensor has that number.
    pub fn numbers(self, views: &Views, tensor: TensorId) -> Numbers<'_> {
        views.model().numbers(tensor, self.is_dequantized(views))
    }

    /// The file with that number, if the view has it.
    pub fn file(self, views: &Views, number: u32) -> Option<File<'_>> {
        let model = views.model();
        match &self.row().files {
            Files::One { .. } => {
                let shard = number.checked_sub(1).map(ShardId::from);
                let exists = match shard {
                    None => (self.row().in_root)(model),
                    Some(shard) => self.row().in_shards != InShards::Never && shard.index() < model.shards().len(),
                };
                exists.then_some(File::One(shard))
            }
            Files::Tensors { shows, is_stored, .. } => {
                let numbers = self.numbers(views, model.get(TensorId::from(number))?.id);
                let is_own = self == Self::STORED || shows(&numbers) && !is_stored(&numbers);
                is_own.then_some(File::Tensor(numbers))
            }
            Files::Named { .. } => Some(File::Named(number)),
            Files::Tree | Files::Shards => None,
        }
    }

    /// The content of a file of the view. `None` if the view has no such file.
    pub fn content(self, views: &Views, file: &File, request: &Request) -> Result<Option<Content>, Error> {
        let row = self.row();
        let content = match (&row.files, file) {
            (Files::One { kept: true, content }, File::One(shard)) => {
                Some(views.keep(self, file.number(), request, || content(views, self, *shard))?)
            }
            (Files::One { content, .. }, File::One(shard)) => Some(content(views, self, *shard)),
            (Files::Tensors { content, .. }, File::Tensor(numbers)) => {
                Some(content(views, numbers, Key { model: views.number(), view: self, item: file.number() }))
            }
            (Files::Named { is_ready, content, .. }, File::Named(number)) => {
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
pub enum File<'m> {
    /// The only file of a view, for the whole model or for one shard.
    One(Option<ShardId>),
    /// The file of a tensor.
    Tensor(Numbers<'m>),
    /// A file of a view with individual names.
    Named(u32),
}

impl File<'_> {
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
pub fn shown<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<Shown, UnknownView> {
    names.into_iter().try_fold(Shown::NONE, |shown, name| {
        let mut named = View::all().filter(|view| view.row().name == name).peekable();
        named.peek().ok_or_else(|| UnknownView { name: name.to_owned() })?;
        Ok(named.fold(shown, Shown::with))
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
    fn names_select_views() {
        let all: Vec<&str> = names();
        assert_eq!(all.len(), VIEWS.len() - 1, "metadata and metadata.json share a name");
        let set = shown(["metadata", "tensors"]).unwrap();
        let files: Vec<&str> = View::all().filter(|view| set.contains(*view)).map(|view| view.row().file).collect();
        assert_eq!(files, ["metadata", "metadata.json", "tensors"]);
        assert!(View::all().all(|view| Shown::default().contains(view)));
        assert_eq!(shown(["tensors", "tensors"]), shown(["tensors"]));
        assert_eq!(
            shown(["tensor"]).unwrap_err().to_string(),
            "no view is called \"tensor\"; there are sums, manifest, export, f32, gguf, header, index, metadata, npy, plots, \
             safetensors, samples, shards, stats, tensors, tree"
        );
    }
}
