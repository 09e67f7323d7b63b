//! The page of a directory that is not the root of a model.

use super::html::{HtmlPage, has_words, paged};
use super::query::{PagePlace, PageQuery};
use crate::content::ReadRequest;
use crate::fs::{Error, FileKind, Ino, Superblock};
use crate::serve::url;
use crate::units::{format_size, plural};
use jiff::Timestamp;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Number of rows on a page.
const ROWS: usize = 500;

/// A name in a directory.
pub(super) struct DirectoryRow {
    name: OsString,
    ino: Ino,
    kind: FileKind,
}

/// The names in a directory that contain all `words`, in its order.
pub(super) fn directory_rows(
    superblock: &Superblock,
    ino: Ino,
    words: &[String],
    wants: &ReadRequest,
) -> Result<Vec<DirectoryRow>, Error> {
    let mut entries = Vec::new();
    superblock.readdir(ino, 0, wants, |entry| {
        let name = entry.name.into_owned();
        if name != "." && name != ".." && has_words(&name.to_string_lossy(), words) {
            entries.push(DirectoryRow { name, ino: entry.ino, kind: entry.kind });
        }
        false
    })?;
    Ok(entries)
}

/// Writes a table of entries with links and sizes.
pub(super) fn directory_table(
    superblock: &Superblock,
    entries: &[DirectoryRow],
    page: &mut HtmlPage,
    wants: &ReadRequest,
) -> Result<(), Error> {
    page.raw(
        "<table><thead><tr><th scope=\"col\">Name</th><th scope=\"col\" class=\"n\">Modified (UTC)</th>\
         <th scope=\"col\" class=\"n\">Size</th></tr></thead><tbody>\n",
    );
    for DirectoryRow { name, ino, kind } in entries {
        let slash = if *kind == FileKind::Dir { "/" } else { "" };
        let shown = name.to_string_lossy();
        page.raw("<tr><td>");
        if *kind == FileKind::Link {
            page.name(&shown).raw(" <span class=\"dim\">link, not served</span></td><td></td><td></td></tr>\n");
            continue;
        }
        page.raw("<a href=\"").raw(&url::encode_url(name.as_bytes())).raw(slash).raw("\">").name(&shown).raw(slash);
        page.raw("</a></td>");
        // The facts of a file that cannot be opened now are left out.
        match superblock.getattr(*ino, wants) {
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

/// The page.
pub(super) fn directory_page(
    superblock: &Superblock,
    place: &PagePlace,
    query: &PageQuery,
    wants: &ReadRequest,
) -> Result<String, Error> {
    let entries = directory_rows(superblock, place.ino, &query.words(), wants)?;
    let (pages, at) = paged(entries.len(), ROWS, query.page);
    let shown = &entries[(at * ROWS).min(entries.len())..((at + 1) * ROWS).min(entries.len())];
    let name = place.name();
    let mut page = HtmlPage::at(place, &name);
    page.raw("<main><h1>").name(&name).raw("</h1>\n");
    page.filter(query, "part of a name");
    page.raw("<section id=\"rows\"><p>").text(&plural(entries.len() as u64, "name")).raw("</p>\n");
    directory_table(superblock, shown, &mut page, wants)?;
    page.pages(at, pages, &[("q", &query.q)]);
    page.raw("</section></main>");
    Ok(page.end())
}
