//! The parts that pages share. All text is escaped here.

use super::query::PageRequest;
use crate::model::TensorId;
use crate::serve::url;
use crate::text::{printable, shorten};
use crate::units::{format_size, grouped};
use std::fmt::{Display, Write};

pub const ASSET: &str = "asset";

/// Maximum length of a name in a page, in bytes. Longer ones are cut in the middle.
pub(super) const NAME_MAX: usize = 160;

pub(super) struct HtmlPage {
    html: String,
}

impl HtmlPage {
    pub fn new(title: &str) -> Self {
        let mut page = Self { html: String::with_capacity(16 << 10) };
        page.raw(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
                  <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>",
        );
        page.name(title).raw(" · weightfs</title><link rel=\"icon\" href=\"/?").raw(ASSET).raw("=icon.svg\">");
        page.raw("<link rel=\"stylesheet\" href=\"/?").raw(ASSET).raw("=style.css\">");
        page.raw("<script src=\"/?").raw(ASSET).raw("=script.js\" defer></script></head>\n<body>\n");
        page
    }

    /// Begins the page of a place, with the path to it.
    pub fn at(asked: &PageRequest, title: &str) -> Self {
        let mut page = Self::new(title);
        page.raw("<nav aria-label=\"Path\"><a href=\"/\" title=\"").name(asked.site).raw("\">");
        page.name(asked.root()).raw("</a>");
        let mut href = String::from("/");
        for name in asked.path {
            href = href + &url::encode_url(name) + "/";
            page.raw(" / ").link(&href, &String::from_utf8_lossy(name));
        }
        page.raw("</nav>\n");
        page
    }

    pub fn end(mut self) -> String {
        self.raw("\n</body></html>\n");
        self.html
    }

    /// Adds HTML. It has no text from files or requests.
    pub fn raw(&mut self, html: &str) -> &mut Self {
        self.html.push_str(html);
        self
    }

    /// Adds a number or another value whose text has no special characters.
    pub fn show(&mut self, value: impl Display) -> &mut Self {
        // Writing to a string cannot fail.
        let _ = write!(self.html, "{value}");
        self
    }

    /// Adds text. Characters that are invisible or change the direction of text are shown as escapes.
    pub fn text(&mut self, text: &str) -> &mut Self {
        for char in printable(text).chars() {
            match char {
                '&' => self.html.push_str("&amp;"),
                '<' => self.html.push_str("&lt;"),
                '>' => self.html.push_str("&gt;"),
                '"' => self.html.push_str("&quot;"),
                '\'' => self.html.push_str("&#39;"),
                char => self.html.push(char),
            }
        }
        self
    }

    pub fn lines(&mut self, text: &str) -> &mut Self {
        for (at, line) in text.split('\n').enumerate() {
            self.raw(if at == 0 { "" } else { "\n" }).text(line);
        }
        self
    }

    /// Adds a name, which is cut if it is long.
    pub fn name(&mut self, name: &str) -> &mut Self {
        self.text(&shorten(name, NAME_MAX))
    }

    pub fn link(&mut self, href: &str, name: &str) -> &mut Self {
        self.raw("<a href=\"").text(href).raw("\">").name(name).raw("</a>")
    }

    pub fn tensor_link(&mut self, id: TensorId, name: &str) -> &mut Self {
        self.link(&format!("?tensor={}", id.index()), shown_name(name))
    }

    /// Begins a table. The titles of columns of numbers are at the right edge.
    pub fn table(&mut self, columns: &[(&str, bool)]) -> &mut Self {
        self.raw("<table><thead><tr>");
        for (title, is_number) in columns {
            self.raw("<th scope=\"col\"").raw(if *is_number { " class=\"n\">" } else { ">" }).raw(title).raw("</th>");
        }
        self.raw("</tr></thead><tbody>\n")
    }

    pub fn cell(&mut self, text: &str) -> &mut Self {
        self.raw("<td>").name(text).raw("</td>")
    }

    /// Adds a cell of a table with a number at its right edge.
    pub fn number(&mut self, text: &str) -> &mut Self {
        self.raw("<td class=\"n\">").text(text).raw("</td>")
    }

    /// Adds a fact to a list, unless there is no value.
    pub fn fact(&mut self, name: &str, value: &str) -> &mut Self {
        if value.is_empty() { self } else { self.facts(name, &[value]) }
    }

    pub fn facts(&mut self, name: &str, values: &[impl AsRef<str>]) -> &mut Self {
        if !values.is_empty() {
            self.raw("<dt>").text(name).raw("</dt>");
        }
        for value in values {
            self.raw("<dd>").text(value.as_ref()).raw("</dd>");
        }
        self
    }

    /// Adds the filter of the rows, and the number of those that it finds, which screen readers announce.
    pub fn filter(&mut self, asked: &PageRequest, what: &str, count: &str) -> &mut Self {
        self.raw("<form id=\"filter\" role=\"search\" data-swap=\"rows\"><label>Filter ");
        self.raw("<input type=\"search\" name=\"q\" value=\"").text(&asked.query.q).raw("\" placeholder=\"").text(what);
        self.raw("\" maxlength=\"256\"></label> <button>Show</button> <span id=\"count\" role=\"status\" ");
        self.raw("aria-live=\"polite\">").text(count).raw("</span></form>\n")
    }

    /// Adds the other parameters that the filter keeps. They belong to the rows, so that they are replaced together.
    pub fn kept(&mut self, parameters: &[(&str, &str)]) -> &mut Self {
        for (name, value) in parameters.iter().filter(|(_, value)| !value.is_empty()) {
            self.raw("<input type=\"hidden\" form=\"filter\" name=\"")
                .raw(name)
                .raw("\" value=\"")
                .text(value)
                .raw("\">");
        }
        self
    }

    /// Adds links to the pages of a list before and after page number `page`, counted from 0.
    pub fn pages(&mut self, page: usize, pages: usize, parameters: &[(&str, &str)]) -> &mut Self {
        if pages <= 1 {
            return self;
        }
        let links = [page, page + 2].map(|page| query_of(parameters, &[("page", &page.to_string())]));
        self.raw("<p class=\"pages\">");
        if page > 0 {
            self.raw("<a rel=\"prev\" href=\"").text(&links[0]).raw("\">← previous</a> ");
        }
        self.raw("page ").show(page + 1).raw(" of ").text(&grouped(pages as u64));
        if page + 1 < pages {
            self.raw(" <a rel=\"next\" href=\"").text(&links[1]).raw("\">next →</a>");
        }
        self.raw("</p>\n")
    }
}

/// A query with parameters of a page and others, without empty ones.
pub(super) fn query_of(parameters: &[(&str, &str)], others: &[(&str, &str)]) -> String {
    let mut query = String::from("?");
    for (name, value) in parameters.iter().chain(others).filter(|(_, value)| !value.is_empty()) {
        if query.len() > 1 {
            query.push('&');
        }
        query.extend([name, "=", &url::encode_url(value.as_bytes())]);
    }
    query
}

/// The number of pages of `rows`, at least one; the page `page` or the last one; and its rows.
pub(super) fn paged<T>(rows: &[T], each: usize, page: usize) -> (usize, usize, &[T]) {
    let pages = rows.len().div_ceil(each).max(1);
    let page = page.min(pages - 1);
    (pages, page, &rows[page * each..rows.len().min((page + 1) * each)])
}

/// A size, and exactly if it is rounded.
pub(super) fn exact_size(bytes: u64) -> String {
    if bytes < 1000 { format_size(bytes) } else { format!("{} ({} bytes)", format_size(bytes), grouped(bytes)) }
}

/// Whether all `words`, which are in lower case, occur in `name`.
pub(super) fn has_words(name: &str, words: &[String]) -> bool {
    if words.is_empty() {
        return true;
    }
    let name = name.to_lowercase();
    words.iter().all(|word| name.contains(&word[..]))
}

/// The name of a tensor, or a word for the empty name.
pub(super) fn shown_name(name: &str) -> &str {
    if name.is_empty() { "(no name)" } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_files_is_escaped_and_cut() {
        let mut page = HtmlPage { html: String::new() };
        page.text("<script>alert('x')</script>&\"\u{202e}\u{0}");
        assert_eq!(page.html, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;\\u{202e}\\u{0}");
        let mut page = HtmlPage { html: String::new() };
        page.name(&"<".repeat(65_536));
        assert!(page.html.len() < 5 * NAME_MAX && page.html.contains("bytes"), "{}", page.html);
    }

    #[test]
    fn queries_are_built_from_what_is_set() {
        assert_eq!(query_of(&[("q", "a b&c"), ("sort", "")], &[("page", "2")]), "?q=a%20b%26c&page=2");
        assert_eq!(query_of(&[], &[]), "?");
    }

    #[test]
    fn last_page_stands_for_all_later_ones() {
        let place = |rows, page| {
            let (pages, page, shown) = paged(&[(); 500][..rows], 200, page);
            (pages, page, shown.len())
        };
        assert_eq!(place(0, 5), (1, 0, 0));
        assert_eq!(place(200, 1), (1, 0, 200));
        assert_eq!(place(201, 1), (2, 1, 1));
        assert_eq!(place(201, usize::MAX), (2, 1, 1));
        assert_eq!(place(500, 1), (3, 1, 200));
    }
}
