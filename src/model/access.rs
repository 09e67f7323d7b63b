//! Access to a model through a mount: only users who can read all parts of the model directly can read it.

use super::table::Model;
use crate::source::{self, FileId, Location, SourceStat, TraversalBase};
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// No access for anyone but root.
pub(super) const NOBODY: SourceStat =
    SourceStat { uid: 0, gid: 0, mode: 0, mtime: SystemTime::UNIX_EPOCH, ctime: (0, 0) };

/// A file that cannot be opened as a part of a model, with its owner and permissions. `None` if the file itself cannot
/// be opened; no message then quotes it.
pub(super) fn stat_of(location: &Location) -> Option<(Option<FileId>, SourceStat)> {
    match source::stat_at(location) {
        Ok(found) => Some(found),
        Err(error) => {
            let path = location.path().unwrap_or(Path::new("")).to_owned();
            // After a transient error, messages may quote the file: it may have been read before.
            source::Error::Io { path, error }.is_transient().then_some((None, NOBODY))
        }
    }
}

/// Restricts a model to users who can search the directories between the directory `base` and its files, and who can
/// read those of its files that could not be opened: the mount shows the reasons, which may quote these files.
///
/// `base` and the directories above it are not considered.
pub(super) fn restrict_access(model: &mut Model, base: &io::Result<TraversalBase>) {
    if let Ok(TraversalBase::Remote(tree)) = base {
        model.facts.needed.push(tree.search());
    }
    let sources = model.sources.iter().filter_map(|source| Some((Location::from(source.path()?), source.id())));
    let mut needed: Vec<SourceStat> = sources.filter_map(|(file, id)| needed_for(base, &file, id)).collect();
    for file in &model.facts.unopened {
        if let Some((id, stat)) = stat_of(file) {
            needed.push(stat);
            needed.extend(needed_for(base, file, id));
        }
    }
    needed.dedup();
    model.facts.needed.extend(needed);
    restrict_description(model, base);
}

/// As [`restrict_access`], only for the files that describe the model.
pub(super) fn restrict_description(model: &mut Model, base: &io::Result<TraversalBase>) {
    let files = model.facts.described_by.iter();
    let needed: Vec<SourceStat> = files.filter_map(|file| needed_for(base, &file.location, file.id)).collect();
    model.facts.needed.extend(needed);
}

/// The permissions for those who may search the directories between `base` and a file with this number, which was
/// opened. `None` if there are no directories between.
pub(super) fn needed_for(base: &io::Result<TraversalBase>, file: &Location, id: Option<FileId>) -> Option<SourceStat> {
    match base.as_ref().map(|base| base.traverse(file)) {
        Ok(Ok(traversal)) if traversal.leads_to(id) => traversal.stat,
        // The permissions of the directories are unknown, perhaps because names were exchanged meanwhile.
        _ => Some(NOBODY),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ParseMode;
    use crate::model::{Catalog, Model, ModelId, OpenedModel, open_in, open_location};
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::atomic::{AtomicBool, Ordering};

    const OTHERS: u16 = 0o077;

    /// Directories `theirs/m` and `theirs/other` with models that everyone may read, and the link `theirs/x` to
    /// `secret`, a directory that only its owner may search. The files there have the same names.
    struct ExchangedNames {
        dir: tempfile::TempDir,
    }

    impl ExchangedNames {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (name, mode) in [("theirs/m", 0o755), ("theirs/other", 0o755), ("secret", 0o700)] {
                let path = dir.path().join(name);
                fs::create_dir_all(&path).unwrap();
                let title = path.file_name().unwrap().to_str().unwrap();
                let header = format!(
                    r#"{{"__metadata__":{{"title":"{title}"}},"w.weight":{{"dtype":"F8_E4M3","shape":[1,1],"data_offsets":[0,1]}},"w.weight_scale":{{"dtype":"F32","shape":[1],"data_offsets":[1,5]}}}}"#
                );
                let model = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 5]].concat();
                let config =
                    format!(r#"{{"model_type": "{title}", "quantization_config": {{"quant_method": "fp8"}}}}"#);
                for (file, bytes) in [("a.safetensors", &model[..]), ("config.json", config.as_bytes())] {
                    fs::write(path.join(file), bytes).unwrap();
                    fs::set_permissions(path.join(file), Permissions::from_mode(0o644)).unwrap();
                }
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            let index = r#"{"weight_map": {"w.weight": "m/a.safetensors", "w.weight_scale": "m/a.safetensors"}}"#;
            fs::write(dir.path().join("theirs/model.safetensors.index.json"), index).unwrap();
            fs::copy(dir.path().join("theirs/m/a.safetensors"), dir.path().join("theirs/plain.safetensors")).unwrap();
            symlink("m/config.json", dir.path().join("theirs/config.json")).unwrap();
            symlink("../secret", dir.path().join("theirs/x")).unwrap();
            Self { dir }
        }

        fn location(&self, name: &str) -> Location {
            self.dir.path().join(name).into()
        }

        fn exchange(&self) {
            let [m, x] = ["theirs/m", "theirs/x"].map(|name| self.dir.path().join(name));
            renameat_with(CWD, m, CWD, x, RenameFlags::EXCHANGE).unwrap();
        }

        /// Opens models while names are exchanged, until the secret and the other ones were met several times.
        fn open_often(&self, open: impl Fn() -> Vec<Model>) {
            let is_done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        self.exchange();
                    }
                });
                let mut met = [0, 0];
                while met.iter().any(|met| *met < 50) {
                    for model in open() {
                        let is_secret = says_secret(&model);
                        met[usize::from(is_secret)] += 1;
                        let found = model.stat().unwrap();
                        if is_secret && found.mode & OTHERS != 0 {
                            is_done.store(true, Ordering::Relaxed);
                            panic!("{}: {found:?}", model.location);
                        }
                    }
                }
                is_done.store(true, Ordering::Relaxed);
            });
        }
    }

    /// Whether a model shows something of the secret directory.
    fn says_secret(model: &Model) -> bool {
        let title = model.metadata().iter().any(|(_, value)| value.text() == "secret");
        title || model.facts.network.as_deref() == Some("secret")
    }

    fn model(location: &Location) -> Vec<Model> {
        match open_location(location, ParseMode::Strict) {
            Ok(OpenedModel::Model(model)) => vec![*model],
            // Names that lead nowhere for a moment.
            Ok(OpenedModel::Catalog(_)) | Err(_) => Vec::new(),
        }
    }

    fn catalog(location: &Location) -> Box<Catalog> {
        match open_location(location, ParseMode::Strict).unwrap() {
            OpenedModel::Catalog(catalog) => catalog,
            OpenedModel::Model(model) => panic!("{}: one model", model.location),
        }
    }

    #[test]
    fn names_that_are_exchanged_give_no_access_to_what_others_may_not_search() {
        let scene = ExchangedNames::new();
        for named in ["theirs/m", "theirs/model.safetensors.index.json", "theirs/plain.safetensors"] {
            scene.open_often(|| model(&scene.location(named)));
        }
    }

    #[test]
    fn directory_that_takes_the_place_of_a_listed_one_is_refused() {
        let scene = ExchangedNames::new();
        let listed = catalog(&scene.location("theirs"));
        let models: Vec<ModelId> = listed.models().collect();
        let found = |at: usize| open_in(&listed, models[at]);
        let secret: Vec<bool> = (0..models.len()).map(|at| says_secret(&found(at).unwrap())).collect();
        scene.exchange();
        for (at, was_secret) in secret.into_iter().enumerate() {
            match found(at) {
                Ok(model) if was_secret || says_secret(&model) => {
                    assert_eq!(model.stat().unwrap().mode & OTHERS, 0, "{}", model.location);
                }
                Ok(_) => {}
                Err(error) => {
                    let expected = "another directory than the one that was listed; mount it again";
                    assert!(error.to_string().ends_with(expected), "{error}");
                }
            }
        }
    }
}
