//! Warnings about weights that could not be recognised: one for all tensors with the same problem.

use std::fmt;

/// What kind of problem it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Problem {
    /// A tensor is missing that every weight of the scheme needs.
    Missing,
    /// Tensors of a known scheme do not fit together.
    Mismatch,
    /// The scheme, or its variant, is not known.
    Unknown,
}

/// Why a weight is not recognised.
pub struct Refusal {
    /// What kind of problem it is.
    pub problem: Problem,
    /// The problem.
    pub reason: &'static str,
    /// What was found.
    pub found: String,
}

impl Refusal {
    /// A scheme or a variant that is not known.
    pub fn new(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: Problem::Unknown, reason, found: found.into() }
    }

    /// Tensors that do not fit together.
    pub fn mismatch(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: Problem::Mismatch, ..Self::new(reason, found) }
    }

    /// A tensor that is missing.
    pub fn missing(reason: &'static str, found: impl Into<String>) -> Self {
        Self { problem: Problem::Missing, ..Self::new(reason, found) }
    }
}

/// A tensor with a problem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The number of the tensor with the codes.
    pub tensor: usize,
    /// What was found there.
    pub found: String,
}

/// Maximum number of places that a warning lists.
const PLACES_MAX: usize = 1000;

/// A problem of some tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// What kind of problem it is.
    pub problem: Problem,
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
    pub places: Vec<Place>,
}

impl fmt::Display for Warning {
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
pub struct Warnings {
    list: Vec<Warning>,
}

impl Warnings {
    /// Adds a problem of a tensor, given by its number and its name.
    pub fn add(&mut self, scheme: Option<&'static str>, refusal: Refusal, (tensor, example): (usize, &str)) {
        let warning = self.of(scheme, &refusal, example);
        warning.count += 1;
        if warning.places.len() < PLACES_MAX {
            warning.places.push(Place { tensor, found: refusal.found });
        }
    }

    /// Adds a problem of the configuration.
    pub fn add_general(&mut self, refusal: &Refusal) {
        self.of(None, refusal, "").count += 1;
    }

    fn of(&mut self, scheme: Option<&'static str>, refusal: &Refusal, example: &str) -> &mut Warning {
        let Refusal { problem, reason, ref found } = *refusal;
        // The reasons are constants, so the list is short.
        let at = self.list.iter().position(|warning| (warning.scheme, warning.reason) == (scheme, reason));
        let at = at.unwrap_or_else(|| {
            let (found, example) = (found.clone(), example.to_owned());
            self.list.push(Warning { problem, scheme, reason, found, example, count: 0, places: Vec::new() });
            self.list.len() - 1
        });
        &mut self.list[at]
    }

    /// All warnings.
    pub fn finish(self) -> Vec<Warning> {
        self.list
    }
}
