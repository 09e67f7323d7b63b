//! The tokenizer section: the byte tokenizer BTOK, which is a few numbers, or BPE1 with tokens and merges.

use crate::format::header::HeaderBuilder;
use crate::format::input::number_at;
use crate::format::metadata::{MetadataValue, ScalarType, push_line};
use crate::text::quote;
use std::collections::HashSet;

/// The special tokens of both tokenizers, in the order of the section.
const SPECIAL: [&str; 4] = ["bos", "eos", "pad", "unk"];

/// Reads the section. Adds it to the metadata of a header, exactly as it is and as numbers and lists.
///
/// The documentation gives the fields and their order, and the sizes of the fixed parts: 28 and 36 bytes. So every
/// field is taken to be a 32-bit number.
pub fn read_tokenizer(section: &[u8], vocabulary: u32, builder: &mut HeaderBuilder) -> Result<(), String> {
    let kind = section.get(..4).unwrap_or(section);
    let is_bpe = kind == b"BPE1";
    if !is_bpe && kind != b"BTOK" {
        let kind = quote(&String::from_utf8_lossy(kind));
        return Err(format!("it begins with {kind}, which is neither BTOK nor BPE1"));
    }
    let mut cursor = TokenizerCursor { section, at: 4 };
    let version = cursor.u32()?;
    if version != 1 {
        return Err(format!("version {version}; version 1 is supported"));
    }
    let found = cursor.u32()?;
    if found != vocabulary {
        return Err(format!("a vocabulary of {found} tokens, but the header gives {vocabulary}"));
    }
    let mut values = vec![("tokenizer.type".to_owned(), String::from_utf8_lossy(kind)[..].into())];
    for name in SPECIAL {
        values.push((
            format!("tokenizer.{name}_token_id"),
            MetadataValue::scalar(ScalarType::U32, cursor.token(vocabulary)?.to_string()),
        ));
    }
    if is_bpe {
        let (tokens, merges) = (cursor.u32()?, cursor.u32()?);
        let ([ids, texts], known) = read_tokens(&mut cursor, tokens, vocabulary)?;
        values.push(("tokenizer.token_ids".to_owned(), ids));
        values.push(("tokenizer.tokens".to_owned(), texts));
        values.push(("tokenizer.merges".to_owned(), read_merges(&mut cursor, merges, vocabulary, &known)?));
    }
    if cursor.at < section.len() {
        return Err(format!("{} bytes, but {} are needed", section.len(), cursor.at));
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
) -> Result<([MetadataValue; 2], HashSet<u32>), String> {
    let (mut ids, mut texts, mut known) = (Vec::new(), Vec::new(), HashSet::new());
    for _ in 0..count {
        let token = cursor.token(vocabulary)?;
        let len = cursor.u32()?;
        let bytes = cursor.take(len.into())?;
        if bytes.is_empty() {
            return Err(format!("token {token} has no bytes"));
        }
        if !known.insert(token) {
            return Err(format!("token {token} occurs twice"));
        }
        push_line(ScalarType::U32, &token.to_string(), &mut ids);
        push_line(ScalarType::String, &String::from_utf8_lossy(bytes), &mut texts);
    }
    Ok(([MetadataValue::array(ScalarType::U32, ids), MetadataValue::array(ScalarType::String, texts)], known))
}

/// The tokens of the byte tokenizer, which every vocabulary begins with: the bytes and the special tokens.
const BYTE_TOKENS: u32 = 260;

/// The merges, each as an array of the left, the right and the new token, and the rank.
fn read_merges(
    cursor: &mut TokenizerCursor,
    count: u32,
    vocabulary: u32,
    known: &HashSet<u32>,
) -> Result<MetadataValue, String> {
    let mut merges = Vec::new();
    for merge in 0..count {
        let [left, right, output] = [cursor.token(vocabulary)?, cursor.token(vocabulary)?, cursor.token(vocabulary)?];
        let rank = cursor.u32()?;
        if output >= BYTE_TOKENS && !known.contains(&output) {
            return Err(format!("merge {merge} makes token {output}, which is not in the table"));
        }
        push_line(ScalarType::String, &format!("{left} {right} {output} {rank}"), &mut merges);
    }
    Ok(MetadataValue::array(ScalarType::String, merges))
}

struct TokenizerCursor<'s> {
    section: &'s [u8],
    at: usize,
}

impl<'s> TokenizerCursor<'s> {
    fn take(&mut self, len: u64) -> Result<&'s [u8], String> {
        let end = self.at as u64 + len;
        let found = usize::try_from(end).ok().and_then(|end| self.section.get(self.at..end));
        let found = found.ok_or_else(|| format!("{} bytes, but {end} are needed", self.section.len()))?;
        self.at = end as usize;
        Ok(found)
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(number_at(self.take(4)?, 0, 4) as u32)
    }

    fn token(&mut self, vocabulary: u32) -> Result<u32, String> {
        match self.u32()? {
            token if token < vocabulary => Ok(token),
            token => Err(format!("token {token} is not below the size of the vocabulary, {vocabulary}")),
        }
    }
}
