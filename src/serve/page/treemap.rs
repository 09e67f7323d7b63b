//! A map of where the bytes of a model are: areas in proportion to sizes, by the components of names.

use super::html::{Page, query_of};
use crate::model::{Model, TensorId};
use crate::natural;
use crate::units::{plural, size};
use std::cmp::Reverse;
use std::collections::HashMap;

/// Width and height of the map, in units of the picture.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 400.0;

/// Maximum number of groups that are shown on a level. The rest is one group.
const GROUPS_MAX: usize = 64;

/// A group is shown if this many of its size are more than the size of the level.
const SMALLEST: f64 = 1e6;

/// Height of a line of text, and mean width of a character, in units of the picture.
const LINE: f64 = 15.0;
const CHARACTER: f64 = 6.6;

/// The tensors whose names begin with the same components.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group<'m> {
    /// The component in which the groups of a level differ. Empty for the rest.
    name: &'m str,
    /// The prefix of all names, without a dot at its end.
    prefix: &'m str,
    nbytes: u64,
    tensors: u64,
    /// The only tensor, if its name is the prefix.
    leaf: Option<TensorId>,
}

/// A rectangle.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Area {
    x: f64,
    y: f64,
    width: f64,
    height: f64,
}

/// Writes the map of the tensors whose names begin with the components of `prefix`; of all if it is empty.
pub(super) fn write(model: &Model, prefix: &str, page: &mut Page) {
    // Groups with one member say nothing, so the map begins where names differ.
    let mut prefix = prefix.trim_end_matches('.').to_owned();
    let mut groups = groups(model, &prefix);
    if groups.is_empty() && !prefix.is_empty() {
        prefix.clear();
        groups = self::groups(model, "");
    }
    while let [Group { leaf: None, prefix: deeper, .. }] = &groups[..] {
        prefix = (*deeper).to_owned();
        groups = self::groups(model, &prefix);
    }
    let all: u64 = groups.iter().map(|group| group.nbytes).fold(0, u64::saturating_add);
    page.raw("<section id=\"map\"><h2>Where the bytes are</h2>\n<p>");
    if prefix.is_empty() {
        page.text("All tensors");
    } else {
        page.raw("<a href=\"?#map\">All tensors</a>");
        let mut end = 0;
        while end < prefix.len() {
            let next = prefix[end..].find('.').map_or(prefix.len(), |at| end + at);
            let (name, here) = (&prefix[end..next], &prefix[..next]);
            page.raw(" . <a href=\"").text(&query_of(&[("prefix", here)], &[])).raw("#map\">").name(name).raw("</a>");
            end = next + 1;
        }
    }
    page.raw(": ").text(&size(all)).raw("</p>\n");
    if all == 0 {
        page.raw("<p class=\"dim\">No bytes.</p></section>\n");
        return;
    }
    let rest = groups.split_off(groups.len().min(GROUPS_MAX));
    if !rest.is_empty() {
        let sum = |count: fn(&Group) -> u64| rest.iter().map(count).fold(0, u64::saturating_add);
        let (nbytes, tensors) = (sum(|group| group.nbytes), sum(|group| group.tensors));
        groups.push(Group { name: "", prefix: "", nbytes, tensors, leaf: None });
    }
    // Others would be invisible.
    groups.retain(|group| group.nbytes as f64 * SMALLEST > all as f64);
    let weights: Vec<f64> = groups.iter().map(|group| group.nbytes as f64).collect();
    let areas = squarify(&weights, Area { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT });
    page.raw("<svg viewBox=\"0 0 1000 400\" role=\"img\" aria-label=\"Map of the sizes of tensors\">\n");
    for (at, (group, area)) in groups.iter().zip(areas).enumerate() {
        write_group(group, area, at, all, page);
    }
    page.raw("</svg></section>\n");
}

fn write_group(group: &Group, area: Area, at: usize, all: u64, page: &mut Page) {
    let href = match group.leaf {
        Some(tensor) => format!("?tensor={}", tensor.index()),
        None if group.prefix.is_empty() => String::new(),
        None => query_of(&[("prefix", group.prefix)], &[]) + "#map",
    };
    let name =
        if group.name.is_empty() { if group.leaf.is_some() { "(no name)" } else { "others" } } else { group.name };
    if !href.is_empty() {
        page.raw("<a href=\"").text(&href).raw("\">");
    }
    let Area { x, y, width, height } = area;
    page.raw("<g><title>").name(name).raw(": ").text(&size(group.nbytes));
    let share = 100.0 * group.nbytes as f64 / all as f64;
    page.raw(", ")
        .show(format_args!("{share:.1} %"))
        .raw(" in ")
        .text(&plural(group.tensors, "tensor"))
        .raw("</title>");
    page.raw("<rect class=\"c").show(at % 8).raw("\" ");
    page.show(format_args!("x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\"/>"));
    // The text must fit into the area.
    let room = ((width - 8.0) / CHARACTER).max(0.0) as usize;
    if room >= 3 && height > LINE + 4.0 {
        let (x, first) = (x + 5.0, y + LINE);
        page.show(format_args!("<text x=\"{x:.2}\" y=\"{first:.2}\">")).text(&fitted(name, room)).raw("</text>");
        let label = size(group.nbytes);
        if height > 2.0 * LINE + 4.0 && label.len() <= room {
            let second = first + LINE;
            page.show(format_args!("<text class=\"dim\" x=\"{x:.2}\" y=\"{second:.2}\">")).text(&label).raw("</text>");
        }
    }
    page.raw("</g>");
    page.raw(if href.is_empty() { "\n" } else { "</a>\n" });
}

/// A name with at most `room` characters.
fn fitted(name: &str, room: usize) -> String {
    match name.char_indices().nth(room) {
        None => name.to_owned(),
        Some(_) => name.chars().take(room.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// The groups on the level below `prefix`, the largest first.
fn groups<'m>(model: &'m Model, prefix: &str) -> Vec<Group<'m>> {
    let mut groups: Vec<Group> = Vec::new();
    let mut places: HashMap<(&str, bool), usize> = HashMap::new();
    for id in model.listed().iter() {
        let name = model.name(id);
        let Some(rest) = below(name, prefix) else { continue };
        let component = rest.split('.').next().unwrap_or(rest);
        // The name of a tensor may be the prefix of others.
        let is_leaf = component.len() == rest.len();
        let prefix = &name[..name.len() - rest.len() + component.len()];
        let nbytes = model.tensor(id).info.nbytes();
        let at = *places.entry((component, is_leaf)).or_insert_with(|| {
            groups.push(Group { name: component, prefix, nbytes: 0, tensors: 0, leaf: is_leaf.then_some(id) });
            groups.len() - 1
        });
        groups[at].nbytes = groups[at].nbytes.saturating_add(nbytes);
        groups[at].tensors += 1;
    }
    groups.sort_by(|a, b| {
        let by_size = Reverse(a.nbytes).cmp(&Reverse(b.nbytes));
        by_size.then_with(|| natural::compare_components(a.name, b.name)).then(a.leaf.is_some().cmp(&b.leaf.is_some()))
    });
    groups
}

/// What follows the components of `prefix` in a name. `None` if it does not begin with them, or nothing follows.
fn below<'n>(name: &'n str, prefix: &str) -> Option<&'n str> {
    if prefix.is_empty() {
        return Some(name);
    }
    name.strip_prefix(prefix)?.strip_prefix('.')
}

/// Divides `area` in proportion to `weights`, which are positive and descending, into rectangles that are as close to
/// squares as is simple. Source: Bruls, Huizing and van Wijk, "Squarified Treemaps", 2000.
fn squarify(weights: &[f64], mut area: Area) -> Vec<Area> {
    let mut areas = Vec::with_capacity(weights.len());
    let mut left: f64 = weights.iter().sum();
    let mut rest = weights;
    while !rest.is_empty() {
        // Rectangles are added along the shorter side as long as the longest of them becomes less oblong.
        let (side, scale) = (area.width.min(area.height), area.width * area.height / left);
        let worst = |row: &[f64]| {
            let sum: f64 = row.iter().sum::<f64>() * scale;
            let ratio = |weight: &f64| {
                let own = weight * scale;
                (side * side * own / (sum * sum)).max(sum * sum / (side * side * own))
            };
            row.iter().map(ratio).fold(0.0, f64::max)
        };
        let mut count = 1;
        while count < rest.len() && worst(&rest[..=count]) <= worst(&rest[..count]) {
            count += 1;
        }
        let (row, later) = rest.split_at(count);
        let sum: f64 = row.iter().sum();
        let depth = sum * scale / side;
        let mut at = 0.0;
        for weight in row {
            let length = side * weight / sum;
            areas.push(if area.width >= area.height {
                Area { x: area.x, y: area.y + at, width: depth, height: length }
            } else {
                Area { x: area.x + at, y: area.y, width: length, height: depth }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_in_proportion_and_fill_the_map() {
        for weights in [vec![1.0], vec![6.0, 6.0, 4.0, 3.0, 2.0, 2.0, 1.0], vec![1e6, 1.0], vec![1.0; 65]] {
            let whole = Area { x: 0.0, y: 0.0, width: WIDTH, height: HEIGHT };
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
        for (name, prefix, rest) in [
            ("a.b.c", "", Some("a.b.c")),
            ("a.b.c", "a", Some("b.c")),
            ("a.b.c", "a.b", Some("c")),
            ("a.b.c", "a.b.c", None),
            ("ab.c", "a", None),
            ("a", "a", None),
            ("a.", "a", Some("")),
        ] {
            assert_eq!(below(name, prefix), rest, "{name} {prefix}");
        }
    }
}
