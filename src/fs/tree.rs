//! `tree/` and `samples/`: names as paths of directories, derived from one sorted list of tensors. In `tree/`, the dots
//! separate the components; in `samples/`, the last separator of the dataset separates the key and the column.
//!
//! The list is sorted by component, so the tensors below a directory are contiguous. A directory is identified by its
//! first position in the list and its depth. Directories are numbered in the order in which they first occur in the
//! list. Only the list and the number of directories before each position are stored: 8 bytes per tensor.

use super::ino::{Inode, InodeDir, NodeId};
use crate::model::{Model, TensorId};
use crate::name;
use crate::natural::{self, compare_components};
use crate::threads;
use crate::view::View;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

/// A tensor whose name has this many directories or more is not in `tree/`. Its path would exceed the kernel's limit of
/// 4096 bytes, and an untrusted name may have millions of components.
const DEPTH_MAX: usize = 2048;

/// The separator of components of names.
#[derive(Debug)]
pub(super) enum NameSplit {
    /// At each dot.
    Dots,
    /// At the last occurrence of a separator, into two components.
    Last(Box<str>),
}

impl NameSplit {
    /// The separator of the names of a model in the directory of a view.
    pub fn of(view: View, model: &Model) -> Self {
        match model.facts.separator.as_deref().filter(|_| view == View::SAMPLES) {
            Some(separator) => Self::Last(separator.into()),
            None => Self::Dots,
        }
    }

    /// Whether a tensor with that name has a path.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Dots => self.dirs_of(name) < DEPTH_MAX,
            Self::Last(_) => self.dirs_of(name) == 1,
        }
    }

    /// Number of directories in a name: its components but one.
    fn dirs_of(&self, name: &str) -> usize {
        match self {
            Self::Dots => name.bytes().filter(|byte| *byte == b'.').count(),
            Self::Last(separator) => usize::from(name.contains(&**separator)),
        }
    }

    fn components<'n>(&self, name: &'n str) -> impl Iterator<Item = &'n str> + use<'n> {
        let (key, rest, most) = match self {
            Self::Dots => (None, name, usize::MAX),
            Self::Last(separator) => match name.rsplit_once(&**separator) {
                Some((key, column)) => (Some(key), column, 1),
                None => (None, name, 1),
            },
        };
        key.into_iter().chain(rest.splitn(most, '.'))
    }

    /// Compares whole names by their components.
    fn compare_paths(&self, a: &str, b: &str) -> Ordering {
        match self {
            Self::Dots => natural::compare_paths(a, b),
            Self::Last(_) => self.compare_prefixes(a, b, usize::MAX),
        }
    }

    /// Compares the first `depth` components of two names.
    fn compare_prefixes(&self, a: &str, b: &str, depth: usize) -> Ordering {
        if let Self::Dots = self {
            return natural::compare_prefixes(a, b, depth);
        }
        let (mut a, mut b) = (self.components(a).take(depth), self.components(b).take(depth));
        loop {
            match (a.next(), b.next()) {
                (Some(a), Some(b)) => match compare_components(a, b) {
                    Ordering::Equal => {}
                    other => return other,
                },
                (a, b) => return a.is_some().cmp(&b.is_some()),
            }
        }
    }
}

/// The sorted list of tensors.
#[derive(Debug)]
pub(super) struct TensorTree {
    view: View,
    split: NameSplit,
    /// Tensors by component, in natural order: `layers.2` before `layers.10`.
    order: Vec<TensorId>,
    /// Number of directories that first occur before each position of `order`, and then their total number.
    entered: Vec<u32>,
    /// The first position of each component whose file name is cut, by directory and file name.
    cut: OnceLock<HashMap<(Option<u32>, String), usize>>,
}

impl TensorTree {
    pub fn new(model: &Model, view: View) -> Self {
        let split = NameSplit::of(view, model);
        let mut order: Vec<TensorId> = model.logical().iter().filter(|id| split.has(model.name(*id))).collect();
        threads::sort_by(&mut order, |a, b| split.compare_paths(model.name(*a), model.name(*b)));
        let entered = Vec::with_capacity(order.len() + 1);
        let mut tree = Self { view, split, order, entered, cut: OnceLock::new() };
        let mut nodes = 0u32;
        for at in 0..tree.order.len() {
            let entered = tree.dirs_of(model, at) - tree.shared(model, at);
            // An overflow needs gigabytes of names. The rest of the list is left out.
            let Some(after) = nodes.checked_add(entered as u32) else {
                tree.order.truncate(at);
                break;
            };
            tree.entered.push(nodes);
            nodes = after;
        }
        tree.entered.push(nodes);
        tree
    }

    /// Whether a directory with that number exists.
    pub fn contains(&self, node: NodeId) -> bool {
        self.entered.last().is_some_and(|nodes| node.number() < *nodes)
    }

    /// The parent of a directory; `None` if that is the directory of the view.
    pub fn parent(&self, model: &Model, node: NodeId) -> Option<NodeId> {
        let (at, depth) = self.start(model, node.number());
        (depth > 1).then(|| NodeId::new(self.node(model, at, depth - 1)))
    }

    /// The entry with a file name in a directory, or in that of the view if `node` is `None`.
    pub fn lookup(&self, model: &Model, node: Option<NodeId>, encoded: &str) -> Option<Inode> {
        let node = node.map(NodeId::number);
        let (range, depth) = self.range(model, node);
        // `a%` is the tensor `a` if a directory `a` exists too. The only encoded name that ends in `%` is that of the
        // empty name.
        let (encoded, marked) = match encoded.strip_suffix('%') {
            Some(rest) if !rest.is_empty() => (rest, true),
            _ => (encoded, false),
        };
        let at = match name::decode_name(encoded) {
            Some(component) => {
                let first = partition_point(range.clone(), |at| {
                    compare_components(self.component(model, at, depth), &component) == Ordering::Less
                });
                let is_found = first < range.end && self.component(model, first, depth) == component;
                is_found.then_some(first)?
            }
            None if name::is_cut(encoded) => {
                *self.cut.get_or_init(|| self.cut_names(model)).get(&(node, encoded.to_owned()))?
            }
            None => return None,
        };
        let is_leaf = self.is_leaf(model, at, depth);
        let beside = is_leaf && self.dir_beside(model, at, depth);
        match (marked, is_leaf, beside) {
            (true, true, true) | (false, true, false) => Some(self.leaf(at)),
            (false, true, true) => Some(self.dir(model, at + 1, depth)),
            (false, false, _) => Some(self.dir(model, at, depth)),
            (true, ..) => None,
        }
    }

    /// Passes the entries of a directory, or of that of the view if `node` is `None`, to `add` until it returns true.
    /// Starts at position `from`. The last argument of `add` is the position of the next entry.
    pub fn list<'m>(
        &self,
        model: &'m Model,
        node: Option<NodeId>,
        from: usize,
        mut add: impl FnMut(Inode, Cow<'m, str>, usize) -> bool,
    ) {
        let (range, depth) = self.range(model, node.map(NodeId::number));
        self.each(model, range, depth, from, |at, next| {
            let name = name::encode_name(self.component(model, at, depth));
            if !self.is_leaf(model, at, depth) {
                add(self.dir(model, at, depth), name, next)
            } else if self.dir_beside(model, at, depth) {
                add(self.leaf(at), format!("{name}%").into(), next)
            } else {
                add(self.leaf(at), name, next)
            }
        });
    }

    fn cut_names(&self, model: &Model) -> HashMap<(Option<u32>, String), usize> {
        let mut cut = HashMap::new();
        for at in 0..self.order.len() {
            // The directories shared with the previous tensor are in the map already.
            let shared = self.shared(model, at);
            for (depth, component) in self.split.components(self.name(model, at)).enumerate().skip(shared) {
                if let Some(encoded) = name::cut_name(component) {
                    let node = match depth {
                        0 => None,
                        _ if depth == shared => Some(self.node(model, at, depth)),
                        _ => Some(self.entered[at] + (depth - shared - 1) as u32),
                    };
                    cut.entry((node, encoded)).or_insert(at);
                }
            }
        }
        cut
    }

    /// Passes the first position of each entry of a directory, and that of the next entry, to `visit` until it returns
    /// true. Starts at position `from`.
    fn each(
        &self,
        model: &Model,
        range: Range<usize>,
        depth: usize,
        from: usize,
        mut visit: impl FnMut(usize, usize) -> bool,
    ) {
        let mut at = from.max(range.start);
        while at < range.end {
            let next =
                if self.is_leaf(model, at, depth) { at + 1 } else { self.end(model, at, depth + 1).min(range.end) };
            if visit(at, next) {
                return;
            }
            at = next;
        }
    }

    fn leaf(&self, at: usize) -> Inode {
        Inode::File(View::STORED, self.order[at].into())
    }

    /// The directory of the component at `depth` of the tensor at `at`.
    fn dir(&self, model: &Model, at: usize, depth: usize) -> Inode {
        Inode::Dir(InodeDir::Node(self.view, NodeId::new(self.node(model, at, depth + 1))))
    }

    fn is_leaf(&self, model: &Model, at: usize, depth: usize) -> bool {
        self.dirs_of(model, at) == depth
    }

    /// Whether a directory has the same name as the tensor at `at`. Such a directory directly follows the tensor.
    fn dir_beside(&self, model: &Model, at: usize, depth: usize) -> bool {
        at + 1 < self.order.len() && self.common(model, at, at + 1) > depth && !self.is_leaf(model, at + 1, depth)
    }

    /// The number of the directory with the first `depth` components of the tensor at `at`; `depth` is at least 1.
    fn node(&self, model: &Model, at: usize, depth: usize) -> u32 {
        let mut first = at;
        if self.shared(model, at) >= depth {
            // A tensor whose whole name is the prefix comes before the directory and is not part of it.
            first = partition_point(0..at, |other| match self.compare_prefixes(model, other, at, depth) {
                Ordering::Less => true,
                Ordering::Equal => self.dirs_of(model, other) < depth,
                Ordering::Greater => false,
            });
        }
        self.entered[first] + (depth - self.shared(model, first) - 1) as u32
    }

    /// The first position and the depth of a directory.
    fn start(&self, model: &Model, node: u32) -> (usize, usize) {
        let at = self.entered.partition_point(|entered| *entered <= node).saturating_sub(1);
        (at, self.shared(model, at) + 1 + (node - self.entered[at]) as usize)
    }

    /// The positions below a directory, and the depth of its entries.
    fn range(&self, model: &Model, node: Option<u32>) -> (Range<usize>, usize) {
        match node {
            None => (0..self.order.len(), 0),
            Some(node) => {
                let (at, depth) = self.start(model, node);
                (at..self.end(model, at, depth), depth)
            }
        }
    }

    /// The first position after `at` whose first `depth` components differ. Searches near `at` first, because most
    /// directories are small.
    fn end(&self, model: &Model, at: usize, depth: usize) -> usize {
        let (mut low, mut step) = (at, 1);
        while low + step < self.order.len() && self.compare_prefixes(model, low + step, at, depth).is_eq() {
            low += step;
            step *= 2;
        }
        let after = low + 1..(low + step).min(self.order.len());
        partition_point(after, |other| self.compare_prefixes(model, other, at, depth).is_eq())
    }

    /// Compares the first `depth` components of two tensors.
    fn compare_prefixes(&self, model: &Model, a: usize, b: usize, depth: usize) -> Ordering {
        self.split.compare_prefixes(self.name(model, a), self.name(model, b), depth)
    }

    /// Number of directories that the tensor at `at` shares with the previous one.
    fn shared(&self, model: &Model, at: usize) -> usize {
        let Some(before) = at.checked_sub(1) else { return 0 };
        let dirs = self.dirs_of(model, at).min(self.dirs_of(model, before));
        self.common(model, before, at).min(dirs)
    }

    /// Number of leading components that two tensors have in common.
    fn common(&self, model: &Model, a: usize, b: usize) -> usize {
        let (a, b) = (self.split.components(self.name(model, a)), self.split.components(self.name(model, b)));
        a.zip(b).take_while(|(a, b)| a == b).count()
    }

    fn component<'m>(&self, model: &'m Model, at: usize, depth: usize) -> &'m str {
        self.split.components(self.name(model, at)).nth(depth).unwrap_or_default()
    }

    fn name<'m>(&self, model: &'m Model, at: usize) -> &'m str {
        model.name(self.order[at])
    }

    /// Number of directories in the path of the tensor at `at`.
    fn dirs_of(&self, model: &Model, at: usize) -> usize {
        self.split.dirs_of(self.name(model, at))
    }
}

/// The first position in `range` for which `before` is false. `before` must be true for all positions before it.
fn partition_point(range: Range<usize>, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (range.start, range.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}
