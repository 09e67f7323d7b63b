//! The manifests of an Ollama store: the files that each names, and the layers that are models.
//!
//! A store has the directories `manifests` and `blobs`. The manifest of a model is the JSON file
//! `manifests/HOST/NAMESPACE/NAME/TAG`. It names the layers by their SHA-256, and `blobs/sha256-HEX` has their bytes.
//!
//! A layer that is a model has the location `manifests/HOST/NAMESPACE/NAME/TAG/LAYER`, at which no file exists.
//!
//! Source: `github.com/ollama/ollama`, `manifest/`, `types/model/name.go` and `server/images.go`.

use super::known::KnownFiles;
use super::{set, split};
use crate::format::ParseMode;
use crate::model::error::{Error, SetError};
use crate::model::quiet::QuietValue;
use crate::model::table::{Model, ModelForm, NoteKind};
use crate::model::unused::UsedNames;
use crate::name;
use crate::source::{self, ListedEntry, ListedKind, Location, SourceStat};
use serde::Deserialize;
use std::ffi::{OsStr, OsString};
use std::io;

/// The directory of manifests in a store.
pub(in crate::model) const MANIFESTS: &str = "manifests";

/// The directory of blobs in a store.
pub(in crate::model) const BLOBS: &str = "blobs";

/// Number of directories in [`MANIFESTS`] above a manifest, and its file name.
pub(in crate::model) const PARTS: usize = 4;

/// The host and the namespace that Ollama leaves out of names.
const DEFAULTS: [&str; 2] = ["registry.ollama.ai", "library"];

/// Maximum size of a manifest in bytes. Manifests usually have a few hundred bytes, and about a hundred per layer.
const MANIFEST_MAX: u64 = 16 << 20;

/// Maximum number of layers of a manifest.
const LAYERS_MAX: usize = 10_000;

/// Prefix of the media types of layers.
const MEDIA_TYPE: &str = "application/vnd.ollama.image.";

/// Whether a directory with these entries is a store.
pub(in crate::model) fn is_store(entries: &[ListedEntry]) -> bool {
    let has = |name| entries.iter().any(|entry| entry.name == name && entry.kind == ListedKind::Dir);
    has(MANIFESTS) && has(BLOBS)
}

/// The location of a manifest.
#[derive(Debug, Clone)]
pub(in crate::model) struct OllamaManifest {
    pub store: Location,
    pub location: Location,
    /// Host, namespace, name and tag.
    parts: [OsString; PARTS],
}

impl OllamaManifest {
    /// The manifest in the store at `store` with these parts.
    pub fn new(store: &Location, parts: [OsString; PARTS]) -> Self {
        let location = parts.iter().fold(store.join(MANIFESTS), |dir, part| dir.join(part));
        Self { store: store.clone(), location, parts }
    }

    /// The manifest at a location; `None` if there is none.
    pub fn find(location: &Location) -> Option<Self> {
        if location.file_name().is_empty() || source::is_dir(location) || !source::exists(location) {
            return None;
        }
        // The path may be too short, or have a symlink in it.
        let absolute = || Self::at(&location.absolute().ok()?);
        let canonical = || Self::at(&location.canonical().ok()?);
        Self::at(location).or_else(absolute).or_else(canonical)
    }

    /// The same manifest, independent of the current directory.
    pub fn absolute(&self) -> io::Result<Self> {
        let (store, location) = (self.store.absolute()?, self.location.absolute()?);
        Ok(Self { store, location, parts: self.parts.clone() })
    }

    /// The manifest at a location whose path has all parts.
    fn at(location: &Location) -> Option<Self> {
        let (mut parts, mut dir): ([OsString; PARTS], _) = (Default::default(), location.clone());
        for part in parts.iter_mut().rev() {
            *part = Some(dir.file_name()).filter(|name| !name.is_empty())?.to_owned();
            dir = dir.parent();
        }
        let store = dir.parent();
        let is_there = dir.file_name() == MANIFESTS && source::is_dir(&store.join(BLOBS));
        is_there.then(|| Self { store, location: location.clone(), parts })
    }

    /// The manifest and the name of the layer at a location; `None` if the location is not that of a layer.
    pub fn of_layer(location: &Location) -> Option<(Self, &OsStr)> {
        // In most cases the file exists, and is not a layer.
        if source::exists(location) {
            return None;
        }
        Some((Self::find(&location.parent())?, location.file_name()))
    }

    /// The path of the model in a mount, as Ollama shortens names: without the default host and namespace.
    pub fn short_path(&self) -> &[OsString] {
        let [host, namespace, ..] = &self.parts;
        match (host == DEFAULTS[0], namespace == DEFAULTS[1]) {
            (true, true) => &self.parts[2..],
            (true, false) => &self.parts[1..],
            (false, _) => &self.parts,
        }
    }

    /// The path of the model in a mount, if the short one is that of another model or leads through one.
    pub fn long_path(&self) -> &[OsString] {
        &self.parts
    }

    /// The directory or file of a component of the path in a mount. `len` counts the components that follow.
    pub fn ancestor(&self, len: usize) -> Location {
        (0..len).fold(self.location.clone(), |location, _| location.parent())
    }

    /// A name for a directory with this model in it.
    pub fn stem(&self) -> OsString {
        let [.., name, tag] = &self.parts;
        [name, tag].map(OsString::as_os_str).join("-".as_ref())
    }

    /// The layers of the manifest, and its permissions.
    pub fn read(&self) -> Result<(Vec<OllamaLayer>, SourceStat), Error> {
        let (text, stat) = set::read_list(&self.location, MANIFEST_MAX)?;
        let layers = layers(&text).map_err(|error| Error::Set { location: self.location.clone(), error })?;
        Ok((layers, stat))
    }

    /// The blob of a layer, which must exist.
    fn blob(&self, layer: &OllamaLayer) -> Result<Location, Error> {
        let error = || Error::Set { location: self.location.clone(), error: layer.absent() };
        layer.path(&self.store).filter(source::exists).ok_or_else(error)
    }

    /// The layer of that name, if it is a model.
    fn layer(&self, name: &OsStr) -> Result<(OllamaLayer, SourceStat), Error> {
        let (layers, stat) = self.read()?;
        let layer = layers.into_iter().find(|layer| layer.is_model && *layer.name == *name);
        let error = || SetError::NoLayer { layer: name.to_string_lossy().into_owned() };
        let layer = layer.ok_or_else(|| Error::Set { location: self.location.clone(), error: error() })?;
        Ok((layer, stat))
    }
}

/// A file that a manifest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::model) struct OllamaLayer {
    /// Its name in a mount, which no other layer has.
    pub name: String,
    /// Whether it should be a model.
    pub is_model: bool,
    /// The file name of its blob; `None` if the digest is refused.
    pub blob: Option<String>,
    pub digest: String,
    /// In bytes.
    size: Option<u64>,
}

impl OllamaLayer {
    /// The blob in a store, whether it exists or not. `None` if the digest is refused.
    pub fn path(&self, store: &Location) -> Option<Location> {
        Some(store.join(BLOBS).join(self.blob.as_ref()?))
    }

    /// What is wrong with the blob of the layer, if its size is `found`, or `None` if it does not exist.
    pub fn fault(&self, found: Option<u64>) -> Option<SetError> {
        let (Some(found), Some(blob)) = (found, &self.blob) else { return Some(self.absent()) };
        let stated = self.size.filter(|size| *size != found)?;
        Some(SetError::BlobSize { layer: self.name.clone(), blob: blob.clone(), found, stated })
    }

    /// The error for a layer without a blob.
    fn absent(&self) -> SetError {
        let layer = self.name.clone();
        match &self.blob {
            Some(blob) => SetError::NoBlob { layer, blob: blob.clone() },
            None => SetError::Digest { layer, digest: self.digest.clone() },
        }
    }
}

#[derive(Deserialize)]
struct ManifestFields {
    config: Option<QuietValue<ListedLayer>>,
    layers: Option<QuietValue<Vec<QuietValue<ListedLayer>>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct ListedLayer {
    media_type: String,
    digest: String,
    size: Option<QuietValue<u64>>,
    /// The path of a file, of layers of the type `json`.
    name: Option<String>,
}

/// Reads a manifest.
fn layers(text: &[u8]) -> Result<Vec<OllamaLayer>, SetError> {
    let listed: Result<QuietValue<ManifestFields>, _> = serde_json::from_slice(text);
    let QuietValue(ManifestFields { config, layers }) =
        listed.map_err(|error| SetError::json("Ollama manifest", &error))?;
    let listed = layers.map(|QuietValue(layers)| layers).unwrap_or_default();
    if listed.len() > LAYERS_MAX {
        return Err(SetError::TooManyLayers { max: LAYERS_MAX });
    }
    // Ollama writes an empty digest if a model has no configuration.
    let config = config.filter(|QuietValue(config)| !config.digest.is_empty());
    let config = config.map(|QuietValue(config)| (("config".to_owned(), ".json", false), config));
    let all = listed.into_iter().map(|QuietValue(listed)| (named(&listed), listed)).chain(config);
    let mut names = UsedNames::new([]);
    let layer = |((stem, ending, is_model), listed): ((String, &str, bool), ListedLayer)| OllamaLayer {
        name: names.take(|number| match number {
            1 => format!("{stem}{ending}"),
            _ => format!("{stem}-{number}{ending}"),
        }),
        is_model,
        blob: blob_name(&listed.digest),
        digest: listed.digest,
        size: listed.size.map(|size| size.0),
    };
    Ok(all.map(layer).collect())
}

/// The name of a layer without and with the ending of its file name, and whether it should be a model.
fn named(listed: &ListedLayer) -> (String, &'static str, bool) {
    let kind = listed.media_type.strip_prefix(MEDIA_TYPE);
    match kind {
        Some(kind @ ("model" | "adapter" | "projector" | "draft")) => (kind.to_owned(), "", true),
        Some(kind @ ("params" | "messages")) => (kind.to_owned(), ".json", false),
        // The name before Ollama 0.1.
        Some("prompt") => ("template".to_owned(), "", false),
        Some("json" | "tensor") if listed.name.is_some() => {
            (name::encode_name(listed.name.as_deref().unwrap_or_default()).into_owned(), "", false)
        }
        _ => (name::encode_name(kind.unwrap_or(&listed.media_type)).into_owned(), "", false),
    }
}

/// The file name of the blob with a digest; `None` for a digest that Ollama does not accept either.
fn blob_name(digest: &str) -> Option<String> {
    let hex = digest.strip_prefix("sha256").and_then(|rest| rest.strip_prefix([':', '-']))?;
    let is_hash = hex.len() == 64 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_hash.then(|| format!("sha256-{hex}"))
}

/// A file that the manifest of an Ollama store names.
const FORM: ModelForm = ModelForm {
    kind: "layer",
    fixed: Some("a layer of an Ollama model cannot be changed, because its file is named after its SHA-256"),
    has_shards: false,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Splits,
};

/// Opens the layer at `location`.
pub(in crate::model) fn open_layer(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let Some((manifest, name)) = OllamaManifest::of_layer(location) else { return split::open_alone(location, mode) };
    let (layer, stat) = manifest.layer(name)?;
    let blob = manifest.blob(&layer)?;
    let source = source::open_local(&blob)?;
    check_size(&manifest, &layer, source.len())?;
    let mut model = Model::from_file(location, &FORM, &blob, source, mode)?;
    let stem = manifest.stem();
    let stem = if name == "model" { stem } else { [&stem, name].join("-".as_ref()) };
    let facts = model.facts_mut();
    facts.description = "a layer of an Ollama model".into();
    (facts.main_file, facts.base, facts.name) = (manifest.location, Some(manifest.store), Some(stem));
    facts.described_by.push(stat);
    Ok(model)
}

fn check_size(manifest: &OllamaManifest, layer: &OllamaLayer, len: u64) -> Result<(), Error> {
    let fault = layer.fault(Some(len));
    fault.map_or(Ok(()), |error| Err(Error::Set { location: manifest.location.clone(), error }))
}

/// The file that has the bytes of the model at a location: the blob of a layer, or the location itself.
pub fn file_of(location: &Location) -> Result<Location, Error> {
    let Some((manifest, name)) = OllamaManifest::of_layer(location) else { return Ok(location.clone()) };
    let (layer, _) = manifest.layer(name)?;
    let blob = manifest.blob(&layer)?;
    check_size(&manifest, &layer, source::open_local(&blob)?.len())?;
    Ok(blob)
}

/// The manifest that names the layer at a location, and the blob, whether it exists or not.
pub(super) fn layer_files(location: &Location) -> KnownFiles {
    let Some((manifest, name)) = OllamaManifest::of_layer(location) else {
        return KnownFiles::with(location, Vec::new());
    };
    let blob = manifest.layer(name).ok().and_then(|(layer, _)| layer.path(&manifest.store));
    KnownFiles { main: manifest.location, others: blob.into_iter().collect(), base: Some(manifest.store) }
}

/// A name for a directory with the model at a location, if it is a manifest or one of its layers.
pub fn manifest_stem(location: &Location) -> Option<OsString> {
    let layer = || OllamaManifest::of_layer(location).map(|(manifest, _)| manifest);
    Some(OllamaManifest::find(location).or_else(layer)?.stem())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_have_names_and_refused_digests_have_no_blob() {
        let hex = "0123456789abcdefABCDEF0123456789abcdef0123456789abcdef0123456789";
        let layer = |kind: &str, digest: &str| serde_json::json!({"mediaType": format!("{MEDIA_TYPE}{kind}"), "digest": digest, "size": 3});
        let digest = format!("sha256:{hex}");
        let kinds = ["model", "projector", "projector", "license", "license", "params", "prompt", "x/../y", "model"];
        let mut listed: Vec<_> = kinds.iter().map(|kind| layer(kind, &digest)).collect();
        listed.push(serde_json::json!({"mediaType": "text/html", "digest": ""}));
        listed
            .push(serde_json::json!({"mediaType": format!("{MEDIA_TYPE}json"), "name": "a/b.json", "digest": digest}));
        let text = serde_json::json!({"config": layer("x", &digest), "layers": listed, "schemaVersion": 2}).to_string();
        let found = layers(text.as_bytes()).unwrap();
        let names: Vec<&str> = found.iter().map(|layer| &layer.name[..]).collect();
        assert_eq!(
            names,
            [
                "model",
                "projector",
                "projector-2",
                "license",
                "license-2",
                "params.json",
                "template",
                "x%2F..%2Fy",
                "model-2",
                "text%2Fhtml",
                "a%2Fb.json",
                "config.json"
            ]
        );
        assert_eq!(found.iter().filter(|layer| layer.is_model).count(), 4);
        assert_eq!(found[0].blob.as_deref(), Some(&*format!("sha256-{hex}")));
        assert_eq!((found[0].fault(Some(3)), &found[9].blob), (None, &None));
        for digest in
            ["", "sha256:../../x", "sha256:", "md5:00", &format!("sha256:{}", &hex[1..]), &format!("sha256:{hex}0")]
        {
            assert_eq!(blob_name(digest), None, "{digest}");
        }
        assert!(blob_name(&format!("sha256-{hex}")).is_some());
        for text in
            ["", "[]", "3", "\"text\"", r#"{"layers": {}}"#, r#"{"layers": [3]}"#, r#"{"layers": [{"size": "1"}]}"#]
        {
            assert!(layers(text.as_bytes()).is_err(), "{text}");
        }
        assert_eq!(layers(b"{}").unwrap(), []);
    }

    #[test]
    fn many_layers_of_one_name_are_numbered() {
        let listed = vec![serde_json::json!({"mediaType": format!("{MEDIA_TYPE}model")}); LAYERS_MAX];
        let text = serde_json::json!({"layers": listed}).to_string();
        let found = layers(text.as_bytes()).unwrap();
        assert_eq!((found.len(), &*found[LAYERS_MAX - 1].name), (LAYERS_MAX, "model-10000"));
    }
}
