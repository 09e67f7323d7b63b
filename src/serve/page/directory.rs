//! The page of a directory that is not the root of a model.

use super::html::{HtmlPage, has_words, paged};
use super::query::PageRequest;
use crate::fs::{Error, FileKind, Ino};
use crate::serve::url;
use crate::units::{format_size, plural};
use jiff::Timestamp;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Number of rows on a page.
const ROWS: usize = 500;

pub(super) struct DirectoryRow {
    name: OsString,
    ino: Ino,
    kind: FileKind,
}

/// The names in a directory that contain all `words`, in its order.
pub(super) fn directory_rows(asked: &PageRequest, words: &[String]) -> Result<Vec<DirectoryRow>, Error> {
    let mut entries = Vec::new();
    asked.superblock.readdir(asked.ino, 0, asked.wants, |entry| {
        let name = entry.name.into_owned();
        if name != "." && name != ".." && has_words(&name.to_string_lossy(), words) {
            entries.push(DirectoryRow { name, ino: entry.ino, kind: entry.kind });
        }
        false
    })?;
    Ok(entries)
}

pub(super) fn directory_table(asked: &PageRequest, entries: &[DirectoryRow], page: &mut HtmlPage) -> Result<(), Error> {
    page.table(&[("Name", false), ("Modified (UTC)", true), ("Size", true)]);
    for DirectoryRow { name, ino, kind } in entries {
        let slash = if *kind == FileKind::Dir { "/" } else { "" };
        let shown = name.to_string_lossy();
        page.raw("<tr><td>");
        if *kind == FileKind::Link {
            page.name(&shown).raw(" <span class=\"dim\">link, not served</span></td><td></td><td></td></tr>\n");
            continue;
        }
        page.link(&(url::encode_url(name.as_bytes()) + slash), &format!("{shown}{slash}")).raw("</td>");
        // The facts of a file that cannot be opened now are left out.
        match asked.superblock.getattr(*ino, asked.wants) {
            Ok(attr) => {
                let time = Timestamp::try_from(attr.mtime).map(|time| time.strftime("%Y-%m-%d %H:%M").to_string());
                page.number(&time.unwrap_or_default());
                page.number(&if *kind == FileKind::File { format_size(attr.size) } else { String::new() });
            }
            Err(error) if error.would_block() => return Err(error),
            Err(_) => {
                page.raw("<td></td><td></td>");
            }
        }
        page.raw("</tr>\n");
    }
    page.raw("</tbody></table>\n");
    Ok(())
}

pub(super) fn directory_page(asked: &PageRequest) -> Result<String, Error> {
    let entries = directory_rows(asked, &asked.query.words())?;
    let (pages, at, shown) = paged(&entries, ROWS, asked.query.page);
    let name = asked.name();
    let mut page = HtmlPage::at(asked, &name);
    page.raw("<main><h1>").name(&name).raw("</h1>\n");
    page.filter(asked, "part of a name", &plural(entries.len() as u64, "name"));
    page.raw("<section id=\"rows\">\n");
    directory_table(asked, shown, &mut page)?;
    page.pages(at, pages, &[("q", &asked.query.q)]);
    page.raw("</section></main>");
    Ok(page.end())
}
