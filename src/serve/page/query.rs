//! What a page is about: its place and the parameters in its URL.

use crate::fs::Ino;
use crate::serve::url;

/// Where a page is.
pub struct Place<'p> {
    /// The source of the server.
    pub site: &'p str,
    /// The path of the directory.
    pub path: &'p [Vec<u8>],
    /// Its inode number.
    pub ino: Ino,
}

impl Place<'_> {
    /// The name of the last directory, or of the source.
    pub fn name(&self) -> String {
        match self.path.last() {
            Some(name) => String::from_utf8_lossy(name).into_owned(),
            None => self.site.rsplit('/').find(|part| !part.is_empty()).unwrap_or(self.site).to_owned(),
        }
    }
}

/// The parameters of a page that are understood. What is not understood has its default.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Words that must occur in names.
    pub q: String,
    pub sort: String,
    /// From 0.
    pub page: usize,
    pub prefix: String,
    pub tensor: Option<usize>,
    /// Whether figures are computed even if that takes long.
    pub figures: bool,
}

/// Maximum length of the words to look for, in characters. More than a person types.
const WORDS_MAX: usize = 256;

impl Query {
    /// Understands what it can.
    pub fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (name, value) in url::parameters(query) {
            match &name[..] {
                "q" => parsed.q = value.chars().take(WORDS_MAX).collect(),
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
    pub fn words(&self) -> Vec<String> {
        self.q.split_whitespace().map(str::to_lowercase).collect()
    }
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
        assert!(long.q.chars().count() <= WORDS_MAX && long.words().len() <= WORDS_MAX, "{}", long.q.len());
    }
}
