//! Pages for people. They work without JavaScript; the script only saves reloading.

mod directory;
mod html;
mod model;
mod tensor;
mod treemap;

use crate::content::Request;
use crate::fs::{Error, Ino, Superblock};
use crate::model::TensorId;
use crate::serve::url;
use html::Page;

/// The name of the query parameter for the parts of pages.
pub(super) const ASSET: &str = "asset";

/// The type and the text of a part of the pages: the style sheet or the script.
pub(super) fn asset(name: &str) -> Option<(&'static str, &'static str)> {
    match name {
        "style.css" => Some(("text/css; charset=utf-8", include_str!("style.css"))),
        "script.js" => Some(("text/javascript; charset=utf-8", include_str!("script.js"))),
        _ => None,
    }
}

/// Where a page is.
pub(super) struct Place<'p> {
    /// The source of the server.
    pub site: &'p str,
    /// The path of the directory.
    pub path: &'p [Vec<u8>],
    /// Its inode number.
    pub ino: Ino,
}

impl Place<'_> {
    /// The name of the last directory, or of the source.
    fn name(&self) -> String {
        match self.path.last() {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            None => self.site.rsplit('/').find(|part| !part.is_empty()).unwrap_or(self.site).to_owned(),
        }
    }
}

/// The parameters of a page that are understood. What is not understood has its default.
#[derive(Debug, Default, PartialEq, Eq)]
struct Query {
    /// Words that must occur in names.
    q: String,
    sort: String,
    /// From 0.
    page: usize,
    prefix: String,
    tensor: Option<usize>,
    /// Whether figures are computed even if that takes long.
    figures: bool,
}

/// Maximum length of the words to look for, in bytes. More than the longest name that a person types.
const WORDS_MAX: usize = 256;

impl Query {
    fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (name, mut value) in url::parameters(query) {
            match &name[..] {
                "q" => {
                    value.truncate(value.floor_char_boundary(WORDS_MAX));
                    parsed.q = value;
                }
                "sort" => parsed.sort = value,
                "page" => parsed.page = value.parse().unwrap_or(1_usize).saturating_sub(1),
                "prefix" => parsed.prefix = value,
                "tensor" => parsed.tensor = value.parse().ok(),
                "figures" => parsed.figures = true,
                _ => {}
            }
        }
        parsed
    }

    /// The words to look for, in lower case.
    fn words(&self) -> Vec<String> {
        self.q.split_whitespace().map(str::to_lowercase).collect()
    }
}

/// The page of a directory. That of the root of a model describes the model, or one of its tensors.
pub(super) fn page(superblock: &Superblock, place: &Place, query: &str, wants: &Request) -> Result<String, Error> {
    let query = Query::parse(query);
    match superblock.model(place.ino, wants)? {
        None => directory::page(superblock, place, &query, wants),
        Some(model) => match query.tensor.map(|number| (u32::try_from(number), number)) {
            None => model::page(superblock, place, model, &query, wants),
            Some((Ok(_), number)) if model.get(TensorId::new(number)).is_some() => {
                tensor::page(superblock, place, model, TensorId::new(number), &query, wants)
            }
            Some(_) => Err(Error::NoEntry),
        },
    }
}

/// A page about a request that failed.
pub(super) fn failure(title: &str, text: &str) -> String {
    let mut page = Page::new(title);
    page.raw("<main><h1>").text(title).raw("</h1><p>").text(text).raw("</p></main>");
    page.end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_that_make_no_sense_have_defaults() {
        let page = |text: &str| Query::parse(&format!("page={text}")).page;
        let pages = ["", "0", "1", "2", "-1", "x", "18446744073709551615", "18446744073709551616"].map(page);
        assert_eq!(pages, [0, 0, 0, 1, 0, 0, usize::MAX - 1, 0]);
        assert_eq!(Query::parse("tensor=x&sort=%00&other=1&figures").tensor, None);
        assert!(Query::parse("figures").figures);
        let long = Query::parse(&format!("q={}", "%C3%A9+".repeat(5000)));
        assert!(long.q.len() <= WORDS_MAX && long.words().len() < 100, "{}", long.q.len());
    }
}
