//! A map of where the bytes of a model are: areas in proportion to sizes, by the components of names. Groups that are
//! too small for a tile share one, whose link leads to a map of these groups. So every tensor that has bytes can be
//! reached from the map of all.

use super::html::{HtmlPage, NAME_MAX, query_of, shown_name};
use super::query::{PREFIX_MAX, PageQuery};
use crate::model::{Model, TensorId};
use crate::natural;
use crate::text::shorten;
use crate::threads;
use crate::units::{format_size, plural};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};

/// The shapes of the map: a class of the style sheet, which shows one of them, the width and the height.
const SHAPES: [(&str, f64, f64); 2] = [("broad", 1000.0, 400.0), ("narrow", 360.0, 480.0)];

/// Maximum number of tiles that a level has room for, and the area that each of them needs, in units of the picture.
const TILES_MAX: u64 = 256;
const TILES_MIN: u64 = 8;
const TILE_AREA: f64 = 600.0;

/// Number of tiles from which on a map is not divided further, and maximum number of levels.
const BOXES_MAX: u64 = 400;
const LEVELS_MAX: usize = 4;

/// Minimum width and height of a tile that is divided, and its minimum area, in units of the picture.
const DIVIDED_SIDE: f64 = 60.0;
const DIVIDED_AREA: f64 = 7_500.0;

/// Height of a line of text, and mean width of a character, in units of the picture.
const LINE: f64 = 15.0;
const CHARACTER: f64 = 6.6;

/// Distance of text from the left and right edges of its tile, in units of the picture.
const MARGIN: f64 = 3.0;

/// The link to the map of all tensors.
const ALL_TENSORS: &str = "<a href=\"?#map\">All tensors</a>";

/// Maximum number of components in the path to the map.
const COMPONENTS_MAX: usize = 16;

/// Tensors whose names begin with the same components.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TensorGroup<'m> {
    /// The component in which the groups of a level differ; the rest of the name of a single tensor.
    name: &'m str,
    /// The common prefix of all names, without a dot at its end.
    prefix: &'m str,
    /// The number of the group in its level, in the order of names, from 1.
    number: usize,
    nbytes: u64,
    tensors: Vec<TensorId>,
}

/// A part of a level: the groups with these numbers that have fewer than `smaller` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LevelPart {
    first: usize,
    last: usize,
    smaller: u64,
}

impl LevelPart {
    const ALL: Self = Self { first: 0, last: usize::MAX, smaller: u64::MAX };

    /// Parses the value of the parameter `part`.
    fn parse(text: &str) -> Option<Self> {
        let (first, others) = text.split_once('-')?;
        let (last, smaller) = others.split_once('-')?;
        Some(Self { first: first.parse().ok()?, last: last.parse().ok()?, smaller: smaller.parse().ok()? })
    }

    fn contains(&self, group: &TensorGroup) -> bool {
        (self.first..=self.last).contains(&group.number) && group.nbytes < self.smaller
    }
}

impl Display for LevelPart {
    fn fmt(&self, f: &mut Formatter) -> fmt::Result {
        write!(f, "{}-{}-{}", self.first, self.last, self.smaller)
    }
}

/// The groups into which tensors are divided whose names are equal before `start`.
struct MapLevel<'m> {
    groups: Vec<TensorGroup<'m>>,
    start: usize,
    /// All groups have fewer bytes.
    smaller: u64,
}

impl<'m> MapLevel<'m> {
    fn of(model: &'m Model, tensors: &[TensorId], start: usize) -> Self {
        Self { groups: tensor_groups(model, tensors, start), start, smaller: LevelPart::ALL.smaller }
    }
}

/// One group, or several that have consecutive names apart from larger groups between them.
#[derive(Debug)]
struct MapTile<'g, 'm> {
    groups: Vec<&'g TensorGroup<'m>>,
    nbytes: u64,
}

impl<'g, 'm> MapTile<'g, 'm> {
    /// The first and the last group.
    fn ends(&self) -> (&'g TensorGroup<'m>, &'g TensorGroup<'m>) {
        (self.groups[0], self.groups[self.groups.len() - 1])
    }

    /// The part of the level that has the groups of this tile, all of fewer than `smaller` bytes.
    fn part(&self, smaller: u64) -> LevelPart {
        let (first, last) = self.ends();
        LevelPart { first: first.number, last: last.number, smaller }
    }
}

/// What a tile shows, and where it leads.
struct TileContent {
    name: String,
    href: Option<String>,
    nbytes: u64,
    tensors: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct MapArea {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

impl MapArea {
    /// Maximum number of tiles in this area.
    fn tiles_max(&self) -> u64 {
        ((self.width * self.height / TILE_AREA) as u64).clamp(TILES_MIN, TILES_MAX)
    }
}

/// Writes the map that `query` asks for: of the tensors whose names begin with the components of its prefix, or of a
/// part of their groups. A prefix or a part without tensors stands for all.
pub(super) fn write_treemap(model: &Model, query: &PageQuery, page: &mut HtmlPage) {
    let prefix = &query.prefix[..];
    let listed = model.listed().iter();
    let mut tensors: Vec<_> = listed.filter(|id| prefix.is_empty() || is_below(model.name(*id), prefix)).collect();
    let mut start = if prefix.is_empty() { 0 } else { prefix.len() + 1 };
    if tensors.is_empty() {
        (tensors, start) = (model.listed().iter().collect(), 0);
    }
    // Groups with one member say nothing, so the map begins where names differ.
    start = common(model, &tensors, start);
    let mut level = MapLevel::of(model, &tensors, start);
    let part = LevelPart::parse(&query.part).filter(|part| level.groups.iter().any(|group| part.contains(group)));
    if let Some(part) = part {
        level.groups.retain(|group| part.contains(group));
        level.smaller = part.smaller;
        tensors = level.groups.iter().flat_map(|group| &group.tensors).copied().collect();
    }
    let all = sum_of_sizes(&level.groups);
    page.raw("<section id=\"map\"><h2>Where the bytes are</h2>\n<p>");
    match tensors.first().map(|id| &model.name(*id)[..start.saturating_sub(1)]) {
        Some(prefix) if start > 0 => group_path(prefix, page),
        _ => {
            page.raw(if part.is_some() { ALL_TENSORS } else { "All tensors" });
        }
    }
    if let (Some(_), [first, .., last]) = (part, &level.groups[..]) {
        page.raw(" . ").text(&range_name(first, last));
    }
    page.raw(": ").text(&format_size(all)).raw(" in ").text(&plural(tensors.len() as u64, "tensor"));
    if all == 0 {
        page.raw("</p></section>\n");
        return;
    }
    page.raw(". <a class=\"skip\" href=\"#tensors\">Skip the map</a></p>\n");
    for (class, width, height) in SHAPES {
        page.raw("<svg class=\"").raw(class).show(format_args!("\" viewBox=\"0 0 {width} {height}\" role=\"group\" "));
        page.raw("aria-label=\"Map of the sizes of tensors\">\n");
        let area = MapArea { x: 0.0, y: 0.0, width, height };
        let mut map = TreeMap { model, all, page, left: BOXES_MAX };
        map.divide(&level, area, LEVELS_MAX, None);
        page.raw("</svg>\n");
    }
    page.raw("</section>\n");
}

/// Writes the path to the map, with a link for each component.
fn group_path(prefix: &str, page: &mut HtmlPage) {
    page.raw(ALL_TENSORS);
    let ends = prefix.match_indices('.').map(|(at, _)| at).chain([prefix.len()]);
    let mut begin = 0;
    for end in ends.take(COMPONENTS_MAX).take_while(|end| *end <= PREFIX_MAX) {
        let (name, here) = (&prefix[begin..end], &prefix[..end]);
        page.raw(" . ").link(&(query_of(&[("prefix", here)], &[]) + "#map"), name);
        begin = end + 1;
    }
    if begin <= prefix.len() {
        page.raw(" . …");
    }
}

struct TreeMap<'m, 'p> {
    model: &'m Model,
    /// The bytes of all tensors in the map.
    all: u64,
    page: &'p mut HtmlPage,
    /// Number of tiles that may still be added.
    left: u64,
}

impl TreeMap<'_, '_> {
    /// Divides an area between the groups of `level`.
    fn divide(&mut self, level: &MapLevel, area: MapArea, levels: usize, colour: Option<usize>) {
        let all = sum_of_sizes(&level.groups);
        let least = all.div_ceil(area.tiles_max());
        let tiles = map_tiles(&level.groups, least);
        self.left = self.left.saturating_sub(tiles.len() as u64);
        // Tiles that would be too small to be clicked are enlarged.
        let weights: Vec<f64> = tiles.iter().map(|tile| tile.nbytes.max(all / TILES_MAX) as f64).collect();
        for (at, (tile, area)) in tiles.iter().zip(squarify(&weights, area)).enumerate() {
            let colour = colour.unwrap_or(at % 8);
            match tile.groups[..] {
                [group] => self.group(group, area, levels, colour),
                _ => self.tile(&shared_tile(tile, level, least), area, false, colour),
            }
        }
    }

    /// Draws a group, and the groups in it if there is room.
    fn group(&mut self, group: &TensorGroup, area: MapArea, levels: usize, colour: usize) {
        let MapArea { x, y, width, height } = area;
        let is_divided = group.tensors.len() > 1
            && levels > 1
            && width.min(height) >= DIVIDED_SIDE
            && width * height >= DIVIDED_AREA
            && self.left >= area.tiles_max().min(group.tensors.len() as u64);
        let start = if is_divided { common(self.model, &group.tensors, group.prefix.len() + 1) } else { 0 };
        // A level with one member is shown together with the next one.
        let name = match group.tensors.first() {
            Some(id) if is_divided && start > group.prefix.len() + 1 => {
                &self.model.name(*id)[group.prefix.len() - group.name.len()..start - 1]
            }
            _ => shown_name(group.name),
        };
        let href = match group.tensors[..] {
            [tensor] => Some(format!("?tensor={}", tensor.index())),
            _ if group.prefix.len() > PREFIX_MAX => None,
            _ => Some(query_of(&[("prefix", group.prefix)], &[]) + "#map"),
        };
        let content = TileContent { name: name.into(), href, nbytes: group.nbytes, tensors: group.tensors.len() };
        self.tile(&content, area, is_divided, colour);
        if is_divided {
            let inner = MapArea { x: x + 3.0, y: y + LINE + 3.0, width: width - 6.0, height: height - LINE - 6.0 };
            self.divide(&MapLevel::of(self.model, &group.tensors, start), inner, levels - 1, Some(colour));
        }
    }

    fn tile(&mut self, content: &TileContent, area: MapArea, is_divided: bool, colour: usize) {
        let TileContent { name, href, nbytes, tensors } = content;
        let MapArea { x, y, width, height } = area;
        let share = 100.0 * *nbytes as f64 / self.all as f64;
        let size = format_size(*nbytes);
        let page = &mut *self.page;
        match href {
            Some(href) => page.raw("<a href=\"").text(href).raw("\">"),
            None => page.raw("<g>"),
        };
        page.raw("<title>").name(name).raw(": ").text(&size);
        page.show(format_args!(", {share:.1} %")).raw(" in ").text(&plural(*tensors as u64, "tensor"));
        page.raw("</title><rect class=\"c").show(colour).raw(if is_divided { " outer\" " } else { "\" " });
        page.show(format_args!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"));
        // The text must fit into the area.
        let room = ((width - 2.0 * MARGIN) / CHARACTER).max(0.0) as usize;
        let (left, first, second) = (x + MARGIN, y + LINE - 2.0, y + 2.0 * LINE - 2.0);
        if is_divided || room >= 3.min(name.chars().count()) && height > LINE + 2.0 {
            let both = format!("{name}  {size}");
            let text = if is_divided && both.chars().count() <= room { both } else { fitted(name, room) };
            page.show(format_args!("<text x=\"{left:.1}\" y=\"{first:.1}\">")).text(&text).raw("</text>");
            if !is_divided && height > 2.0 * LINE + 2.0 && size.len() <= room {
                page.show(format_args!("<text class=\"dim\" x=\"{left:.1}\" y=\"{second:.1}\">"));
                page.text(&size).raw("</text>");
            }
        }
        page.raw(if href.is_none() { "</g>\n" } else { "</a>\n" });
    }
}

/// A name with at most `room` characters.
fn fitted(name: &str, room: usize) -> String {
    match name.char_indices().nth(room) {
        None => name.to_owned(),
        Some(_) => name.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The content of a tile of several groups, all of fewer than `least` bytes, with a link to the map of this part.
fn shared_tile(tile: &MapTile, level: &MapLevel, least: u64) -> TileContent {
    let (first, last) = tile.ends();
    let prefix = &first.prefix[..level.start.saturating_sub(1)];
    let part = tile.part(level.smaller.min(least)).to_string();
    let href = (prefix.len() <= PREFIX_MAX).then(|| query_of(&[("prefix", prefix), ("part", &part)], &[]) + "#map");
    let tensors = tile.groups.iter().map(|group| group.tensors.len()).sum();
    TileContent { name: range_name(first, last), href, nbytes: tile.nbytes, tensors }
}

/// The names of the first and the last of several groups.
fn range_name(first: &TensorGroup, last: &TensorGroup) -> String {
    [first, last].map(|group| shorten(shown_name(group.name), NAME_MAX / 2)).join(" – ")
}

fn sum_of_sizes(groups: &[TensorGroup]) -> u64 {
    groups.iter().map(|group| group.nbytes).fold(0, u64::saturating_add)
}

/// The groups that have bytes, by the components of names from `start` on, in the order of names. All names are equal
/// before `start`.
fn tensor_groups<'m>(model: &'m Model, tensors: &[TensorId], start: usize) -> Vec<TensorGroup<'m>> {
    let mut groups: Vec<TensorGroup> = Vec::new();
    let mut places: HashMap<(&str, bool), usize> = HashMap::new();
    for id in tensors {
        let (name, nbytes) = (model.name(*id), model.tensor(*id).info.nbytes);
        if nbytes == 0 {
            continue;
        }
        let rest = &name[start..];
        let component = rest.split('.').next().unwrap_or(rest);
        // The name of a tensor may be the prefix of others.
        let is_tensor = component.len() == rest.len();
        let at = *places.entry((component, is_tensor)).or_insert_with(|| {
            let prefix = &name[..start + component.len()];
            groups.push(TensorGroup { name: component, prefix, number: 0, nbytes: 0, tensors: Vec::new() });
            groups.len() - 1
        });
        groups[at].nbytes = groups[at].nbytes.saturating_add(nbytes);
        groups[at].tensors.push(*id);
    }
    threads::sort_by(&mut groups, |a, b| {
        natural::compare_components(a.name, b.name).then_with(|| a.tensors.first().cmp(&b.tensors.first()))
    });
    for (at, group) in groups.iter_mut().enumerate() {
        group.number = at + 1;
        if let [id] = group.tensors[..] {
            group.name = &model.name(id)[start..];
        }
    }
    groups
}

/// The tiles of a level, the largest first. Groups of fewer than `least` bytes share tiles with those that follow in
/// the order of names, until a tile has that many; at most one tile has fewer. `least` is at most the sum divided by
/// `TILES_MIN`, rounded up, so a tile never has all groups of a level.
fn map_tiles<'g, 'm>(groups: &'g [TensorGroup<'m>], least: u64) -> Vec<MapTile<'g, 'm>> {
    let mut tiles = Vec::new();
    let mut shared = MapTile { groups: Vec::new(), nbytes: 0 };
    for group in groups {
        if group.nbytes >= least {
            tiles.push(MapTile { groups: vec![group], nbytes: group.nbytes });
            continue;
        }
        shared.groups.push(group);
        shared.nbytes = shared.nbytes.saturating_add(group.nbytes);
        if shared.nbytes >= least {
            tiles.push(std::mem::replace(&mut shared, MapTile { groups: Vec::new(), nbytes: 0 }));
        }
    }
    if !shared.groups.is_empty() {
        tiles.push(shared);
    }
    // Tiles of equal size stay in the order of names.
    tiles.sort_by_key(|tile| Reverse(tile.nbytes));
    tiles
}

/// The start of the components in which the names of several tensors differ. All names are equal before `start`. This
/// reads each name once, however many components it has.
fn common(model: &Model, tensors: &[TensorId], start: usize) -> usize {
    let [first, others @ ..] = tensors else { return start };
    if others.is_empty() {
        return start;
    }
    let first = model.name(*first);
    let equal = others.iter().fold(first.len(), |len, id| {
        let pairs = first.as_bytes()[..len].iter().zip(model.name(*id).as_bytes());
        pairs.take_while(|(a, b)| a == b).count()
    });
    first.as_bytes()[..equal].iter().rposition(|byte| *byte == b'.').map_or(start, |dot| start.max(dot + 1))
}

/// Whether a name begins with the components of `prefix`, and has more.
fn is_below(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
}

/// Divides `area` in proportion to `weights`, which are positive and descending, into rectangles that are as close to
/// squares as is simple. Source: Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000.
fn squarify(weights: &[f64], mut area: MapArea) -> Vec<MapArea> {
    let mut areas = Vec::with_capacity(weights.len());
    let mut left: f64 = weights.iter().sum();
    let mut rest = weights;
    while !rest.is_empty() {
        // Rectangles are added along the shorter side as long as the longest of them becomes less oblong.
        let (side, scale) = (area.width.min(area.height), area.width * area.height / left);
        let mut count = 1;
        while count < rest.len() && oblong(&rest[..=count], side, scale) <= oblong(&rest[..count], side, scale) {
            count += 1;
        }
        let (row, later) = rest.split_at(count);
        let sum: f64 = row.iter().sum();
        let depth = sum * scale / side;
        let mut at = 0.0;
        for weight in row {
            let length = side * weight / sum;
            areas.push(if area.width >= area.height {
                MapArea { x: area.x, y: area.y + at, width: depth, height: length }
            } else {
                MapArea { x: area.x + at, y: area.y, width: length, height: depth }
            });
            at += length;
        }
        if area.width >= area.height {
            (area.x, area.width) = (area.x + depth, (area.width - depth).max(f64::EPSILON));
        } else {
            (area.y, area.height) = (area.y + depth, (area.height - depth).max(f64::EPSILON));
        }
        left -= sum;
        rest = later;
    }
    areas
}

/// The largest ratio of the sides of rectangles in a row along `side`. `scale` is the area of one unit of weight.
fn oblong(row: &[f64], side: f64, scale: f64) -> f64 {
    let depth = row.iter().sum::<f64>() * scale / side;
    let lengths = row.iter().map(|weight| weight * scale / depth);
    lengths.map(|length| (length / depth).max(depth / length)).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_in_proportion_and_fill_the_map() {
        for weights in [vec![1.0], vec![6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0], vec![1e6, 1.0], vec![1.0; 65]] {
            let [(_, width, height), _] = SHAPES;
            let whole = MapArea { x: 0.0, y: 0.0, width, height };
            let areas = squarify(&weights, whole);
            let all: f64 = weights.iter().sum();
            assert_eq!(areas.len(), weights.len());
            for (area, weight) in areas.iter().zip(&weights) {
                let share = area.width * area.height / (width * height);
                assert!((share - weight / all).abs() < 1e-6, "{area:?} {weight}");
                assert!(area.x >= -1e-6 && area.y >= -1e-6, "{area:?}");
                assert!(area.x + area.width < width + 1e-6 && area.y + area.height < height + 1e-6, "{area:?}");
            }
            for (at, a) in areas.iter().enumerate() {
                for b in &areas[..at] {
                    let overlaps = |a0: f64, a1: f64, b0: f64, b1: f64| a1.min(b1) - a0.max(b0) > 1e-6;
                    let across = overlaps(a.x, a.x + a.width, b.x, b.x + b.width);
                    assert!(!across || !overlaps(a.y, a.y + a.height, b.y, b.y + b.height), "{a:?} {b:?}");
                }
            }
        }
    }

    /// Groups with these sizes, whose names are their places from 0.
    fn groups_of(sizes: &[u64]) -> Vec<TensorGroup<'static>> {
        let numbered = sizes.iter().zip(1..);
        numbered
            .map(|(nbytes, number)| TensorGroup { name: "", prefix: "", number, nbytes: *nbytes, tensors: Vec::new() })
            .collect()
    }

    fn numbers(tile: &MapTile) -> Vec<usize> {
        tile.groups.iter().map(|group| group.number).collect()
    }

    #[test]
    fn small_groups_share_tiles_with_their_neighbours() {
        for (sizes, tiles_max, expected) in [
            (vec![5; 4], 8, vec![vec![1], vec![2], vec![3], vec![4]]),
            (vec![5; 10], 8, vec![vec![1, 2], vec![3, 4], vec![5, 6], vec![7, 8], vec![9, 10]]),
            // A large group has a tile of its own, and its neighbours share one.
            (vec![1, 100, 1, 1], 8, vec![vec![2], vec![1, 3, 4]]),
            (vec![100, 1], 8, vec![vec![1], vec![2]]),
            (vec![1, 1], 8, vec![vec![1], vec![2]]),
        ] {
            let groups = groups_of(&sizes);
            let tiles = map_tiles(&groups, sum_of_sizes(&groups).div_ceil(tiles_max));
            assert_eq!(tiles.iter().map(numbers).collect::<Vec<_>>(), expected, "{sizes:?}");
        }
    }

    #[test]
    fn tiles_of_equal_groups_are_about_equal_and_few() {
        for count in [1_usize, 2, 64, 65, 255, 256, 257, 1_000, 94_000] {
            let groups = groups_of(&vec![3; count]);
            let tiles = map_tiles(&groups, sum_of_sizes(&groups).div_ceil(TILES_MAX));
            assert!(
                tiles.len() <= TILES_MAX as usize + 1 && tiles.len() >= count.min(TILES_MAX as usize / 2),
                "{count}"
            );
            let largest = tiles[0].groups.len();
            assert!(largest <= count.div_ceil(TILES_MAX as usize), "{count}: {largest}");
            assert_eq!(tiles.iter().map(|tile| tile.groups.len()).sum::<usize>(), count);
        }
    }

    /// Follows the links of shared tiles from all groups down, and counts the groups that have tiles of their own.
    #[test]
    fn parts_of_parts_lead_to_every_group() {
        let random = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        for sizes in [
            vec![1; 2_000],
            (1..2_000).map(random).filter(|size| *size > 0).collect(),
            (0..60).map(|at| 1 << at).collect(),
            (0..600).map(|at| if at % 2 == 0 { 1 << 40 } else { 1 + at % 7 }).collect::<Vec<_>>(),
        ] {
            let level = groups_of(&sizes);
            let (mut found, mut parts) = (vec![0; sizes.len()], vec![(LevelPart::ALL, usize::MAX)]);
            while let Some((part, count)) = parts.pop() {
                let groups: Vec<_> = level.iter().filter(|group| part.contains(group)).cloned().collect();
                assert!(groups.len() < count, "{part:?} has as many groups as the map that leads to it");
                let least = sum_of_sizes(&groups).div_ceil(TILES_MIN);
                for tile in map_tiles(&groups, least) {
                    match tile.groups[..] {
                        [group] => found[group.number - 1] += 1,
                        _ => parts.push((tile.part(part.smaller.min(least)), groups.len())),
                    }
                }
            }
            assert!(found.iter().all(|count| *count == 1), "{found:?}");
        }
    }

    #[test]
    fn parts_are_parsed_as_they_are_written() {
        let part = LevelPart { first: 65, last: 128, smaller: u64::MAX };
        assert_eq!(LevelPart::parse(&part.to_string()), Some(part));
        for text in ["", "1", "1-2", "1-2-", "1-2-3-4", "-1-2-3", "a-b-c", "1-2-18446744073709551616"] {
            assert_eq!(LevelPart::parse(text), None, "{text}");
        }
    }

    #[test]
    fn names_below_a_prefix_begin_with_all_of_its_components() {
        for (name, prefix, expected) in [
            ("a.b.c", "a", true),
            ("a.b.c", "a.b", true),
            ("a.b.c", "a.b.c", false),
            ("ab.c", "a", false),
            ("a", "a", false),
            ("a.", "a", true),
            ("a..b", "a.", true),
        ] {
            assert_eq!(is_below(name, prefix), expected, "{name} {prefix}");
        }
    }
}
