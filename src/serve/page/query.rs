//! A request for a page, and the parameters in its URL.

use crate::content::ReadRequest;
use crate::fs::{Ino, Superblock};
use crate::serve::url;

pub struct PageRequest<'p> {
    pub superblock: &'p Superblock,
    pub site: &'p str,
    /// The path of the directory, and its inode number.
    pub path: &'p [Vec<u8>],
    pub ino: Ino,
    pub query: PageQuery,
    pub wants: &'p ReadRequest<'p>,
}

impl PageRequest<'_> {
    /// The name of the last directory, or of the source.
    pub fn name(&self) -> String {
        self.path.last().map_or_else(|| self.root().to_owned(), |name| String::from_utf8_lossy(name).into_owned())
    }

    /// The name of the source, without the directories above it.
    pub fn root(&self) -> &str {
        self.site.rsplit('/').find(|part| !part.is_empty()).unwrap_or(self.site)
    }
}

/// The parameters of a page that are understood. What is not understood has its default.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PageQuery {
    /// Words that must occur in names.
    pub q: String,
    pub sort: String,
    /// From 0.
    pub page: usize,
    pub prefix: String,
    /// The part of the groups below the prefix, as [`super::treemap`] writes it.
    pub part: String,
    pub tensor: Option<usize>,
    /// Whether statistics are computed even if that takes long.
    pub statistics: bool,
}

/// Maximum length of the words to look for, in characters. More than a person types.
const WORDS_MAX: usize = 256;

/// Maximum number of words. Each is looked for in the name of every tensor.
const WORDS: usize = 16;

/// Maximum length of a prefix of names, in bytes. It is repeated in many links of a page.
pub(super) const PREFIX_MAX: usize = 1024;

/// Maximum length of a part, in bytes: three numbers of 64 bits.
const PART_MAX: usize = 64;

/// Maximum length of the name of an order, in bytes.
const SORT_MAX: usize = 32;

impl PageQuery {
    pub fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (name, value) in url::parameters(query) {
            match &name[..] {
                "q" => parsed.q = value.chars().take(WORDS_MAX).collect(),
                "sort" if value.len() <= SORT_MAX => parsed.sort = value,
                "page" => parsed.page = value.parse().unwrap_or(1_usize).saturating_sub(1),
                "prefix" if value.len() <= PREFIX_MAX => parsed.prefix = value,
                "part" if value.len() <= PART_MAX => parsed.part = value,
                "tensor" => parsed.tensor = value.parse().ok(),
                "statistics" => parsed.statistics = true,
                _ => {}
            }
        }
        parsed
    }

    /// The words to look for, in lower case.
    pub fn words(&self) -> Vec<String> {
        self.q.split_whitespace().take(WORDS).map(str::to_lowercase).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_that_make_no_sense_have_defaults() {
        let page = |text: &str| PageQuery::parse(&format!("page={text}")).page;
        let pages = ["", "0", "1", "2", "-1", "x", "18446744073709551615", "18446744073709551616"].map(page);
        assert_eq!(pages, [0, 0, 0, 1, 0, 0, usize::MAX - 1, 0]);
        assert_eq!(PageQuery::parse("tensor=x&sort=%00&other=1&statistics").tensor, None);
        assert!(PageQuery::parse("statistics").statistics);
        let long = PageQuery::parse(&format!("q={}&prefix={}", "%C3%A9+".repeat(5000), "a".repeat(PREFIX_MAX + 1)));
        assert_eq!((long.q.chars().count(), long.words().len(), long.prefix.len()), (WORDS_MAX, WORDS, 0));
        assert_eq!(PageQuery::parse(&format!("part={}", "1".repeat(PART_MAX + 1))).part, "");
    }
}
