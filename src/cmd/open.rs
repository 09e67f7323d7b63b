//! Opens what a command is about: knows where one model is wanted and where a directory of several will do.

use super::mount::allow_descriptors;
use crate::logging;
use anyhow::bail;
use std::path::Path;
use weightfs::format::Mode;
use weightfs::model::{self, Catalog, Model, Opened};

/// What opening models wants done before: messages have where to go, and many files may be open.
pub fn prepare() -> anyhow::Result<()> {
    logging::init(false, None)?;
    allow_descriptors();
    Ok(())
}

/// Opens what is at `source`, and says what of a model was left out or is not known.
pub fn any(source: &Path, mode: Mode) -> anyhow::Result<Opened> {
    prepare()?;
    let opened = model::open(source, mode)?;
    if let Opened::Model(model) = &opened {
        model.report(source);
    }
    Ok(opened)
}

/// Opens the one model at `source`.
pub fn one(source: &Path, mode: Mode) -> anyhow::Result<Model> {
    match any(source, mode)? {
        Opened::Model(model) => Ok(*model),
        Opened::Catalog(catalog) => bail!("{}", several(source, &catalog)),
    }
}

/// What is wrong with a directory of models where one is wanted.
pub fn several(source: &Path, catalog: &Catalog) -> String {
    format!("{}: a directory of {} models; name one of them", source.display(), catalog.models().len())
}

/// Opens one of several models, which its user calls `source` and its place there.
pub fn in_catalog(catalog: &Catalog, number: u32, source: &Path) -> anyhow::Result<Model> {
    let model = catalog.open(number)?;
    model.report(source);
    Ok(model)
}

/// Fails if a file of the model is not what was opened any more.
pub fn still_the_same(model: &Model) -> anyhow::Result<()> {
    for source in model.sources() {
        source.bytes(0..0)?;
    }
    Ok(())
}
