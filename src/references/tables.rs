//! References in the Parquet layout of Kerchunk: a directory with the metadata of all nodes in one file, and tables
//! with the places of the chunks of each array. fsspec loads only the tables of the arrays that it reads.
//!
//! The layout has format 2 of Zarr only. Of directories with groups, fsspec opens some and not others, depending on the
//! hashes of their names, so the arrays must be in the root.
//!
//! Source: `fsspec/implementations/reference.py`, `LazyReferenceMapper`, 2026.2.

use super::array::ZarrArray;
use super::store::{ReferenceStore, ReferencedNode};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::convert::Infallible;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

/// Number of chunks in each table of an array except the last. This is Kerchunk's default.
const ROWS: usize = 10_000;

/// The columns: the URL of a file, and the place of a chunk in it, in bytes.
const SCHEMA: &str = "message schema {
    required binary path (UTF8);
    required int64 offset;
    required int64 size;
}";

struct ChunkPlace {
    number: u64,
    file: usize,
    /// In bytes from the start of the file.
    offset: u64,
}

/// Takes a path in the directory, and the bytes of the file.
pub type TakeFile<'t> = dyn FnMut(&Path, &[u8]) -> io::Result<()> + 't;

impl ReferenceStore<'_> {
    /// Passes each file of the directory to `take`. The references must have format 2, and no groups.
    pub fn write_tables(&self, take: &mut TakeFile) -> io::Result<()> {
        let mut metadata = Vec::new();
        self.write_consolidated(&self.root_attributes()?, &mut metadata)?;
        write!(metadata, ", \"record_size\": {ROWS}}}")?;
        take(Path::new(".zmetadata"), &metadata)?;
        let urls: Vec<ByteArray> = self.urls.iter().map(|url| ByteArray::from(&url[..])).collect();
        self.each_node(&mut |path, node| match node {
            ReferencedNode::Group => Ok(()),
            ReferencedNode::Array(array) => write_array(path, array, &urls, take),
        })
    }
}

fn write_array(path: &str, array: &ZarrArray, urls: &[ByteArray], take: &mut TakeFile) -> io::Result<()> {
    for (number, chunks) in numbered_chunks(array).chunks(ROWS).enumerate() {
        let table = encode_table(chunks, array.grid.nbytes, urls).map_err(io::Error::other)?;
        take(&Path::new(path).join(format!("refs.{number}.parq")), &table)?;
    }
    Ok(())
}

/// The chunks of an array, at most a million, in the order of their numbers: C order of the dimensions of the tensor,
/// whatever that of the bytes is.
fn numbered_chunks(array: &ZarrArray) -> Vec<ChunkPlace> {
    let counts = array.chunk_counts();
    let mut chunks = Vec::new();
    let Ok(()) = array.each_chunk::<Infallible>(|index, file, offset| {
        let number = index.iter().zip(&counts).fold(0, |number, (at, count)| number * count + at);
        chunks.push(ChunkPlace { number, file, offset });
        Ok(())
    });
    chunks.sort_unstable_by_key(|chunk| chunk.number);
    chunks
}

fn encode_table(chunks: &[ChunkPlace], nbytes: u64, urls: &[ByteArray]) -> Result<Vec<u8>, ParquetError> {
    let paths: Vec<ByteArray> = chunks.iter().map(|chunk| urls[chunk.file].clone()).collect();
    // Files have less than 2^63 bytes.
    let offsets: Vec<i64> = chunks.iter().map(|chunk| chunk.offset as i64).collect();
    let mut bytes = Vec::new();
    let schema = Arc::new(parse_message_type(SCHEMA)?);
    let mut file = SerializedFileWriter::new(&mut bytes, schema, Arc::default())?;
    let mut group = file.next_row_group()?;
    write_column::<ByteArrayType, _>(&mut group, &paths)?;
    write_column::<Int64Type, _>(&mut group, &offsets)?;
    write_column::<Int64Type, _>(&mut group, &vec![nbytes as i64; chunks.len()])?;
    group.close()?;
    file.close()?;
    Ok(bytes)
}

/// Writes the next column, which has one value in each row.
fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<W>,
    values: &[T::T],
) -> Result<(), ParquetError> {
    let Some(mut column) = group.next_column()? else { return Ok(()) };
    column.typed::<T>().write_batch(values, None, None)?;
    column.close()
}
