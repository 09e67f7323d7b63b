//! A summary of the training metadata of sd-scripts: folders, tags and times.

use crate::format::MetadataValue;
use crate::model::metadata_text;
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

const TAGS: usize = 10;

/// The training of a model. Missing or malformed values are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TrainingFacts {
    pub folders: Vec<ImageFolder>,
    /// Number of different tags in the captions.
    pub tags: usize,
    /// The most frequent tags, and the number of captions that have each.
    pub frequent_tags: Vec<(String, u64)>,
    /// The resolutions of the datasets: `1024x1024`.
    pub resolutions: Vec<String>,
    /// The start of the training, in UTC.
    pub started: Option<String>,
    /// The end of the training, in UTC.
    pub finished: Option<String>,
    pub seconds: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageFolder {
    pub name: String,
    pub images: u64,
    /// Number of times that each image is used in an epoch.
    pub repeats: u64,
    /// Whether the images are for regularisation, so that the model does not unlearn what they show.
    pub regularisation: bool,
}

#[derive(Deserialize)]
struct DatasetDir {
    #[serde(default)]
    n_repeats: u64,
    img_count: u64,
}

#[derive(Deserialize)]
struct TrainingDataset {
    resolution: Option<(u64, u64)>,
}

impl TrainingFacts {
    /// Parses the metadata; `None` if it has no training values.
    pub fn of(metadata: &[(String, MetadataValue)]) -> Option<Self> {
        let mut folders = Vec::new();
        for (key, regularisation) in [("ss_dataset_dirs", false), ("ss_reg_dataset_dirs", true)] {
            let dirs: BTreeMap<String, DatasetDir> = json(metadata, key).unwrap_or_default();
            folders.extend(dirs.into_iter().map(|(name, DatasetDir { n_repeats: repeats, img_count: images })| {
                ImageFolder { name, images, repeats, regularisation }
            }));
        }
        let (tags, frequent_tags) = tags(metadata);
        let datasets: Vec<TrainingDataset> = json(metadata, "ss_datasets").unwrap_or_default();
        let mut resolutions: Vec<(u64, u64)> = datasets.iter().filter_map(|dataset| dataset.resolution).collect();
        resolutions.sort_unstable();
        resolutions.dedup();
        let resolutions = resolutions.into_iter().map(|(width, height)| format!("{width}x{height}")).collect();
        let [started, finished] = ["ss_training_started_at", "ss_training_finished_at"].map(|key| time(metadata, key));
        let took = started.zip(finished).map(|(from, to)| to.duration_since(from));
        let seconds = took.filter(|took| !took.is_negative()).map(|took| took.as_secs().unsigned_abs());
        let [started, finished] = [started, finished].map(|time| Some(time?.to_string()));
        let training = Self { folders, tags, frequent_tags, resolutions, started, finished, seconds };
        (training != Self::default()).then_some(training)
    }
}

fn json<T: DeserializeOwned>(metadata: &[(String, MetadataValue)], key: &str) -> Option<T> {
    serde_json::from_str(metadata_text(metadata, key)?).ok()
}

/// The number of different tags, and the most frequent ones. `ss_tag_frequency` has counts for each folder.
fn tags(metadata: &[(String, MetadataValue)]) -> (usize, Vec<(String, u64)>) {
    let folders: BTreeMap<String, HashMap<String, u64>> = json(metadata, "ss_tag_frequency").unwrap_or_default();
    let mut counts: HashMap<String, u64> = HashMap::new();
    for (tag, count) in folders.into_values().flatten() {
        // Some captions have spaces around their commas.
        let sum = counts.entry(tag.trim().to_owned()).or_default();
        *sum = sum.saturating_add(count);
    }
    let number = counts.len();
    let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
    counts.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
    counts.truncate(TAGS);
    (number, counts)
}

/// A time in seconds since 1970, as Python writes it. The fraction is dropped.
fn time(metadata: &[(String, MetadataValue)], key: &str) -> Option<Timestamp> {
    let seconds = metadata_text(metadata, key)?.parse().ok().filter(|seconds: &f64| seconds.is_finite())?;
    Timestamp::from_second(seconds as i64).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn training(pairs: &[(&str, &str)]) -> Option<TrainingFacts> {
        let mut metadata: Vec<_> =
            pairs.iter().map(|(key, value)| (key.to_string(), MetadataValue::from(*value))).collect();
        metadata.sort_by(|a, b| a.0.cmp(&b.0));
        TrainingFacts::of(&metadata)
    }

    #[test]
    fn training_metadata_is_summarised() {
        let found = training(&[
            (
                "ss_dataset_dirs",
                r#"{"10_cat": {"n_repeats": 10, "img_count": 40}, "2_dog": {"n_repeats": 2, "img_count": 5}}"#,
            ),
            ("ss_reg_dataset_dirs", r#"{"1_animal": {"n_repeats": 1, "img_count": 200}}"#),
            (
                "ss_tag_frequency",
                r#"{"10_cat": {"cat": 40, " tail": 3, "fur": 9}, "2_dog": {"dog": 5, "tail": 5, "fur": 1}}"#,
            ),
            (
                "ss_datasets",
                r#"[{"resolution": [1024, 1024], "x": 1}, {"resolution": [512, 768]}, {"resolution": [1024, 1024]}]"#,
            ),
            ("ss_training_started_at", "1700000000.5"),
            ("ss_training_finished_at", "1700003725.25"),
        ])
        .unwrap();
        let folder = |name: &str, images, repeats, regularisation| ImageFolder {
            name: name.into(),
            images,
            repeats,
            regularisation,
        };
        assert_eq!(
            found.folders,
            [folder("10_cat", 40, 10, false), folder("2_dog", 5, 2, false), folder("1_animal", 200, 1, true)]
        );
        let tags = [("cat", 40), ("fur", 10), ("tail", 8), ("dog", 5)].map(|(tag, count)| (tag.to_owned(), count));
        assert_eq!((found.tags, &found.frequent_tags[..]), (4, &tags[..]));
        assert_eq!(found.resolutions, ["512x768", "1024x1024"]);
        assert_eq!(found.started.as_deref(), Some("2023-11-14T22:13:20Z"));
        assert_eq!((found.finished.as_deref(), found.seconds), (Some("2023-11-14T23:15:25Z"), Some(3725)));
    }

    #[test]
    fn malformed_values_are_left_out() {
        assert_eq!(training(&[]), None);
        for value in ["", "None", "{", "[]", r#"{"a": 1}"#, r#"{"a": {"b": -1}}"#, "1e300", "NaN", "inf", "-1e300"] {
            for key in ["ss_dataset_dirs", "ss_tag_frequency", "ss_datasets", "ss_training_started_at"] {
                assert_eq!(training(&[(key, value)]), None, "{key} {value}");
            }
        }
        // The end is before the start.
        let found = training(&[("ss_training_started_at", "20"), ("ss_training_finished_at", "10")]).unwrap();
        assert_eq!(found.seconds, None);
    }
}
