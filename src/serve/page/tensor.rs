//! The page of a tensor: facts, its picture, its figures, and its files.

use super::html::{HtmlPage, query_of, shown_name};
use super::model::{neighbours, quantization};
use super::query::{PagePlace, PageQuery};
use crate::content::ReadRequest;
use crate::fs::{Error, Superblock, TensorFile};
use crate::model::{Model, TensorId, TensorParts};
use crate::serve::url;
use crate::text::{brackets, shell_word, shorten};
use crate::units::{format_size, grouped};
use serde_json::Value;
use std::path::Path;

/// Maximum size of a tensor whose figures are computed without being asked for, in bytes.
const FIGURES_MAX: u64 = 64 << 20;

/// The directories of the pictures and of the figures.
const PICTURES: &str = "plots";
const FIGURES: &str = "stats";

/// What a directory of files of tensors is for.
const PURPOSES: &[(&str, &str)] = &[
    ("f32", "float32 values"),
    ("gguf", "a GGUF file with this tensor"),
    ("npy", "an array for NumPy"),
    ("plots", "a picture of the values"),
    ("safetensors", "a safetensors file with this tensor"),
    ("stats", "figures as JSON"),
    ("tensors", "the stored bytes"),
];

/// The page.
pub(super) fn tensor_page(
    superblock: &Superblock,
    place: &PagePlace,
    model: &Model,
    id: TensorId,
    query: &PageQuery,
    wants: &ReadRequest,
) -> Result<String, Error> {
    let tensor = model.tensor(id);
    let name = shown_name(tensor.info.name);
    let files = if model.logical().contains(id) { superblock.files_of(place.ino, id, wants)? } else { Vec::new() };
    let figures = match files.iter().find(|file| file.dir == FIGURES) {
        Some(file) if query.figures || tensor.info.nbytes() <= FIGURES_MAX => Some(figures(superblock, file, wants)?),
        _ => None,
    };
    let mut page = HtmlPage::at(place, name);
    page.raw("<main><p class=\"around\"><a href=\".#tensors\">All tensors</a>");
    let (before, after) = neighbours(model, id);
    for (neighbour, relation, label) in [(before, "prev", "← previous: "), (after, "next", "→ next: ")] {
        if let Some(neighbour) = neighbour {
            page.raw(" <a rel=\"").raw(relation).raw("\" href=\"?tensor=").show(neighbour.index()).raw("\">");
            page.raw(label).name(shown_name(model.name(neighbour))).raw("</a>");
        }
    }
    page.raw("</p>\n<h1>").name(name).raw("</h1>\n");
    facts(model, id, &mut page);
    picture(&files, &mut page);
    match (figures, files.iter().any(|file| file.dir == FIGURES)) {
        (Some(figures), _) => write_figures(&figures, &mut page),
        (None, true) => {
            let href = query_of(&[("tensor", &id.index().to_string())], &[("figures", "1")]);
            page.raw("<section><h2>Figures</h2><p><a href=\"").text(&href).raw("\">Compute them</a>, which reads ");
            page.text(&format_size(tensor.info.nbytes())).raw(".</p></section>\n");
        }
        (None, false) => {}
    }
    downloads(place, &files, &mut page);
    page.raw("</main>");
    Ok(page.end())
}

fn facts(model: &Model, id: TensorId, page: &mut HtmlPage) {
    let tensor = model.tensor(id);
    let info = &tensor.info;
    let exact = |bytes: u64| {
        if bytes < 1000 { format_size(bytes) } else { format!("{} ({} bytes)", format_size(bytes), grouped(bytes)) }
    };
    page.raw("<dl>").fact("Dtype", info.dtype.name()).fact("Shape", &shorten(&brackets(info.shape), 500));
    page.fact("Size", &exact(info.nbytes()));
    // A quantized weight has its logical dtype and shape.
    let values = model.numbers(id, true);
    if values.weight.is_some() {
        page.fact("Values", &format!("{} {}", values.dtype(), brackets(values.shape())));
    }
    page.fact("Elements", &grouped(values.elements()));
    page.fact("Quantization", &quantization(model, id));
    if let Some(weight) = model.quantized().weight(id) {
        for companion in weight.companions().map(TensorId::new) {
            page.raw("<dt>")
                .text(weight.role(companion.index()))
                .raw("</dt><dd><a href=\"?tensor=")
                .show(companion.index());
            page.raw("\">").name(shown_name(model.name(companion))).raw("</a></dd>");
        }
    } else if let Some(owner) = model.quantized().owner(id) {
        page.raw("<dt>Belongs to</dt><dd><a href=\"?tensor=").show(owner.values).raw("\">");
        page.name(model.weight_name(owner)).raw("</a></dd>");
    }
    match tensor.parts {
        TensorParts::One(shard) => {
            page.raw("<dt>File</dt><dd>").name(&model.shard(shard).name);
            if info.layout.is_none() {
                page.text(&format!(", from byte {}", grouped(info.range.start)));
            }
            page.raw("</dd>");
        }
        TensorParts::Many(runs) => {
            page.fact("Files", &format!("joined from {} places", grouped(runs.count() as u64)));
        }
    }
    page.raw("</dl>\n");
}

fn picture(files: &[TensorFile], page: &mut HtmlPage) {
    let Some(file) = files.iter().find(|file| file.dir == PICTURES) else { return };
    page.raw("<section><h2>Picture</h2><img loading=\"lazy\" alt=\"Plots of the values of this tensor\" src=\"");
    page.raw(&href(file)).raw("\"></section>\n");
}

/// The figures of a tensor. Waits until they are computed.
fn figures(superblock: &Superblock, file: &TensorFile, wants: &ReadRequest) -> Result<Value, Error> {
    let content = superblock.open(file.attr.ino, wants)?;
    let bytes = content.read(0..content.len(), wants)?;
    // A file of this program that is not JSON would be a bug; the page then has no figures.
    Ok(serde_json::from_slice(&bytes).unwrap_or_default())
}

fn write_figures(figures: &Value, page: &mut HtmlPage) {
    page.raw("<section><h2>Figures</h2><dl id=\"figures\">");
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
        if let Some(value) = figures.get(key).filter(|value| !value.is_null()) {
            page.raw("<dt>")
                .raw(title)
                .raw("</dt><dd data-figure=\"")
                .raw(key)
                .raw("\">")
                .text(&value.to_string())
                .raw("</dd>");
        }
    }
    page.raw("</dl></section>\n");
}

fn downloads(place: &PagePlace, files: &[TensorFile], page: &mut HtmlPage) {
    if files.is_empty() {
        return;
    }
    page.raw("<section><h2>Files</h2><table><thead><tr><th scope=\"col\">File</th><th scope=\"col\">Content</th>");
    page.raw("<th scope=\"col\" class=\"n\">Size</th></tr></thead><tbody>\n");
    for file in files {
        let purpose = PURPOSES.iter().find(|(dir, _)| *dir == file.dir).map_or("", |(_, purpose)| *purpose);
        page.raw("<tr><td><a href=\"").raw(&href(file)).raw("\">").name(&format!("{}/{}", file.dir, file.name));
        page.raw("</a></td><td>").text(purpose).raw("</td>").number(&format_size(file.attr.size)).raw("</tr>\n");
    }
    page.raw("</tbody></table>\n");
    if let Some(file) = files.iter().find(|file| file.dir == "npy").or(files.first()) {
        let above: String = place.path.iter().map(|name| String::from_utf8_lossy(name).into_owned() + "/").collect();
        let path = format!("{above}{}/{}", file.dir, file.name);
        let words = [place.site, &path].map(|word| shell_word(Path::new(word)));
        page.raw("<p>Without this server: <code>weightfs cat ").text(&words.join(" ")).raw("</code></p>");
    }
    page.raw("</section>\n");
}

/// The URL of a file, from the page of its model.
fn href(file: &TensorFile) -> String {
    format!("{}/{}", file.dir, url::encode_url(file.name.as_bytes()))
}
