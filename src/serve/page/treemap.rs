//! A map of where the bytes of a model are: areas in proportion to sizes, by the components of names.

use super::html::{HtmlPage, query_of, shown_name};
use super::query::PREFIX_MAX;
use crate::model::{Model, TensorId};
use crate::natural;
use crate::units::{format_size, plural};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Width and height of the map, in units of the picture.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 400.0;

/// Maximum number of groups that a group is divided into. The rest is one group.
const GROUPS_MAX: usize = 64;

/// Maximum number of groups in a map, and of levels.
const BOXES_MAX: usize = 400;
const LEVELS_MAX: usize = 4;

/// Minimum width and height of a group that is divided, and its minimum area, in units of the picture.
const DIVIDED_SIDE: f64 = 60.0;
const DIVIDED_AREA: f64 = 7_500.0;

/// A group is shown if this many of its size are more than the size of its level. Others would be invisible.
const SMALLEST: f64 = 1e6;

/// Height of a line of text, and mean width of a character, in units of the picture.
const LINE: f64 = 15.0;
const CHARACTER: f64 = 6.6;

/// Maximum number of components in the path to the map.
const COMPONENTS_MAX: usize = 16;

/// Tensors whose names begin with the same components.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TensorGroup<'m> {
    /// The component in which the groups of a level differ; the rest of the name of a single tensor; else empty.
    name: &'m str,
    /// The common prefix of all names, without a dot at its end.
    prefix: &'m str,
    nbytes: u64,
    tensors: Vec<TensorId>,
    is_rest: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct MapArea {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Writes the map of the tensors whose names begin with the components of `prefix`; of all if it is empty.
pub(super) fn write_treemap(model: &Model, prefix: &str, page: &mut HtmlPage) {
    let listed = model.listed().iter();
    let mut tensors: Vec<_> = listed.filter(|id| prefix.is_empty() || is_below(model.name(*id), prefix)).collect();
    let mut start = if prefix.is_empty() { 0 } else { prefix.len() + 1 };
    if tensors.is_empty() {
        (tensors, start) = (model.listed().iter().collect(), 0);
    }
    // Groups with one member say nothing, so the map begins where names differ.
    start = common(model, &tensors, start);
    let all = tensors.iter().map(|id| model.tensor(*id).info.nbytes()).fold(0, u64::saturating_add);
    page.raw("<section id=\"map\"><h2>Where the bytes are</h2>\n<p>");
    match tensors.first().map(|id| &model.name(*id)[..start.saturating_sub(1)]) {
        Some(prefix) if start > 0 => group_path(prefix, page),
        _ => {
            page.text("All tensors");
        }
    }
    page.raw(": ").text(&format_size(all)).raw(" in ").text(&plural(tensors.len() as u64, "tensor"));
    if all == 0 {
        page.raw("</p></section>\n");
        return;
    }
    page.raw(". <a class=\"skip\" href=\"#tensors\">Skip the map</a></p>\n<div class=\"wide\">");
    page.show(format_args!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"group\" "));
    page.raw("aria-label=\"Map of the sizes of tensors\">\n");
    let area = MapArea { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT };
    let mut map = TreeMap { model, all, page, left: BOXES_MAX };
    map.divide(&tensors, start, area, LEVELS_MAX, None);
    page.raw("</svg></div></section>\n");
}

/// Writes the path to the map, with a link for each component.
fn group_path(prefix: &str, page: &mut HtmlPage) {
    page.raw("<a href=\"?#map\">All tensors</a>");
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
    /// Number of groups that may still be added.
    left: usize,
}

impl TreeMap<'_, '_> {
    /// Divides an area between the groups of `tensors`, whose names are equal before `start`.
    fn divide(&mut self, tensors: &[TensorId], start: usize, area: MapArea, levels: usize, colour: Option<usize>) {
        let groups = tensor_groups(self.model, tensors, start);
        self.left = self.left.saturating_sub(groups.len());
        let weights: Vec<f64> = groups.iter().map(|group| group.nbytes as f64).collect();
        for (at, (group, area)) in groups.iter().zip(squarify(&weights, area)).enumerate() {
            self.group(group, area, levels, colour.unwrap_or(at % 8));
        }
    }

    fn group(&mut self, group: &TensorGroup, area: MapArea, levels: usize, colour: usize) {
        let MapArea { x, y, width, height } = area;
        let is_divided = group.tensors.len() > 1
            && !group.is_rest
            && levels > 1
            && width.min(height) >= DIVIDED_SIDE
            && width * height >= DIVIDED_AREA
            && self.left >= group.tensors.len().min(GROUPS_MAX);
        let start = if is_divided { common(self.model, &group.tensors, group.prefix.len() + 1) } else { 0 };
        // A level with one member is shown together with the next one.
        let name = match group.tensors.first() {
            Some(id) if is_divided && start > group.prefix.len() + 1 => {
                &self.model.name(*id)[group.prefix.len() - group.name.len()..start - 1]
            }
            _ if group.is_rest => "others",
            _ => shown_name(group.name),
        };
        let href = match group.tensors[..] {
            _ if group.is_rest || group.tensors.len() > 1 && group.prefix.len() > PREFIX_MAX => None,
            [tensor] => Some(format!("?tensor={}", tensor.index())),
            _ => Some(query_of(&[("prefix", group.prefix)], &[]) + "#map"),
        };
        let share = 100.0 * group.nbytes as f64 / self.all as f64;
        let size = format_size(group.nbytes);
        let page = &mut *self.page;
        match &href {
            Some(href) => page.raw("<a href=\"").text(href).raw("\">"),
            None => page.raw("<g>"),
        };
        page.raw("<title>").name(name).raw(": ").text(&size);
        page.show(format_args!(", {share:.1} %")).raw(" in ").text(&plural(group.tensors.len() as u64, "tensor"));
        page.raw("</title><rect class=\"c").show(colour).raw(if is_divided { " outer\" " } else { "\" " });
        page.show(format_args!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"));
        // The text must fit into the area.
        let room = ((width - 8.0) / CHARACTER).max(0.0) as usize;
        let (left, first, second) = (x + 4.0, y + LINE - 2.0, y + 2.0 * LINE - 2.0);
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
        if is_divided {
            let inner = MapArea { x: x + 3.0, y: y + LINE + 3.0, width: width - 6.0, height: height - LINE - 6.0 };
            self.divide(&group.tensors, start, inner, levels - 1, Some(colour));
        }
    }
}

/// A name with at most `room` characters.
fn fitted(name: &str, room: usize) -> String {
    match name.char_indices().nth(room) {
        None => name.to_owned(),
        Some(_) => name.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The groups that have bytes, by the components of names from `start` on, the largest first. All names are equal
/// before `start`. If there are too many groups, the last one has the tensors of all smaller ones.
fn tensor_groups<'m>(model: &'m Model, tensors: &[TensorId], start: usize) -> Vec<TensorGroup<'m>> {
    let mut groups: Vec<TensorGroup> = Vec::new();
    let mut places: HashMap<(&str, bool), usize> = HashMap::new();
    for id in tensors {
        let (name, nbytes) = (model.name(*id), model.tensor(*id).info.nbytes());
        if nbytes == 0 {
            continue;
        }
        let rest = &name[start..];
        let component = rest.split('.').next().unwrap_or(rest);
        // The name of a tensor may be the prefix of others.
        let is_tensor = component.len() == rest.len();
        let at = *places.entry((component, is_tensor)).or_insert_with(|| {
            let prefix = &name[..start + component.len()];
            groups.push(TensorGroup { name: component, prefix, nbytes: 0, tensors: Vec::new(), is_rest: false });
            groups.len() - 1
        });
        groups[at].nbytes = groups[at].nbytes.saturating_add(nbytes);
        groups[at].tensors.push(*id);
    }
    groups.sort_by(|a, b| {
        let by_size = Reverse(a.nbytes).cmp(&Reverse(b.nbytes));
        by_size.then_with(|| natural::compare_components(a.name, b.name)).then(a.tensors.cmp(&b.tensors))
    });
    if groups.len() > GROUPS_MAX {
        let rest = groups.split_off(GROUPS_MAX);
        let nbytes = rest.iter().map(|group| group.nbytes).fold(0, u64::saturating_add);
        let tensors = rest.into_iter().flat_map(|group| group.tensors).collect();
        groups.push(TensorGroup { name: "", prefix: "", nbytes, tensors, is_rest: true });
    }
    let all = groups.iter().map(|group| group.nbytes as f64).sum::<f64>();
    groups.retain(|group| group.nbytes as f64 * SMALLEST > all);
    for group in &mut groups {
        if let [id] = group.tensors[..] {
            group.name = &model.name(id)[start..];
        }
    }
    groups
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
            let whole = MapArea { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT };
            let areas = squarify(&weights, whole);
            let all: f64 = weights.iter().sum();
            assert_eq!(areas.len(), weights.len());
            for (area, weight) in areas.iter().zip(&weights) {
                let share = area.width * area.height / (WIDTH * HEIGHT);
                assert!((share - weight / all).abs() < 1e-6, "{area:?} {weight}");
                assert!(area.x >= -1e-6 && area.y >= -1e-6, "{area:?}");
                assert!(area.x + area.width < WIDTH + 1e-6 && area.y + area.height < HEIGHT + 1e-6, "{area:?}");
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
