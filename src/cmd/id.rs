//! `weightfs id`: prints the structural hash of a model, in the output format of weight-inspect.

use crate::cli::IdArgs;
use crate::opening::NamedModels;
use crate::terminal::output::to_stdout;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;
use weightfs::format::ParseMode;
use weightfs::inspect::ModelIdentity;

pub fn run_id(args: &IdArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let models = NamedModels::find(&args.input.sources, &args.input.remote, out)?;
        let several = models.files.len() > 1;
        models.each(ParseMode::Header, out, |model, location, out| {
            let ModelIdentity { hash, tensors, metadata } = ModelIdentity::of(model);
            if args.json {
                let mut object = json!({
                    "schema": 1, "format": model.format(), "structural_hash": hash, "tensor_count": tensors,
                    "metadata_count": metadata,
                });
                if several {
                    object["source"] = location.to_string().into();
                }
                return out.print_json(&object);
            }
            if several {
                out.title(location, ":")?;
            }
            writeln!(out, "Structural identity\n{}", "─".repeat(18))?;
            writeln!(out, "ID:        wi:{}:{}:{}", model.format(), model.format_version().unwrap_or(0), &hash[..8])?;
            writeln!(out, "Stable:    yes (machine independent)")?;
            writeln!(out, "Includes:  header, tensor names, shapes, dtypes")?;
            writeln!(out, "Excludes:  raw weight bytes")?;
            writeln!(out, "\nformat: {}\nstructural_hash: {hash}", name(model.format()))?;
            writeln!(out, "tensor_count: {tensors}\nmetadata_count: {metadata}")?;
            Ok(())
        })
    })
}

/// The name of a format, as weight-inspect prints it.
fn name(format: &str) -> &str {
    match format {
        "safetensors" => "Safetensors",
        "gguf" => "GGUF",
        other => other,
    }
}
