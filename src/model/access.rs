//! Access to a model through a mount: only users who can read all parts of the model directly can read it.

use super::table::Model;
use crate::source::{self, FileId, Location, SourceStat, TraversalBase};
use nix::errno::Errno;
use std::io;
use std::path::Path;
use std::time::SystemTime;

/// No access for anyone but root.
pub(super) const NOBODY: SourceStat =
    SourceStat { uid: 0, gid: 0, mode: 0, mtime: SystemTime::UNIX_EPOCH, ctime: (0, 0) };

/// A file that cannot be opened as a part of a model, with its owner and permissions. `None` if the file itself cannot
/// be opened; no message then quotes it.
fn stat_of(location: &Location) -> Option<(Option<FileId>, SourceStat)> {
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
pub(super) fn restrict_access(model: &mut Model, base: &io::Result<TraversalBase>) -> Result<(), source::Error> {
    if let Ok(TraversalBase::Remote(tree)) = base {
        model.facts.needed.push(tree.search());
    }
    let mut needed = Vec::new();
    for source in model.sources().iter() {
        if let Some(path) = source.path() {
            needed.extend(needed_for(base, &path.into(), source.id())?);
        }
    }
    for file in &model.facts.unopened {
        needed.extend(needed_for_quoted(base, file));
    }
    needed.dedup();
    model.facts.needed.extend(needed);
    restrict_description(model, base)
}

/// As [`restrict_access`], only for the files that describe the model.
pub(super) fn restrict_description(model: &mut Model, base: &io::Result<TraversalBase>) -> Result<(), source::Error> {
    for file in &model.facts.described_by {
        model.facts.needed.extend(needed_for(base, &file.location, file.id)?);
    }
    Ok(())
}

/// The permissions for those who may search the directories between `base` and a file with this number, which was
/// opened. `None` if there are no directories between. Fails if the path leads to another file meanwhile.
pub(super) fn needed_for(
    base: &io::Result<TraversalBase>,
    file: &Location,
    id: Option<FileId>,
) -> Result<Option<SourceStat>, source::Error> {
    let Ok(base) = base else { return Ok(Some(NOBODY)) };
    let error = match base.traverse(file) {
        Ok(traversal) if traversal.leads_to(id) => return Ok(traversal.stat),
        Ok(_) => Errno::ESTALE.into(),
        Err(error) => error,
    };
    let path = file.path().unwrap_or(Path::new("")).to_owned();
    let error = source::Error::Io { path, error };
    if error.is_transient() {
        return Err(error);
    }
    log::warn!("{error}; nobody but root may read what it is a part of");
    Ok(Some(NOBODY))
}

/// The permissions of a file that a message may quote, and of those who may search the directories between `base` and
/// it.
pub(super) fn needed_for_quoted(base: &io::Result<TraversalBase>, file: &Location) -> Vec<SourceStat> {
    let Some((id, stat)) = stat_of(file) else {
        // If the file was never opened, the message says nothing about its content.
        return if source::was_always(file, None) { Vec::new() } else { vec![NOBODY] };
    };
    // The message is about a file that was opened before.
    if !source::was_always(file, id) {
        return vec![NOBODY];
    }
    [Some(stat), needed_for(base, file, id).unwrap_or(Some(NOBODY))].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ParseMode;
    use crate::model::{Catalog, Model, ModelId, OpenedModel, open_below, open_in, open_location};
    use crate::source::Source;
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
                let shard = format!(r#"{{"shard_path":"a.safetensors","samples_count":1,"bytes":{}}}"#, model.len());
                let manifest = format!(r#"{{"format_version":"1.0","title":"{title}","shards":[{shard}]}}"#);
                let header = format!(r#"{{"{title}":{{"dtype":"U8","shape":[9],"data_offsets":[0,1]}}}}"#);
                let broken = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0]].concat();
                for (file, bytes) in [
                    ("a.safetensors", &model[..]),
                    ("config.json", config.as_bytes()),
                    ("manifest.json", manifest.as_bytes()),
                    ("broken", &broken),
                ] {
                    fs::write(path.join(file), bytes).unwrap();
                    fs::set_permissions(path.join(file), Permissions::from_mode(0o644)).unwrap();
                }
                fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            let index = r#"{"weight_map": {"w.weight": "m/a.safetensors", "w.weight_scale": "m/a.safetensors"}}"#;
            fs::write(dir.path().join("theirs/model.safetensors.index.json"), index).unwrap();
            fs::copy(dir.path().join("theirs/m/a.safetensors"), dir.path().join("theirs/plain.safetensors")).unwrap();
            symlink("m/config.json", dir.path().join("theirs/config.json")).unwrap();
            fs::create_dir(dir.path().join("theirs/data")).unwrap();
            fs::copy(dir.path().join("theirs/m/a.safetensors"), dir.path().join("theirs/data/a.safetensors")).unwrap();
            symlink("../m/manifest.json", dir.path().join("theirs/data/dataset_manifest.json")).unwrap();
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

        /// Does something while a thread exchanges names again and again.
        fn while_exchanging(&self, act: impl FnOnce()) {
            struct Ended<'a>(&'a AtomicBool);
            impl Drop for Ended<'_> {
                fn drop(&mut self) {
                    self.0.store(true, Ordering::Relaxed);
                }
            }
            let is_done = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Relaxed) {
                        self.exchange();
                    }
                });
                let _ended = Ended(&is_done);
                act();
            });
        }

        /// Opens models while names are exchanged, until the secret and the other ones were met several times.
        fn open_often(&self, open: impl Fn() -> Vec<Model>) {
            self.while_exchanging(|| {
                let (mut met, mut tries) = ([0, 0], 0);
                while met.iter().any(|met| *met < 50) {
                    tries += 1;
                    assert!(tries < 1_000_000, "{met:?}");
                    for model in open() {
                        let is_secret = says_secret(&model);
                        met[usize::from(is_secret)] += 1;
                        let found = model.stat().unwrap();
                        assert!(!is_secret || found.mode & OTHERS == 0, "{}: {found:?}", model.location);
                    }
                }
            });
        }
    }

    /// Whether a model shows something of the secret directory.
    fn says_secret(model: &Model) -> bool {
        let title = model.metadata().iter().any(|(_, value)| value.text() == "secret");
        let is_shown = |source: &dyn Source| {
            let mut text = vec![0; source.len() as usize];
            source.read_exact_at(&mut text, 0).unwrap();
            String::from_utf8(text).unwrap().contains("secret")
        };
        let document = model.facts.documents.iter().any(|(_, source)| is_shown(&**source));
        title || document || model.facts.network.as_deref() == Some("secret")
    }

    fn model(location: &Location) -> Vec<Model> {
        match open_location(location, ParseMode::Strict) {
            Ok(OpenedModel::Model(model, _)) => vec![*model],
            // Names that lead nowhere for a moment.
            Ok(OpenedModel::Catalog(_)) | Err(_) => Vec::new(),
        }
    }

    fn catalog(location: &Location) -> Box<Catalog> {
        match open_location(location, ParseMode::Strict).unwrap() {
            OpenedModel::Catalog(catalog) => catalog,
            OpenedModel::Model(model, _) => panic!("{}: one model", model.location),
        }
    }

    #[test]
    fn names_that_are_exchanged_give_no_access_to_what_others_may_not_search() {
        let scene = ExchangedNames::new();
        for named in ["theirs/m", "theirs/model.safetensors.index.json", "theirs/plain.safetensors", "theirs/data"] {
            scene.open_often(|| model(&scene.location(named)));
        }
    }

    #[test]
    fn names_that_are_exchanged_make_no_error_quote_a_secret() {
        let scene = ExchangedNames::new();
        let top = scene.location("theirs");
        let links: Vec<Location> = (0..600).map(|at| scene.location(&format!("theirs/{at}.safetensors"))).collect();
        for link in &links {
            symlink("m/broken", link.path().unwrap()).unwrap();
        }
        let said = |link: &Location| open_below(Some(&top), link, ParseMode::Strict).unwrap_err().to_string();
        let (first, others) = links.split_first().unwrap();
        assert!(said(first).contains("tensor \"m\""), "{}", said(first));
        scene.while_exchanging(|| {
            for link in others {
                let said = said(link);
                assert!(!said.contains("secret"), "{said}");
            }
        });
    }

    #[test]
    fn directory_that_takes_the_place_of_a_listed_one_counts() {
        let scene = ExchangedNames::new();
        let listed = catalog(&scene.location("theirs"));
        let models: Vec<ModelId> = listed.models().collect();
        let found = |at: usize| open_in(&listed, models[at]);
        let secrets = || (0..models.len()).map(found).map(Result::unwrap).filter(says_secret).collect::<Vec<Model>>();
        // Its folder has the permissions of the directory.
        assert!(secrets().iter().all(|model| model.location.to_string().contains("/x/")));
        scene.exchange();
        let secrets = secrets();
        assert!(!secrets.is_empty());
        for model in secrets {
            assert_eq!(model.stat().unwrap().mode & OTHERS, 0, "{}", model.location);
        }
    }
}
