//! Warnings about weights that could not be recognised: one for all tensors with the same problem.

use std::fmt;

/// The kind of problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// A tensor is missing that every weight of the scheme needs.
    Missing,
    /// Tensors of a known scheme do not fit together.
    Mismatch,
    /// The scheme, or its variant, is not known.
    Unknown,
}

/// Why a weight is not recognised.
pub struct WeightRefusal {
    /// The kind of problem.
    pub problem: ProblemKind,
    /// The problem.
    pub reason: &'static str,
    /// The values that were found.
    pub found: String,
}

impl WeightRefusal {
    /// A scheme or a variant that is not known.
    pub fn new(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: ProblemKind::Unknown, reason, found: found.into() }
    }

    /// Tensors that do not fit together.
    pub fn mismatch(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: ProblemKind::Mismatch, ..Self::new(reason, found) }
    }

    /// A tensor that is missing.
    pub fn missing(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: ProblemKind::Missing, ..Self::new(reason, found) }
    }
}

/// A tensor with a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProblemPlace {
    /// The number of the tensor with the codes.
    pub tensor: usize,
    /// The values that were found there.
    pub found: String,
}

/// Maximum number of places that a warning lists.
const PLACES_MAX: usize = 1000;

/// A problem of some tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightWarning {
    /// The kind of problem.
    pub problem: ProblemKind,
    /// The scheme, if it is known.
    pub scheme: Option<&'static str>,
    /// The problem.
    pub reason: &'static str,
    /// What was found at the first tensor.
    pub found: String,
    /// The name of the first tensor; empty for a problem of the configuration.
    pub example: String,
    /// Number of tensors.
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
        match self.count {
            1 => Ok(()),
            count => write!(f, ", {count} tensors"),
        }
    }
}

/// Collects warnings.
#[derive(Debug, Default)]
pub struct WeightWarnings {
    list: Vec<WeightWarning>,
}

impl WeightWarnings {
    /// Adds a problem of a tensor, given by its number and its name.
    pub fn add(&mut self, scheme: Option<&'static str>, refusal: WeightRefusal, (tensor, example): (usize, &str)) {
        let warning = self.of(scheme, &refusal, example);
        warning.count += 1;
        if warning.places.len() < PLACES_MAX {
            warning.places.push(ProblemPlace { tensor, found: refusal.found });
        }
    }

    /// Adds a problem of the configuration.
    pub fn add_general(&mut self, refusal: &WeightRefusal) {
        self.of(None, refusal, "").count += 1;
    }

    fn of(&mut self, scheme: Option<&'static str>, refusal: &WeightRefusal, example: &str) -> &mut WeightWarning {
        let WeightRefusal { problem, reason, ref found } = *refusal;
        // The reasons are constants, so the list is short.
        let at = self.list.iter().position(|warning| (warning.scheme, warning.reason) == (scheme, reason));
        let at = at.unwrap_or_else(|| {
            let (found, example) = (found.clone(), example.to_owned());
            self.list.push(WeightWarning { problem, scheme, reason, found, example, count: 0, places: Vec::new() });
            self.list.len() - 1
        });
        &mut self.list[at]
    }

    /// All warnings.
    pub fn finish(self) -> Vec<WeightWarning> {
        self.list
    }
}
