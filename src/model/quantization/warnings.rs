//! What could not be recognised, one warning for all tensors with the same problem.

use std::fmt;

/// A problem of some tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warning {
    /// The scheme, if it is known.
    pub scheme: Option<&'static str>,
    /// The problem.
    pub reason: &'static str,
    /// What was found at the first tensor.
    pub found: String,
    /// The name of the first tensor; empty if the problem is that of the configuration.
    pub example: String,
    /// Number of tensors.
    pub count: usize,
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
    /// Adds a problem of the tensor `example`.
    pub fn add(&mut self, scheme: Option<&'static str>, reason: &'static str, found: &str, example: &str) {
        // The reasons are constants, so the list is short.
        match self.list.iter_mut().find(|warning| (warning.scheme, warning.reason) == (scheme, reason)) {
            Some(warning) => warning.count += 1,
            None => {
                let (found, example) = (found.to_owned(), example.to_owned());
                self.list.push(Warning { scheme, reason, found, example, count: 1 });
            }
        }
    }

    /// All warnings.
    pub fn finish(self) -> Vec<Warning> {
        self.list
    }
}
