//! Metadata conventions: labels for the keys of ModelSpec and of kohya's sd-scripts, and the rules of ModelSpec.
//!
//! Sources: `github.com/Stability-AI/ModelSpec` 1.0.1, README; `github.com/kohya-ss/sd-scripts`, `train_network.py`.

use crate::format::MetadataValue;
use crate::text::quote;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use jiff::civil::DateTime;
use std::collections::BTreeMap;

pub const MODELSPEC_PREFIX: &str = "modelspec.";

/// The prefixes of sd-scripts' keys and of the hashes that it adds.
const KOHYA_PREFIXES: [&str; 2] = ["ss_", "sshs_"];

pub type Label = (&'static str, &'static str);

/// The keys of ModelSpec without their prefix, in the order in which they are printed.
pub const MODELSPEC: [Label; 27] = [
    ("title", "Title"),
    ("architecture", "Architecture"),
    ("implementation", "Implementation"),
    ("implementation_version", "Implementation version"),
    ("description", "Description"),
    ("author", "Author"),
    ("date", "Date"),
    ("license", "License"),
    ("usage_hint", "Usage hint"),
    ("trigger_phrase", "Trigger phrase"),
    ("tags", "Tags"),
    ("merged_from", "Merged from"),
    ("resolution", "Resolution"),
    ("prediction_type", "Prediction type"),
    ("timestep_range", "Time steps"),
    ("encoder_layer", "Encoder layer"),
    ("preprocessor", "Preprocessor"),
    ("is_negative_embedding", "Negative embedding"),
    ("unet_dtype", "UNet dtypes"),
    ("vae_dtype", "VAE dtypes"),
    ("data_format", "Data format"),
    ("format_type", "Format type"),
    ("language", "Language"),
    ("format_template", "Prompt template"),
    ("thumbnail", "Thumbnail"),
    ("hash_sha256", "SHA-256 of the data"),
    ("sai_model_spec", "ModelSpec version"),
];

/// The most useful of the roughly 90 keys that sd-scripts writes.
pub const KOHYA: [Label; 34] = [
    ("ss_output_name", "Output name"),
    ("ss_sd_model_name", "Base model"),
    ("ss_base_model_version", "Base model version"),
    ("ss_sd_model_hash", "Base model hash"),
    ("ss_vae_name", "VAE"),
    ("ss_network_module", "Network"),
    ("ss_network_dim", "Rank"),
    ("ss_network_alpha", "Alpha"),
    ("ss_network_dropout", "Dropout"),
    ("ss_network_args", "Network arguments"),
    ("ss_resolution", "Resolution"),
    ("ss_clip_skip", "Clip skip"),
    ("ss_learning_rate", "Learning rate"),
    ("ss_unet_lr", "UNet learning rate"),
    ("ss_text_encoder_lr", "Text encoder learning rate"),
    ("ss_lr_scheduler", "Scheduler"),
    ("ss_lr_warmup_steps", "Warm-up steps"),
    ("ss_optimizer", "Optimizer"),
    ("ss_mixed_precision", "Mixed precision"),
    ("ss_total_batch_size", "Batch size"),
    ("ss_num_train_images", "Training images, with repeats"),
    ("ss_num_reg_images", "Regularisation images"),
    ("ss_num_epochs", "Epochs planned"),
    ("ss_epoch", "Epochs"),
    ("ss_max_train_steps", "Steps planned"),
    ("ss_steps", "Steps"),
    ("ss_noise_offset", "Noise offset"),
    ("ss_min_snr_gamma", "Min-SNR gamma"),
    ("ss_loss_type", "Loss"),
    ("ss_seed", "Seed"),
    ("ss_training_comment", "Comment"),
    ("ss_sd_scripts_commit_hash", "sd-scripts commit"),
    ("sshs_model_hash", "SHA-256 of the data"),
    ("sshs_legacy_hash", "Old model hash"),
];

/// Keys of sd-scripts whose values are JSON.
pub(super) const KOHYA_JSON: [&str; 6] =
    ["ss_network_args", "ss_datasets", "ss_tag_frequency", "ss_dataset_dirs", "ss_reg_dataset_dirs", "ss_bucket_info"];

pub fn is_kohya(key: &str) -> bool {
    KOHYA_PREFIXES.iter().any(|prefix| key.starts_with(prefix))
}

/// A SHA-256 hash in metadata as 64 lower-case digits; `None` if the value is something else.
pub(super) fn sha256(value: &str) -> Option<String> {
    let digits = value.strip_prefix("0x").or(value.strip_prefix("0X")).unwrap_or(value);
    (digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())).then(|| digits.to_ascii_lowercase())
}

/// Violations of ModelSpec: key without prefix, and message. Empty if the metadata has no ModelSpec key.
pub(super) fn modelspec_faults(metadata: &[(String, MetadataValue)]) -> Vec<(&str, String)> {
    let present = metadata.iter().filter_map(|(key, value)| Some((key.strip_prefix(MODELSPEC_PREFIX)?, value.text())));
    let present: BTreeMap<&str, &str> = present.collect();
    if present.is_empty() {
        return Vec::new();
    }
    let required = ["sai_model_spec", "architecture", "implementation", "title"];
    let missing = required.into_iter().filter(|key| is_missing(&present, key));
    let mut faults: Vec<_> = missing.map(|key| (key, "missing, but every model must have it".to_owned())).collect();
    if is_missing(&present, "resolution") && is_missing(&present, "data_format") {
        let message = "missing, as is modelspec.data_format: image models need resolution, text models data_format";
        faults.push(("resolution", message.to_owned()));
    }
    let diffusion = present.get("architecture").is_some_and(|name| name.starts_with("stable-diffusion"));
    faults.extend(present.into_iter().filter_map(|(key, value)| Some((key, value_fault(key, value, diffusion)?))));
    faults
}

fn is_missing(present: &BTreeMap<&str, &str>, key: &str) -> bool {
    present.get(key).is_none_or(|value| value.is_empty())
}

/// The error in a value, if there is one.
fn value_fault(key: &str, value: &str, diffusion: bool) -> Option<String> {
    let (sound, wanted) = match key {
        "sai_model_spec" => (value.starts_with("1.0"), "a known version, such as 1.0.1"),
        "resolution" => (is_pair(value, 'x'), "WIDTHxHEIGHT, such as 1024x1024"),
        "timestep_range" => (is_pair(value, ','), "MIN,MAX, such as 0,499"),
        "is_negative_embedding" => (matches!(value, "true" | "false"), "true or false"),
        "prediction_type" if diffusion => (matches!(value, "v" | "epsilon"), "v or epsilon"),
        "date" => (is_date(value), "an ISO 8601 date, such as 2023-07-16"),
        "thumbnail" => (is_picture(value), "a picture as data:image/jpeg;base64,..."),
        "hash_sha256" => (is_hash(value, 64), "0x and 64 lower-case digits"),
        _ if key.starts_with("hash_") => (is_hash(value, value.len().saturating_sub(2)), "0x and lower-case digits"),
        _ => return None,
    };
    (!sound).then(|| format!("is {}, but should be {wanted}", quote(value)))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())
}

fn is_pair(value: &str, separator: char) -> bool {
    value.split_once(separator).is_some_and(|(a, b)| is_number(a) && is_number(b))
}

fn is_hash(value: &str, digits: usize) -> bool {
    let Some(text) = value.strip_prefix("0x") else { return false };
    !text.is_empty() && text.len() == digits && text.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a value is a year, a month, or a date with or without time and zone.
fn is_date(value: &str) -> bool {
    let is_month = value.len() == 7 && format!("{value}-01").parse::<DateTime>().is_ok();
    let is_year = value.len() == 4 && is_number(value);
    is_month || is_year || value.parse::<DateTime>().is_ok() || value.parse::<Timestamp>().is_ok()
}

fn is_picture(value: &str) -> bool {
    let data = value.strip_prefix("data:image/").and_then(|rest| rest.split_once(";base64,"));
    data.is_some_and(|(_, text)| STANDARD.decode(text).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(pairs: &[(&str, &str)]) -> Vec<(String, MetadataValue)> {
        let mut metadata: Vec<_> =
            pairs.iter().map(|(key, value)| (key.to_string(), MetadataValue::from(*value))).collect();
        metadata.sort_by(|a, b| a.0.cmp(&b.0));
        metadata
    }

    #[test]
    fn values_are_checked_against_modelspec() {
        let hash = "0x3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855a";
        let cases: [(&str, &[&str], &[&str]); 8] = [
            ("sai_model_spec", &["1.0.0", "1.0.1", "1.0"], &["2.0.0", "sai_model_spec_1.0", ""]),
            ("resolution", &["1024x1024", "512x768"], &["1024", "1024X1024", "x", "1024x", "1024x1024 ", "-1x2"]),
            ("timestep_range", &["0,499"], &["0-499", "0,", "0, 499"]),
            ("is_negative_embedding", &["true", "false"], &["True", "no", ""]),
            ("prediction_type", &["v", "epsilon"], &["eps", "V"]),
            (
                "date",
                &[
                    "2023-07-16",
                    "2023-07-16T18:13:38Z",
                    "2023-07-16T18:13:38",
                    "2023-07-16T18:13:38.5+02:00",
                    "2023-07",
                ],
                &["16.07.2023", "2023\u{2010}07\u{2010}16", "2023-13-01", "yesterday", ""],
            ),
            (
                "thumbnail",
                &["data:image/jpeg;base64,/9j/", "data:image/png;base64,"],
                &["https://example.com/a.jpg", "data:image/jpeg;base64,%%%", "data:text/plain;base64,AAAA"],
            ),
            ("hash_sha256", &[hash], &[&hash[2..], "0xABC", "0x", "", &hash[..65]]),
        ];
        for (key, sound, unsound) in cases {
            sound.iter().for_each(|value| assert_eq!(value_fault(key, value, true), None, "{key} {value}"));
            unsound.iter().for_each(|value| assert!(value_fault(key, value, true).is_some(), "{key} {value}"));
        }
        assert_eq!(value_fault("prediction_type", "flow", false), None);
        assert_eq!(value_fault("hash_md5", "0xd41d8cd98f00b204e9800998ecf8427e", false), None);
        assert!(value_fault("hash_md5", "0xD4", false).is_some());
        assert_eq!(value_fault("anything", "at all", false), None);
    }

    #[test]
    fn missing_keys_are_reported() {
        let keys = |pairs: &[(&str, &str)]| {
            let metadata = metadata(pairs);
            modelspec_faults(&metadata).into_iter().map(|fault| fault.0.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(keys(&[("format", "pt"), ("ss_v2", "False")]), [""; 0]);
        let all = [
            ("modelspec.architecture", "stable-diffusion-xl-v1-base/lora"),
            ("modelspec.implementation", "sgm"),
            ("modelspec.resolution", "1024x1024"),
            ("modelspec.sai_model_spec", "1.0.1"),
            ("modelspec.title", "LoRA"),
        ];
        assert_eq!(keys(&all), [""; 0]);
        for missing in 0..all.len() {
            let (key, _) = all[missing];
            let rest = [&all[..missing], &all[missing + 1..]].concat();
            assert_eq!(keys(&rest), [&key[10..]]);
            assert_eq!(keys(&[&rest[..], &[(key, "")]].concat())[0], key[10..], "an empty value counts as missing");
        }
        assert_eq!(keys(&[&all[..2], &[("modelspec.data_format", "fp16")], &all[3..]].concat()), [""; 0]);
    }

    #[test]
    fn labels_are_unique_and_hashes_are_accepted_in_every_spelling() {
        for labels in [&MODELSPEC[..], &KOHYA[..]] {
            let keys: std::collections::BTreeSet<_> = labels.iter().map(|label| label.0).collect();
            let names: std::collections::BTreeSet<_> = labels.iter().map(|label| label.1).collect();
            assert_eq!((keys.len(), names.len()), (labels.len(), labels.len()));
        }
        let lower = "ab".repeat(32);
        for text in [lower.clone(), format!("0x{lower}"), lower.to_uppercase(), format!("0X{}", lower.to_uppercase())] {
            assert_eq!(sha256(&text), Some(lower.clone()));
        }
        for text in ["", "0x", &lower[1..], &format!("{}g", &lower[1..])] {
            assert_eq!(sha256(text), None);
        }
    }
}
