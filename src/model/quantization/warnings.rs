//! Warnings about weights that could not be recognised: one for all tensors with the same problem.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// A tensor is missing that every weight of the scheme needs.
    Missing,
    /// Tensors of a known scheme do not fit together.
    Mismatch,
    /// The scheme, or its variant, is not known.
    Unknown,
    /// The configuration contradicts the tensors. The weights are dequantized nevertheless.
    Contradiction,
}

pub struct WeightRefusal {
    pub problem: ProblemKind,
    pub reason: &'static str,
    pub found: String,
}

impl WeightRefusal {
    pub fn unknown(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: ProblemKind::Unknown, reason, found: found.into() }
    }

    pub fn mismatch(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: ProblemKind::Mismatch, reason, found: found.into() }
    }

    pub fn missing(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: ProblemKind::Missing, reason, found: found.into() }
    }

    pub fn contradiction(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: ProblemKind::Contradiction, reason, found: found.into() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProblemPlace {
    /// The number of the tensor with the codes.
    pub tensor: usize,
    /// The values that were found there.
    pub found: String,
}

const PLACES_MAX: usize = 1000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightWarning {
    pub problem: ProblemKind,
    pub scheme: Option<&'static str>,
    pub reason: &'static str,
    /// The values that were found at the first tensor.
    pub found: String,
    /// The name of the first tensor; empty for a problem of the configuration.
    pub example: String,
    pub count: usize,
    /// The first of these tensors, at most 1000; empty for a problem of the configuration.
    pub places: Vec<ProblemPlace>,
}

impl fmt::Display for WeightWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(scheme) = self.scheme {
            write!(f, "{scheme}: ")?;
        }
        write!(f, "{} ({})", self.reason, self.found.escape_debug())?;
        if !self.example.is_empty() {
            write!(f, ", such as \"{}\"", self.example.escape_debug())?;
        }
        match (self.count, self.places.is_empty()) {
            (1, _) => Ok(()),
            (count, true) => write!(f, ", and {} more", count - 1),
            (count, false) => write!(f, ", {count} tensors"),
        }
    }
}

/// Adds a problem of a tensor, given by its number and its name, or of the configuration.
pub fn add_warning(
    warnings: &mut Vec<WeightWarning>,
    scheme: Option<&'static str>,
    refusal: WeightRefusal,
    place: Option<(usize, &str)>,
) {
    let WeightRefusal { problem, reason, found } = refusal;
    // The reasons are constants, so the list is short.
    let at = warnings.iter().position(|warning| (warning.scheme, warning.reason) == (scheme, reason));
    let at = at.unwrap_or_else(|| {
        let (found, example) = (found.clone(), place.map_or("", |(_, name)| name).to_owned());
        warnings.push(WeightWarning { problem, scheme, reason, found, example, count: 0, places: Vec::new() });
        warnings.len() - 1
    });
    let warning = &mut warnings[at];
    warning.count += 1;
    if let Some((tensor, _)) = place.filter(|_| warning.places.len() < PLACES_MAX) {
        warning.places.push(ProblemPlace { tensor, found });
    }
}
