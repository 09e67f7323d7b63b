//! The reports of `weightfs diff`, in its formats.

use crate::cli::DiffArgs;
use crate::terminal::comparison::ModelComparison;
use crate::terminal::deviation::ValueDeviations;
use crate::terminal::output::{StandardOutput, pretty, to_stdout};
use crate::terminal::report;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

/// How a report is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DiffFormat {
    Text,
    Json,
    Markdown,
}

impl DiffFormat {
    pub fn of(args: &DiffArgs) -> Self {
        match () {
            () if args.json => Self::Json,
            () if args.markdown => Self::Markdown,
            () => Self::Text,
        }
    }
}

/// Prints a report, which `make` returns after whether nothing differs. The exit code is 0 if so, and 1 otherwise.
pub(super) fn print_report(
    make: impl FnOnce(&StandardOutput) -> anyhow::Result<(bool, String)>,
) -> anyhow::Result<ExitCode> {
    let mut is_same = false;
    let printed = to_stdout(|out| {
        let (same, text) = make(out)?;
        is_same = same;
        out.write_all(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    });
    // `is_same` is set before the output, so the exit code is right even if the pipe is closed.
    printed.map(|_| ExitCode::from(u8::from(!is_same)))
}

#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum DiffReport<'m> {
    /// The differences of their headers and of the stored data.
    Stored(ModelComparison<'m>),
    /// The differences of their values.
    Values(ValueDeviations),
}

impl DiffReport<'_> {
    pub fn is_same(&self) -> bool {
        match self {
            Self::Stored(report) => report.same,
            Self::Values(report) => report.same,
        }
    }

    pub fn render(&self, format: DiffFormat, out: &StandardOutput) -> anyhow::Result<String> {
        let page = match self {
            _ if format == DiffFormat::Json => return Ok(pretty(self)? + "\n"),
            Self::Stored(report) => report.page(),
            Self::Values(report) => report.page(),
        };
        Ok(if format == DiffFormat::Markdown { page.markdown() } else { page.text(out) })
    }
}

/// The models that only one of two directories has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct LoneModels {
    pub added: Vec<String>,
    pub removed: Vec<String>,
}

/// The reports on two models, or on the models of two directories.
pub(super) struct DiffReports {
    format: DiffFormat,
    /// `None` if the sources are models.
    lone: Option<LoneModels>,
    same: bool,
    /// The number of models without differences.
    alike: usize,
    /// The reports on the other ones, or on the only two models.
    texts: Vec<String>,
    /// The reports on all models of directories, for JSON.
    reports: BTreeMap<String, Value>,
}

impl DiffReports {
    pub fn new(format: DiffFormat, lone: Option<LoneModels>) -> Self {
        let same = lone.as_ref().is_none_or(|lone| lone.added.is_empty() && lone.removed.is_empty());
        Self { format, lone, same, alike: 0, texts: Vec::new(), reports: BTreeMap::new() }
    }

    /// Adds the report on two models, which have this path in directories.
    pub fn add(&mut self, path: String, report: &DiffReport, out: &StandardOutput) -> anyhow::Result<()> {
        if self.lone.is_some() && self.format == DiffFormat::Json {
            self.reports.insert(path, serde_json::to_value(report)?);
        } else if self.lone.is_none() || !report.is_same() {
            self.texts.push(report.render(self.format, out)?);
        }
        self.alike += usize::from(report.is_same());
        self.same &= report.is_same();
        Ok(())
    }

    /// Whether nothing differs, and the text of all reports.
    pub fn render(&self, out: &StandardOutput) -> anyhow::Result<(bool, String)> {
        let Self { format, lone, same, alike, texts, reports } = self;
        let text = match (lone, format) {
            (None, _) => texts.concat(),
            (Some(LoneModels { added, removed }), DiffFormat::Json) => {
                pretty(&json!({"same": same, "added": added, "removed": removed, "models": reports}))? + "\n"
            }
            (Some(LoneModels { added, removed }), _) => {
                report::catalogs(removed, added, *alike, texts, (*format == DiffFormat::Text).then_some(out))
            }
        };
        Ok((*same, text))
    }
}
