//! Pages of listings in XML. `object_store` refuses a whole page for one key that it cannot parse, so the entries of
//! such keys are taken out before it receives the page. Pure.

use percent_encoding::percent_decode_str;
use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};

use super::super::skipped::SkippedNames;
use crate::remote::location::check_path;

/// The longest page, in bytes. Azure has 5,000 entries in a page, with metadata of some kilobytes each at most.
pub(super) const PAGE: u64 = 64 << 20;

/// The extension of a request for a page of a listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListingRequest;

/// The page without the entries that are no files: markers of folders, which are empty and whose keys end with a slash,
/// and keys that cannot be paths, which are counted in the second value. `None` if the page cannot be parsed.
pub(super) fn readable_entries(page: &[u8]) -> Option<(Vec<u8>, SkippedNames)> {
    // The positions of the reader do not count the byte order mark, which Azure sends.
    let page = page.strip_prefix("\u{feff}".as_bytes()).unwrap_or(page);
    let mut reader = Reader::from_reader(page);
    reader.config_mut().expand_empty_elements = true;
    let (mut kept, mut copied, mut skipped) = (Vec::with_capacity(page.len()), 0, SkippedNames::default());
    // The element inside the root, as a path of names.
    let (mut depth, mut path) = (0, String::new());
    let (mut entry, mut start, mut text) = (ListedKey::default(), 0, String::new());
    loop {
        let before = usize::try_from(reader.buffer_position()).ok()?;
        match reader.read_event().ok()? {
            Event::Start(tag) => {
                if depth > 0 {
                    path.push('/');
                    path.push_str(str::from_utf8(tag.local_name().as_ref()).ok()?);
                }
                depth += 1;
                text.clear();
                match path.as_str() {
                    "/Contents" | "/Blobs/Blob" => (entry, start) = (ListedKey::default(), before),
                    "/Blobs/Blob/Name" => entry.is_encoded = is_encoded(&tag),
                    _ => {}
                }
            }
            Event::Text(part) => text.push_str(str::from_utf8(&part).ok()?),
            Event::CData(part) => text.push_str(str::from_utf8(&part).ok()?),
            Event::GeneralRef(reference) => text.push_str(&referenced(&reference)?),
            Event::End(_) => {
                match path.as_str() {
                    "/Contents/Key" | "/Blobs/Blob/Name" => entry.key = std::mem::take(&mut text),
                    "/Contents/Size" | "/Blobs/Blob/Properties/Content-Length" => entry.is_empty = text.trim() == "0",
                    "/Contents" | "/Blobs/Blob" if !entry.is_file(&mut skipped) => {
                        kept.extend_from_slice(page.get(copied..start)?);
                        copied = usize::try_from(reader.buffer_position()).ok()?;
                    }
                    _ => {}
                }
                depth -= 1;
                path.truncate(path.rfind('/').unwrap_or(0));
            }
            Event::Eof if depth == 0 => break,
            Event::Eof => return None,
            _ => {}
        }
    }
    kept.extend_from_slice(page.get(copied..)?);
    Some((kept, skipped))
}

#[derive(Default)]
struct ListedKey {
    key: String,
    is_empty: bool,
    /// Whether Azure has encoded the name, because it contains characters that XML does not have.
    is_encoded: bool,
}

impl ListedKey {
    /// Whether the key is that of a file. Counts it in `skipped` if it cannot be shown.
    fn is_file(&self, skipped: &mut SkippedNames) -> bool {
        if self.is_encoded {
            skipped.add(&percent_decode_str(&self.key).decode_utf8_lossy());
            return false;
        }
        let is_folder = self.key.ends_with('/');
        let is_path = !self.key.is_empty() && check_path(self.key.strip_suffix('/').unwrap_or(&self.key)).is_ok();
        if !is_path || is_folder && !self.is_empty {
            skipped.add(&self.key);
        }
        is_path && !is_folder
    }
}

fn is_encoded(tag: &BytesStart<'_>) -> bool {
    let encoded = tag.try_get_attribute("Encoded").ok().flatten();
    encoded.is_some_and(|encoded| &*encoded.value == b"true")
}

/// The text of an entity. A control character stands for an unknown reference, so that the key is skipped.
fn referenced(reference: &BytesRef<'_>) -> Option<String> {
    let name = str::from_utf8(reference).ok()?;
    Some(match reference.resolve_char_ref() {
        Ok(Some(char)) => char.to_string(),
        _ => resolve_predefined_entity(name).unwrap_or("\0").to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page that remains, and what is skipped.
    fn readable(page: &str) -> Option<(String, String)> {
        let (kept, skipped) = readable_entries(page.as_bytes())?;
        Some((String::from_utf8(kept).unwrap(), skipped.to_string()))
    }

    fn s3(entries: &[(&str, u64)]) -> String {
        let entry = |(key, size): &(&str, u64)| format!("<Contents><Key>{key}</Key><Size>{size}</Size></Contents>");
        let entries: Vec<String> = entries.iter().map(entry).collect();
        format!("<?xml version=\"1.0\"?>\n<ListBucketResult><Name>a//b</Name>{}</ListBucketResult>", entries.join("\n"))
    }

    #[test]
    fn keys_that_cannot_be_paths_are_taken_out_and_named() {
        let good = [("x", 1), ("a b+?#%ü.gguf", 1), ("x/&amp;&lt;&#252;", 0), ("..x", 1), (" x ", 1)];
        let page = s3(&good);
        assert_eq!(readable(&page), Some((page.clone(), "(0 in all): ".to_owned())));
        let bad = ["a//b", "/a", "a/../b", ".", "a\tb", "a&#9;b", "a&#x1;b", "a&#0;b", "a&unknown;b", "", "a//", "/"];
        for key in bad {
            let page = s3(&[("x", 1), (key, 1), ("y", 1)]);
            let (kept, skipped) = readable(&page).unwrap();
            assert_eq!(kept.replace('\n', ""), s3(&[("x", 1), ("y", 1)]).replace('\n', ""), "{key}");
            assert!(skipped.starts_with("(1 in all)"), "{key}: {skipped}");
        }
        let (_, skipped) = readable(&s3(&[("a\tb", 1), ("a//&quot;", 1)])).unwrap();
        assert!(skipped.ends_with(r#""a\tb", "a//\"""#), "{skipped}");
    }

    #[test]
    fn markers_of_folders_are_no_files_and_objects_with_bytes_are() {
        let (kept, skipped) = readable(&s3(&[("dir/", 0), ("full/", 1)])).unwrap();
        assert!(!kept.contains("<Key>"), "{kept}");
        assert!(skipped.starts_with("(1 in all)") && skipped.ends_with("\"full/\""), "{skipped}");
    }

    #[test]
    fn names_of_azure_are_found_beside_metadata() {
        let blob = |name: &str| {
            format!(
                "<Blob>{name}<Properties><Content-Length>5</Content-Length></Properties><Metadata><Name>a//b</Name>\
                <Size>0</Size></Metadata><Tags><TagSet><Tag><Key>a//b</Key></Tag></TagSet></Tags></Blob>"
            )
        };
        let page =
            |blobs: &str| format!("<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker /></EnumerationResults>");
        let (good, odd) = (blob("<Name>x</Name>"), blob("<Name Encoded=\"true\">a%01%EF%BF%BE</Name>"));
        let both = page(&format!("{odd}{good}<BlobPrefix><Name>c//</Name></BlobPrefix>{}", blob("<Name>d//</Name>")));
        let (kept, skipped) = readable(&format!("\u{feff}{both}")).unwrap();
        assert_eq!(kept, page(&format!("{good}<BlobPrefix><Name>c//</Name></BlobPrefix>")));
        assert!(
            skipped.starts_with("(2 in all)") && skipped.contains("\\u{1}") && skipped.ends_with("\"d//\""),
            "{skipped}"
        );
    }

    #[test]
    fn pages_that_are_not_xml_are_left_alone() {
        for page in ["<a", "<a><b></a>", "<a>", "<a><Contents><Key>a//b</Key></Contents>", "<a>\u{fffd}</b></a>"] {
            assert_eq!(readable(page), None, "{page}");
        }
        assert_eq!(readable("").unwrap().0, "");
        assert!(readable_entries(b"<a>\xff</a>").is_none());
    }

    proptest::proptest! {
        #[test]
        fn parsing_never_panics(page in "(</?(Contents|Key|Blobs|Blob|Name|a)/?>|&#?[0-9a-z]{0,3};|\\PC){0,40}") {
            let _ = readable_entries(page.as_bytes());
        }
    }
}
