//! Pages for people. They work without JavaScript; the script only saves reloading.

mod directory;
mod html;
mod model;
mod query;
mod tensor;
mod treemap;

pub(super) use html::ASSET;
pub(super) use query::{PageQuery, PageRequest};

use crate::fs::Error;
use crate::model::TensorId;
use html::HtmlPage;

/// The type and the text of a part of the pages: the style sheet, the script or the icon.
pub(super) fn asset(name: &str) -> Option<(&'static str, &'static str)> {
    match name {
        "style.css" => Some(("text/css; charset=utf-8", include_str!("style.css"))),
        "icon.svg" => Some(("image/svg+xml", include_str!("icon.svg"))),
        "script.js" => Some(("text/javascript; charset=utf-8", include_str!("script.js"))),
        _ => None,
    }
}

/// The page of a directory. That of the root of a model describes the model, or one of its tensors.
pub(super) fn render_page(asked: &PageRequest) -> Result<String, Error> {
    match asked.superblock.model(asked.ino, asked.wants)? {
        None => directory::directory_page(asked),
        Some(model) => match asked.query.tensor.map(|number| (u32::try_from(number), number)) {
            None => model::model_page(asked, model),
            Some((Ok(_), number)) if model.contains(TensorId::new(number)) => {
                tensor::tensor_page(asked, model, TensorId::new(number))
            }
            Some(_) => Err(Error::NoEntry),
        },
    }
}

pub(super) fn failure_page(title: &str, text: &str) -> String {
    let mut page = HtmlPage::new(title);
    page.raw("<main><h1>").text(title).raw("</h1><p>").text(text).raw("</p><p><a href=\"/\">All files</a></p></main>");
    page.end()
}
