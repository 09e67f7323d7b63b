//! The page of a model: facts, a map of its bytes, its tensors, its metadata and its files.

use super::html::{HtmlPage, exact_size, has_words, paged, query_of};
use super::query::PageRequest;
use super::{directory, treemap};
use crate::fs::Error;
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

struct TensorColumn {
    /// In lower case, this is the value of the parameter `sort`. With a minus sign before it, the order is reversed.
    title: &'static str,
    is_number: bool,
    compare: fn(&Model, TensorId, TensorId) -> Ordering,
}

const COLUMNS: [TensorColumn; 5] = [
    TensorColumn { title: "Name", is_number: false, compare: compare_names },
    TensorColumn { title: "Dtype", is_number: false, compare: compare_dtypes },
    TensorColumn { title: "Shape", is_number: false, compare: compare_shapes },
    TensorColumn { title: "Size", is_number: true, compare: compare_sizes },
    TensorColumn { title: "Quantization", is_number: false, compare: compare_quantizations },
];

fn compare_names(model: &Model, a: TensorId, b: TensorId) -> Ordering {
    natural::compare_paths(model.name(a), model.name(b))
}

fn compare_dtypes(model: &Model, a: TensorId, b: TensorId) -> Ordering {
    model.tensor(a).info.dtype.name().cmp(model.tensor(b).info.dtype.name())
}

fn compare_shapes(model: &Model, a: TensorId, b: TensorId) -> Ordering {
    let [a, b] = [a, b].map(|id| model.tensor(id).info.shape);
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

fn compare_sizes(model: &Model, a: TensorId, b: TensorId) -> Ordering {
    model.tensor(a).info.nbytes.cmp(&model.tensor(b).info.nbytes)
}

fn compare_quantizations(model: &Model, a: TensorId, b: TensorId) -> Ordering {
    quantization(model, a).cmp(&quantization(model, b))
}

/// The quantization of a tensor, or its role for another one; empty if it has neither.
pub(super) fn quantization(model: &Model, id: TensorId) -> String {
    let quantized = &model.quantized;
    if let Some(weight) = quantized.weight(id) {
        return weight.class.summary();
    }
    let owner = quantized.owner(id);
    owner.map_or_else(String::new, |owner| format!("{} of {}", owner.role(id.index()), model.weight_name(owner)))
}

pub(super) fn model_page(asked: &PageRequest, model: &Model) -> Result<String, Error> {
    let name = asked.name();
    let words = asked.query.words();
    let listed = model.listed();
    let found: Vec<TensorId> = listed.iter().filter(|id| is_found(model, *id, &words)).collect();
    let mut count = plural(found.len() as u64, "tensor");
    if !words.is_empty() {
        count = format!("{count} of {}", grouped(listed.len() as u64));
    }
    let mut page = HtmlPage::at(asked, &name);
    page.raw("<main><h1>").name(&name).raw("</h1>\n");
    page.filter(asked, "part of a name, or a dtype", &count);
    page.raw("<div id=\"rows\">");
    // While a filter is active, the table takes the place of the facts and the map, so that it is visible.
    if words.is_empty() {
        model_facts(model, &mut page);
        treemap::write_treemap(model, &asked.query, &mut page);
    }
    tensor_table(asked, model, found, &mut page);
    page.raw("</div>\n");
    metadata(model, &mut page);
    page.raw("<section><h2>Files</h2><p>The same files as in a mount.</p>\n");
    directory::directory_table(asked, &directory::directory_rows(asked, &[])?, &mut page)?;
    page.raw("</section></main>");
    Ok(page.end())
}

fn model_facts(model: &Model, page: &mut HtmlPage) {
    let TensorBreakdown { all, dtypes, quantized, .. } = TensorBreakdown::of(model, model.listed().iter(), 1);
    let bytes = model.sources().iter().map(|source| source.len()).fold(0, u64::saturating_add);
    let bits = all.bits_per_weight().filter(|_| !quantized.is_empty());
    let bits = bits.map_or(String::new(), |bits| format!(", {bits:.2} bits each"));
    let files = model.files.len();
    let dtypes = dtypes.iter().take(SHOWN).map(|(name, totals)| shown_part(name, totals, "tensor"));
    let quantized = quantized
        .iter()
        .take(SHOWN)
        .map(|QuantizationTotal { summary, totals, .. }| shown_part(summary, totals, "weight"));
    let (dtypes, quantized) = (dtypes.collect::<Vec<_>>(), quantized.collect::<Vec<_>>());
    page.raw("<dl>").fact("Format", model.format()).fact("Size", &exact_size(bytes));
    if files > 1 {
        page.fact("Files", &grouped(files as u64));
    }
    page.fact("Tensors", &grouped(all.tensors)).fact("Parameters", &(format_count(all.parameters) + &bits));
    page.facts("Dtypes", &dtypes).facts("Quantization", &quantized);
    if model.left_out() > 0 {
        page.fact("Skipped", &grouped(model.left_out() as u64));
    }
    page.raw("</dl>\n");
}

fn shown_part(name: &str, totals: &TensorTotals, what: &str) -> String {
    format!("{name}: {} in {}", format_size(totals.nbytes), plural(totals.tensors, what))
}

/// Whether the name of a tensor has all of some words, or one word is its dtype.
fn is_found(model: &Model, id: TensorId, words: &[String]) -> bool {
    has_words(model.name(id), words)
        || words.len() == 1 && model.tensor(id).info.dtype.name().eq_ignore_ascii_case(&words[0])
}

fn tensor_table(asked: &PageRequest, model: &Model, mut found: Vec<TensorId>, page: &mut HtmlPage) {
    let query = &asked.query;
    let (is_reversed, key) = query.sort.strip_prefix('-').map_or((false, &query.sort[..]), |key| (true, key));
    let sorted = COLUMNS.iter().find(|column| column.title.to_lowercase() == key);
    if let Some(column) = sorted {
        // Equal tensors stay in the order of the model.
        threads::sort_by(&mut found, |a, b| {
            let order = (column.compare)(model, *a, *b);
            (if is_reversed { order.reverse() } else { order }).then(a.index().cmp(&b.index()))
        });
    }
    let (pages, at, shown) = paged(&found, ROWS, query.page);
    page.raw("<section id=\"tensors\"><h2>Tensors</h2>\n");
    page.kept(&[("sort", &query.sort), ("prefix", &query.prefix), ("part", &query.part)]);
    page.raw("<div class=\"wide\"><table><thead><tr>");
    for column in &COLUMNS {
        let is_sorted = sorted.is_some_and(|sorted| sorted.title == column.title);
        // The first click on a column of numbers shows the largest.
        let is_descending = if is_sorted { !is_reversed } else { column.is_number };
        let key = format!("{}{}", if is_descending { "-" } else { "" }, column.title.to_lowercase());
        let state = match (is_sorted, is_reversed) {
            (false, _) => "",
            (true, false) => " aria-sort=\"ascending\"",
            (true, true) => " aria-sort=\"descending\"",
        };
        page.raw("<th scope=\"col\"").raw(state).raw(if column.is_number { " class=\"n\"" } else { "" });
        // The fragment is the link itself, so that it has the focus after the page is loaded.
        let id = format!("sort-{}", column.title.to_lowercase());
        let parameters = [("q", &query.q[..]), ("prefix", &query.prefix), ("part", &query.part)];
        let href = query_of(&parameters, &[("sort", &key)]) + "#" + &id;
        page.raw("><a data-swap=\"rows\" id=\"").raw(&id).raw("\" href=\"").text(&href).raw("\">");
        page.raw(column.title).raw("</a></th>");
    }
    page.raw("</tr></thead><tbody>\n");
    for id in shown {
        let tensor = model.tensor(*id).info;
        page.raw("<tr><td>").tensor_link(*id, tensor.name).raw("</td>").cell(tensor.dtype.name());
        page.cell(&brackets(tensor.shape)).number(&format_size(tensor.nbytes));
        page.cell(&quantization(model, *id)).raw("</tr>\n");
    }
    page.raw("</tbody></table></div>\n");
    let parameters = [("q", &query.q[..]), ("sort", &query.sort), ("prefix", &query.prefix), ("part", &query.part)];
    page.pages(at, pages, &parameters).raw("</section>\n");
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
            page.raw("<details><summary>").text(&summary).raw("…</summary><pre>").lines(&text);
            page.raw("</pre></details></dd>");
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

pub(super) fn neighbours(model: &Model, id: TensorId) -> (Option<TensorId>, Option<TensorId>) {
    let listed = model.listed();
    // Numbers of listed tensors ascend.
    let (mut low, mut high) = (0, listed.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if listed.at(middle).index() < id.index() { low = middle + 1 } else { high = middle }
    }
    let before = low.checked_sub(1).map(|at| listed.at(at));
    (before, (low..listed.len()).map(|at| listed.at(at)).find(|other| *other != id))
}
