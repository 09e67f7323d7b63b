//! The tokenizer section: the byte tokenizer BTOK, which is a few numbers, or BPE1 with tokens and merges.

use super::error::SlmFault;
use crate::format::header::HeaderBuilder;
use crate::format::metadata::{MetadataValue, ScalarType};
use crate::text::write_json_string;
use std::collections::HashSet;
use std::fmt::Write;

/// The special tokens of both tokenizers, in the order of the section.
const SPECIAL: [&str; 4] = ["bos", "eos", "pad", "unk"];

/// Reads the section. Adds it to the metadata of a header, exactly as it is and as numbers and lists.
///
/// The documentation gives the fields and their order, and the sizes of the fixed parts: 28 and 36 bytes. So every
/// field is taken to be a 32-bit number.
pub fn read_tokenizer(section: &[u8], vocabulary: u32, builder: &mut HeaderBuilder) -> Result<(), SlmFault> {
    let kind = section.get(..4).unwrap_or(section);
    let is_bpe = kind == b"BPE1";
    if !is_bpe && kind != b"BTOK" {
        return Err(SlmFault::Kind { found: String::from_utf8_lossy(kind).into_owned() });
    }
    let mut cursor = TokenizerCursor { section, at: 4 };
    let version = cursor.u32()?;
    if version != 1 {
        return Err(SlmFault::TokenizerVersion { version });
    }
    let found = cursor.u32()?;
    if found != vocabulary {
        return Err(SlmFault::Vocabulary { found, expected: vocabulary });
    }
    let number = |number: u32| MetadataValue::scalar(ScalarType::U32, number.to_string());
    let mut values = vec![("tokenizer.type".to_owned(), String::from_utf8_lossy(kind)[..].into())];
    for name in SPECIAL {
        values.push((format!("tokenizer.{name}_token_id"), number(cursor.token(vocabulary)?)));
    }
    if is_bpe {
        let (tokens, merges) = (cursor.u32()?, cursor.u32()?);
        let (ids, texts, known) = read_tokens(&mut cursor, tokens, vocabulary)?;
        values.push(("tokenizer.token_ids".to_owned(), MetadataValue::array(ScalarType::U32, ids)));
        values.push(("tokenizer.tokens".to_owned(), MetadataValue::array(ScalarType::String, texts)));
        values.push(("tokenizer.merges".to_owned(), read_merges(&mut cursor, merges, vocabulary, &known)?));
    }
    if cursor.at < section.len() {
        return Err(SlmFault::TokenizerLength { len: section.len() as u64, expected: cursor.at as u64 });
    }
    let name = if is_bpe { "tokenizer.BPE1" } else { "tokenizer.BTOK" };
    builder.metadata(name.to_owned(), MetadataValue::bytes_of(section));
    values.into_iter().for_each(|(key, value)| builder.metadata(key, value));
    Ok(())
}

/// The numbers of the tokens, their bytes as text, and the set of the numbers.
fn read_tokens(
    cursor: &mut TokenizerCursor,
    count: u32,
    vocabulary: u32,
) -> Result<(String, String, HashSet<u32>), SlmFault> {
    let (mut ids, mut texts, mut known) = (String::new(), Vec::new(), HashSet::new());
    for _ in 0..count {
        let token = cursor.token(vocabulary)?;
        let len = cursor.u32()?;
        let bytes = cursor.take(len.into())?;
        if bytes.is_empty() {
            return Err(SlmFault::TokenEmpty { token });
        }
        if !known.insert(token) {
            return Err(SlmFault::TokenTwice { token });
        }
        // Writing to a string or a vector cannot fail.
        let _ = writeln!(ids, "{token}");
        let _ = write_json_string(&String::from_utf8_lossy(bytes), &mut texts);
        texts.push(b'\n');
    }
    Ok((ids, String::from_utf8(texts).unwrap_or_default(), known))
}

/// The tokens of the byte tokenizer, which every vocabulary begins with: the bytes and the special tokens.
const BYTE_TOKENS: u32 = 260;

/// The merges, each as an array of the left, the right and the new token, and the rank.
fn read_merges(
    cursor: &mut TokenizerCursor,
    count: u32,
    vocabulary: u32,
    known: &HashSet<u32>,
) -> Result<MetadataValue, SlmFault> {
    let mut merges = String::new();
    for merge in 0..count {
        let [left, right, output] = [cursor.token(vocabulary)?, cursor.token(vocabulary)?, cursor.token(vocabulary)?];
        let rank = cursor.u32()?;
        if output >= BYTE_TOKENS && !known.contains(&output) {
            return Err(SlmFault::Merge { merge, token: output });
        }
        let _ = writeln!(merges, "\"{left} {right} {output} {rank}\"");
    }
    Ok(MetadataValue::array(ScalarType::String, merges))
}

struct TokenizerCursor<'s> {
    section: &'s [u8],
    at: usize,
}

impl<'s> TokenizerCursor<'s> {
    fn take(&mut self, len: u64) -> Result<&'s [u8], SlmFault> {
        let end = self.at as u64 + len;
        let found = usize::try_from(end).ok().and_then(|end| self.section.get(self.at..end));
        let found = found.ok_or(SlmFault::TokenizerLength { len: self.section.len() as u64, expected: end })?;
        self.at = end as usize;
        Ok(found)
    }

    fn u32(&mut self) -> Result<u32, SlmFault> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    /// The number of a token.
    fn token(&mut self, vocabulary: u32) -> Result<u32, SlmFault> {
        match self.u32()? {
            token if token < vocabulary => Ok(token),
            token => Err(SlmFault::Token { token, vocabulary }),
        }
    }
}
