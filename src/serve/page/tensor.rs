//! The page of a tensor: facts, its picture, its statistics, and its files.

use super::html::{HtmlPage, exact_size, query_of, shown_name};
use super::model::{neighbours, quantization};
use super::query::PageRequest;
use crate::fs::{Error, TensorFile};
use crate::model::{Model, TensorId};
use crate::serve::url;
use crate::text::{brackets, shell_word, shorten};
use crate::units::{format_size, grouped};
use serde_json::Value;
use std::path::Path;

/// Maximum size of a tensor whose statistics are computed without being asked for, in bytes.
const STATISTICS_MAX: u64 = 64 << 20;

/// The directories of the pictures and of the statistics.
const PICTURES: &str = "plots";
const STATISTICS: &str = "stats";

/// The purpose of a directory of files of tensors.
const PURPOSES: &[(&str, &str)] = &[
    ("f32", "float32 values"),
    ("gguf", "a GGUF file with this tensor"),
    ("npy", "an array for NumPy"),
    ("plots", "a picture of the values"),
    ("safetensors", "a safetensors file with this tensor"),
    ("stats", "statistics as JSON"),
    ("tensors", "the stored bytes"),
];

pub(super) fn tensor_page(asked: &PageRequest, model: &Model, id: TensorId) -> Result<String, Error> {
    let (tensor, is_logical) = (model.tensor(id), model.logical().contains(id));
    let name = shown_name(tensor.info.name);
    let files = if is_logical { asked.superblock.files_of(asked.ino, id, asked.wants)? } else { Vec::new() };
    let statistics = match files.iter().find(|file| file.dir == STATISTICS) {
        Some(file) if asked.query.statistics || tensor.info.nbytes <= STATISTICS_MAX => Some(statistics(asked, file)?),
        _ => None,
    };
    let mut page = HtmlPage::at(asked, name);
    page.raw("<main><p class=\"around\"><a href=\".#tensors\">All tensors</a>");
    let (before, after) = neighbours(model, id);
    for (neighbour, relation, label) in [(before, "prev", "← previous: "), (after, "next", "→ next: ")] {
        if let Some(neighbour) = neighbour {
            page.raw(" <a rel=\"").raw(relation).raw("\" href=\"?tensor=").show(neighbour.index()).raw("\">");
            page.raw(label).name(shown_name(model.name(neighbour))).raw("</a>");
        }
    }
    page.raw("</p>\n<h1>").name(name).raw("</h1>\n");
    tensor_facts(model, id, &mut page);
    picture(&files, &mut page);
    match (statistics, files.iter().any(|file| file.dir == STATISTICS)) {
        (Some(statistics), _) => write_statistics(&statistics, &mut page),
        (None, true) => {
            let href = query_of(&[("tensor", &id.index().to_string())], &[("statistics", "1")]);
            page.raw("<section><h2>Statistics</h2><p><a href=\"").text(&href).raw("\">Compute them</a>, which reads ");
            page.text(&format_size(tensor.info.nbytes)).raw(".</p></section>\n");
        }
        (None, false) => {}
    }
    downloads(asked, &files, &mut page);
    page.raw("</main>");
    Ok(page.end())
}

fn tensor_facts(model: &Model, id: TensorId, page: &mut HtmlPage) {
    let tensor = model.tensor(id);
    let info = &tensor.info;
    page.raw("<dl>").fact("Dtype", info.dtype.name()).fact("Shape", &shorten(&brackets(info.shape), 500));
    page.fact("Size", &exact_size(info.nbytes));
    // A quantized weight has its logical dtype and shape.
    let values = model.numbers(id, true);
    if values.weight.is_some() {
        page.fact("Values", &format!("{} {}", values.dtype(), brackets(values.shape())));
    }
    page.fact("Elements", &grouped(values.elements()));
    page.fact("Quantization", &quantization(model, id));
    if let Some(weight) = model.quantized.weight(id) {
        for companion in weight.companions().map(TensorId::new) {
            page.raw("<dt>").text(weight.role(companion.index())).raw("</dt><dd>");
            page.tensor_link(companion, model.name(companion)).raw("</dd>");
        }
    } else if let Some(owner) = model.quantized.owner(id) {
        let values = TensorId::new(owner.values);
        page.raw("<dt>Belongs to</dt><dd>").tensor_link(values, model.weight_name(owner)).raw("</dd>");
    }
    match (tensor.file(), &tensor.places()[..]) {
        (Some(file), places) => {
            page.raw("<dt>File</dt><dd>").name(&model.file(file).name);
            if let [place] = places {
                page.text(&format!(", from byte {}", grouped(place.range.start)));
            }
            page.raw("</dd>");
        }
        (None, _) if tensor.is_gathered() => drop(page.fact("Files", "gathered from several places")),
        (None, places) => drop(page.fact("Files", &format!("joined from {} places", grouped(places.len() as u64)))),
    }
    page.raw("</dl>\n");
}

fn picture(files: &[TensorFile], page: &mut HtmlPage) {
    let Some(file) = files.iter().find(|file| file.dir == PICTURES) else { return };
    page.raw("<section><h2>Picture</h2><img loading=\"lazy\" alt=\"Plots of the values of this tensor\" src=\"");
    page.raw(&file_href(file)).raw("\"></section>\n");
}

/// The statistics of a tensor. Waits until they are computed.
fn statistics(asked: &PageRequest, file: &TensorFile) -> Result<Value, Error> {
    let content = asked.superblock.open(file.attr.ino, asked.wants)?;
    let bytes = content.read(0..content.len(), asked.wants)?;
    // A file of this program that is not JSON would be a bug; the page then has no statistics.
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

fn write_statistics(statistics: &Value, page: &mut HtmlPage) {
    page.raw("<section><h2>Statistics</h2><dl id=\"statistics\">");
    for (title, key) in [
        ("Values", "count"),
        ("Smallest", "min"),
        ("Largest", "max"),
        ("Mean", "mean"),
        ("Standard deviation", "std"),
        ("Zeros", "zeros"),
        ("NaN", "nan"),
        ("+infinity", "pos_inf"),
        ("-infinity", "neg_inf"),
    ] {
        if let Some(value) = statistics.get(key).filter(|value| !value.is_null()) {
            page.raw("<dt>").raw(title).raw("</dt><dd data-figure=\"").raw(key).raw("\">");
            page.text(&value.to_string()).raw("</dd>");
        }
    }
    page.raw("</dl></section>\n");
}

fn downloads(asked: &PageRequest, files: &[TensorFile], page: &mut HtmlPage) {
    if files.is_empty() {
        return;
    }
    page.raw("<section><h2>Files</h2>").table(&[("File", false), ("Content", false), ("Size", true)]);
    for file in files {
        let purpose = PURPOSES.iter().find(|(dir, _)| *dir == file.dir).map_or("", |(_, purpose)| *purpose);
        page.raw("<tr><td>").link(&file_href(file), &format!("{}/{}", file.dir, file.name)).raw("</td>");
        page.cell(purpose).number(&format_size(file.attr.size)).raw("</tr>\n");
    }
    page.raw("</tbody></table>\n");
    if let Some(file) = files.iter().find(|file| file.dir == "npy").or(files.first()) {
        let above: String = asked.path.iter().map(|name| String::from_utf8_lossy(name).into_owned() + "/").collect();
        let path = format!("{above}{}/{}", file.dir, file.name);
        let words = [asked.site, &path].map(|word| shell_word(Path::new(word)));
        page.raw("<p>Without this server: <code>weightfs cat ").text(&words.join(" ")).raw("</code></p>");
    }
    page.raw("</section>\n");
}

/// The URL of a file, from the page of its model.
fn file_href(file: &TensorFile) -> String {
    format!("{}/{}", file.dir, url::encode_url(file.name.as_bytes()))
}
