//! The manifests of an Ollama store: the files that each names, and the layers that are models.
//!
//! A store has the directories `manifests` and `blobs`. The manifest of a model is the JSON file
//! `manifests/HOST/NAMESPACE/NAME/TAG`. It names the layers by their SHA-256, and `blobs/sha256-HEX` has their bytes.
//!
//! A layer that is a model has the location `manifests/HOST/NAMESPACE/NAME/TAG/LAYER`, at which no file exists.
//!
//! Source: `github.com/ollama/ollama`, `manifest/`, `types/model/name.go` and `server/images.go`.

use super::set::KnownFiles;
use super::{set, split};
use crate::format::ParseMode;
use crate::model::error::{Error, json_fault};
use crate::model::linked::is_below;
use crate::model::quiet::QuietValue;
use crate::model::table::{DescribingFile, Model, ModelAccess, ModelForm, NoteKind};
use crate::model::unique_names::UsedNames;
use crate::name;
use crate::source::{self, ListedEntry, ListedKind, Location, Source};
use crate::text::quote;
use serde::Deserialize;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;

pub(in crate::model) const MANIFESTS: &str = "manifests";

pub(in crate::model) const BLOBS: &str = "blobs";

/// Number of directories in [`MANIFESTS`] above a manifest, and its file name.
pub(in crate::model) const PARTS: usize = 4;

/// The host and the namespace that Ollama leaves out of names.
const DEFAULTS: [&str; 2] = ["registry.ollama.ai", "library"];

/// Maximum size of a manifest in bytes. Manifests usually have a few hundred bytes, and about a hundred per layer.
const MANIFEST_MAX: u64 = 16 << 20;

const LAYERS_MAX: usize = 10_000;

const MEDIA_TYPE: &str = "application/vnd.ollama.image.";

/// Whether a directory with these entries is a store.
pub(in crate::model) fn is_store(entries: &[ListedEntry]) -> bool {
    let has = |name| entries.iter().any(|entry| entry.name == name && entry.kind == ListedKind::Dir);
    has(MANIFESTS) && has(BLOBS)
}

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
    fn short_path(&self) -> &[OsString] {
        let [host, namespace, ..] = &self.parts;
        match (host == DEFAULTS[0], namespace == DEFAULTS[1]) {
            (true, true) => &self.parts[2..],
            (true, false) => &self.parts[1..],
            (false, _) => &self.parts,
        }
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

    pub fn read(&self) -> Result<(Vec<OllamaLayer>, DescribingFile), Error> {
        let (text, described_by) = set::read_list(&self.location, MANIFEST_MAX)?;
        let layers = layers(&text).map_err(|fault| Error::of_set(&self.location, fault));
        let is_quoted = layers.is_ok() || is_below(&self.location, &self.store);
        Ok((layers.map_err(|error| if is_quoted { error } else { error.hidden(&self.location) })?, described_by))
    }

    /// The layer of that name, if it is a model, and the manifest.
    fn layer(&self, name: &OsStr) -> Result<(OllamaLayer, DescribingFile), Error> {
        let (layers, manifest) = self.read()?;
        let layer = layers.into_iter().find(|layer| layer.is_model && *layer.name == *name).ok_or_else(|| {
            Error::of_set(&self.location, format!("has no layer {} with a model", quote(&name.to_string_lossy())))
        })?;
        Ok((layer, manifest))
    }

    /// The blob of the model in the layer of that name, its bytes, and the manifest.
    fn open(&self, name: &OsStr) -> Result<(Location, Arc<dyn Source>, DescribingFile), Error> {
        let (layer, manifest) = self.layer(name)?;
        let blob = layer.path(&self.store).filter(source::exists);
        let blob = blob.ok_or_else(|| Error::of_set(&self.location, layer.absent()))?;
        let source = source::open_local(&blob)?;
        match layer.fault(Some(source.len())) {
            Some(fault) => Err(Error::of_set(&self.location, fault)),
            None => Ok((blob, source, manifest)),
        }
    }
}

/// The path of each model in a mount. It is the short one, unless that leads through another model: then both get their
/// long paths, which have the same length.
pub(in crate::model) fn mount_paths<'m>(manifests: &[&'m OllamaManifest]) -> Vec<&'m [OsString]> {
    let mut paths: Vec<&[OsString]> = manifests.iter().map(|manifest| manifest.short_path()).collect();
    loop {
        let all: HashMap<&[OsString], usize> = paths.iter().zip(0..).map(|(path, at)| (*path, at)).collect();
        let mut clashes = Vec::new();
        for (at, path) in paths.iter().enumerate() {
            let through = (1..path.len()).filter_map(|len| all.get(&path[..len]).copied());
            let through: Vec<usize> = through.chain([at]).collect();
            if through.len() > 1 {
                clashes.extend(through);
            }
        }
        clashes.retain(|at| paths[*at].len() < PARTS);
        if clashes.is_empty() {
            return paths;
        }
        clashes.into_iter().for_each(|at| paths[at] = &manifests[at].parts);
    }
}

/// A file that a manifest names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::model) struct OllamaLayer {
    /// Its name in a mount, which no other layer has.
    pub name: String,
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

    /// The fault of the blob of the layer, if its size is `found`, or `None` if it does not exist.
    pub fn fault(&self, found: Option<u64>) -> Option<String> {
        let (Some(found), Some(blob)) = (found, &self.blob) else { return Some(self.absent()) };
        let (stated, layer) = (self.size.filter(|size| *size != found)?, quote(&self.name));
        Some(format!(
            "the layer {layer} has the wrong size: blobs/{blob} has {found} bytes, but the manifest says {stated}"
        ))
    }

    fn absent(&self) -> String {
        let (layer, digest) = (quote(&self.name), quote(&self.digest));
        match &self.blob {
            Some(blob) => format!("the layer {layer} is missing: there is no blobs/{blob}"),
            None => {
                format!("refused: the digest {digest} of the layer {layer} is not sha256: and 64 hexadecimal digits")
            }
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

fn layers(text: &[u8]) -> Result<Vec<OllamaLayer>, String> {
    let listed: Result<QuietValue<ManifestFields>, _> = serde_json::from_slice(text);
    let QuietValue(ManifestFields { config, layers }) =
        listed.map_err(|error| json_fault("Ollama manifest", &error))?;
    let listed = layers.map(|QuietValue(layers)| layers).unwrap_or_default();
    if listed.len() > LAYERS_MAX {
        return Err(format!("names more than {LAYERS_MAX} layers, which is the maximum"));
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

const FORM: ModelForm = ModelForm {
    kind: "layer",
    edit_refusal: Some("a layer of an Ollama model cannot be changed, because its file is named after its SHA-256"),
    access: ModelAccess::FilesAndDirectories,
    has_shards: false,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Splits,
};

pub(in crate::model) fn open_layer(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let Some((manifest, name)) = OllamaManifest::of_layer(location) else { return split::open_alone(location, mode) };
    let (blob, source, described_by) = manifest.open(name)?;
    let mut model = Model::from_file(location, &FORM, &blob, source, mode)?;
    let stem = manifest.stem();
    let stem = if name == "model" { stem } else { [&stem, name].join("-".as_ref()) };
    let facts = &mut model.facts;
    facts.description = "a layer of an Ollama model".into();
    (facts.main_file, facts.base, facts.name) = (Some(manifest.location), Some(manifest.store), Some(stem));
    facts.described_by.push(described_by);
    Ok(model)
}

/// The blob of a layer; `None` if the location is not that of one.
pub(super) fn blob_of(location: &Location) -> Option<Result<Location, Error>> {
    let (manifest, name) = OllamaManifest::of_layer(location)?;
    Some(manifest.open(name).map(|(blob, ..)| blob))
}

/// The manifest that names the layer at a location, and the blob, whether it exists or not.
pub(super) fn layer_files(location: &Location) -> KnownFiles {
    let Some((manifest, name)) = OllamaManifest::of_layer(location) else {
        return KnownFiles::with(location, Vec::new());
    };
    let blob = manifest.layer(name).ok().and_then(|(layer, _)| layer.path(&manifest.store));
    let files = KnownFiles::with(&manifest.location, blob.into_iter().collect());
    KnownFiles { base: Some(manifest.store), ..files }
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
