//! The page of a model: facts, a map of its bytes, its tensors, its metadata and its files.

use super::html::{HtmlPage, has_words, paged, query_of, shown_name};
use super::query::{PagePlace, PageQuery};
use super::{directory, treemap};
use crate::content::ReadRequest;
use crate::fs::{Error, Superblock};
use crate::inspect::{QuantizationTotal, TensorBreakdown, TensorTotals};
use crate::model::{Model, TensorId};
use crate::natural;
use crate::text::brackets;
use crate::threads;
use crate::units::{format_count, format_size, grouped, plural};
use std::cmp::Ordering;

/// Number of tensors on a page.
const ROWS: usize = 200;

/// Maximum number of dtypes, quantizations and metadata keys that are shown.
const SHOWN: usize = 12;
const KEYS_MAX: usize = 200;

/// Maximum length of a value of the metadata, in bytes. Longer ones are cut in the middle.
const VALUE_MAX: usize = 2_000;

/// Length in bytes from which on a value is folded.
const FOLDED: usize = 120;

/// A column of the table of tensors.
struct TensorColumn {
    title: &'static str,
    /// The value of the parameter `sort`. With a minus sign before it, the order is reversed.
    key: &'static str,
    is_number: bool,
    compare: fn(&Model, TensorId, TensorId) -> Ordering,
}

const COLUMNS: &[TensorColumn] = &[
    TensorColumn {
        title: "Name",
        key: "name",
        is_number: false,
        compare: |model, a, b| natural::compare_paths(model.name(a), model.name(b)),
    },
    TensorColumn {
        title: "Dtype",
        key: "dtype",
        is_number: false,
        compare: |model, a, b| model.tensor(a).info.dtype.name().cmp(model.tensor(b).info.dtype.name()),
    },
    TensorColumn {
        title: "Shape",
        key: "shape",
        is_number: false,
        compare: |model, a, b| {
            let shape = |id| model.tensor(id).info.shape;
            shape(a).len().cmp(&shape(b).len()).then_with(|| shape(a).cmp(shape(b)))
        },
    },
    TensorColumn {
        title: "Size",
        key: "size",
        is_number: true,
        compare: |model, a, b| model.tensor(a).info.nbytes().cmp(&model.tensor(b).info.nbytes()),
    },
    TensorColumn {
        title: "Quantization",
        key: "quantization",
        is_number: false,
        compare: |model, a, b| quantization(model, a).cmp(&quantization(model, b)),
    },
];

/// How a tensor is quantized, or what it is for another one; empty if it is neither.
pub(super) fn quantization(model: &Model, id: TensorId) -> String {
    let quantized = model.quantized();
    if let Some(weight) = quantized.weight(id) {
        return weight.class.summary();
    }
    let owner = quantized.owner(id);
    owner.map_or_else(String::new, |owner| format!("{} of {}", owner.role(id.index()), model.weight_name(owner)))
}

/// The page.
pub(super) fn model_page(
    superblock: &Superblock,
    place: &PagePlace,
    model: &Model,
    query: &PageQuery,
    wants: &ReadRequest,
) -> Result<String, Error> {
    let name = place.name();
    let mut page = HtmlPage::at(place, &name);
    page.raw("<main><h1>").name(&name).raw("</h1>\n");
    facts(model, &mut page);
    treemap::write_treemap(model, &query.prefix, &mut page);
    tensors(model, query, &mut page);
    metadata(model, &mut page);
    page.raw("<section><h2>Files</h2><p>The same files as in a mount.</p>\n");
    let files = directory::directory_rows(superblock, place.ino, &[], wants)?;
    directory::directory_table(superblock, &files, &mut page, wants)?;
    page.raw("</section></main>");
    Ok(page.end())
}

fn facts(model: &Model, page: &mut HtmlPage) {
    let TensorBreakdown { all, dtypes, quantized, .. } = TensorBreakdown::of(model, model.listed().iter(), 1);
    let bytes = model.sources().iter().map(|source| source.len()).fold(0, u64::saturating_add);
    let bits = all.bits_per_weight().filter(|_| !quantized.is_empty());
    let bits = bits.map_or(String::new(), |bits| format!(", {bits:.2} bits each"));
    let exact = if bytes < 1000 { String::new() } else { format!(" ({} bytes)", grouped(bytes)) };
    let files = model.shards().len();
    let part = |name: &str, totals: &TensorTotals, what| {
        format!("{name}: {} in {}", format_size(totals.nbytes), plural(totals.tensors, what))
    };
    let dtypes: Vec<String> = dtypes.iter().take(SHOWN).map(|(name, totals)| part(name, totals, "tensor")).collect();
    let quantized: Vec<String> = quantized
        .iter()
        .take(SHOWN)
        .map(|QuantizationTotal { summary, totals, .. }| part(summary, totals, "weight"))
        .collect();
    page.raw("<dl>").fact("Format", model.format()).fact("Size", &(format_size(bytes) + &exact));
    if files > 1 {
        page.fact("Files", &grouped(files as u64));
    }
    page.fact("Tensors", &grouped(all.tensors)).fact("Parameters", &(format_count(all.parameters) + &bits));
    page.facts("Dtypes", &dtypes).facts("Quantization", &quantized);
    if model.left_out() > 0 {
        page.fact("Left out", &grouped(model.left_out() as u64));
    }
    page.raw("</dl>\n");
}

fn tensors(model: &Model, query: &PageQuery, page: &mut HtmlPage) {
    let words = query.words();
    let listed = model.listed();
    let matches = |id: &TensorId| {
        has_words(model.name(*id), &words)
            || words.len() == 1 && model.tensor(*id).info.dtype.name().eq_ignore_ascii_case(&words[0])
    };
    let mut found: Vec<TensorId> = listed.iter().filter(matches).collect();
    let (is_reversed, key) = query.sort.strip_prefix('-').map_or((false, &query.sort[..]), |key| (true, key));
    let sorted = COLUMNS.iter().find(|column| column.key == key);
    if let Some(column) = sorted {
        // Equal tensors stay in the order of the model.
        threads::sort_by(&mut found, |a, b| {
            let order = (column.compare)(model, *a, *b);
            (if is_reversed { order.reverse() } else { order }).then(a.index().cmp(&b.index()))
        });
    }
    let (pages, at) = paged(found.len(), ROWS, query.page);
    let shown = &found[(at * ROWS).min(found.len())..((at + 1) * ROWS).min(found.len())];
    page.raw("<section id=\"tensors\"><h2>Tensors</h2>\n");
    page.filter(query, "part of a name, or a dtype").raw("<div id=\"rows\">");
    page.kept(&[("sort", &query.sort), ("prefix", &query.prefix)])
        .raw("<p>")
        .text(&plural(found.len() as u64, "tensor"));
    if !words.is_empty() {
        page.raw(" of ").text(&grouped(listed.len() as u64));
    }
    page.raw("</p>\n<div class=\"wide\"><table><thead><tr>");
    for column in COLUMNS {
        let is_sorted = sorted.is_some_and(|sorted| sorted.key == column.key);
        // The first click on a column of numbers shows the largest.
        let is_descending = if is_sorted { !is_reversed } else { column.is_number };
        let key = format!("{}{}", if is_descending { "-" } else { "" }, column.key);
        let state = match (is_sorted, is_reversed) {
            (false, _) => "",
            (true, false) => " aria-sort=\"ascending\"",
            (true, true) => " aria-sort=\"descending\"",
        };
        page.raw("<th scope=\"col\"").raw(state).raw(if column.is_number { " class=\"n\"" } else { "" });
        let href = query_of(&[("q", &query.q), ("prefix", &query.prefix)], &[("sort", &key)]) + "#tensors";
        page.raw("><a data-swap=\"rows\" href=\"").text(&href).raw("\">").raw(column.title).raw("</a></th>");
    }
    page.raw("</tr></thead><tbody>\n");
    for id in shown {
        let tensor = model.tensor(*id).info;
        page.raw("<tr><td><a href=\"?tensor=")
            .show(id.index())
            .raw("\">")
            .name(shown_name(tensor.name))
            .raw("</a></td><td>");
        page.name(tensor.dtype.name()).raw("</td><td>").name(&brackets(tensor.shape)).raw("</td>");
        page.number(&format_size(tensor.nbytes())).raw("<td>").name(&quantization(model, *id)).raw("</td></tr>\n");
    }
    page.raw("</tbody></table></div>\n");
    let parameters = [("q", &query.q[..]), ("sort", &query.sort), ("prefix", &query.prefix)];
    page.pages(at, pages, &parameters).raw("</div></section>\n");
}

fn metadata(model: &Model, page: &mut HtmlPage) {
    let metadata = model.metadata();
    if metadata.is_empty() {
        return;
    }
    page.raw("<section><h2>Metadata</h2>\n<dl>");
    for (key, value) in metadata.iter().take(KEYS_MAX) {
        let text = crate::text::shorten(value.text(), VALUE_MAX);
        page.raw("<dt>").name(key).raw("</dt><dd>");
        if text.len() > FOLDED {
            let summary: String = text.chars().take(FOLDED / 2).collect();
            page.raw("<details><summary>")
                .text(&summary)
                .raw("…</summary><pre>")
                .lines(&text)
                .raw("</pre></details></dd>");
        } else {
            page.text(&text).raw("</dd>");
        }
    }
    page.raw("</dl>");
    if metadata.len() > KEYS_MAX {
        page.raw("<p>and ").text(&plural((metadata.len() - KEYS_MAX) as u64, "more key")).raw(" in metadata.json</p>");
    }
    page.raw("</section>\n");
}

/// The tensors before and after one.
pub(super) fn neighbours(model: &Model, id: TensorId) -> (Option<TensorId>, Option<TensorId>) {
    let listed = model.listed();
    // Numbers of listed tensors ascend.
    let position = {
        let (mut low, mut high) = (0, listed.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if listed.at(middle).index() < id.index() { low = middle + 1 } else { high = middle }
        }
        low
    };
    let at = |position: Option<usize>| position.filter(|at| *at < listed.len()).map(|at| listed.at(at));
    let is_there = at(Some(position)) == Some(id);
    (at(position.checked_sub(1)), at(Some(position + usize::from(is_there))))
}
