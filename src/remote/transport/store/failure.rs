//! Takes our own error out of an error of `object_store`, whose texts contain URLs with signatures.

use std::error::Error as StdError;
use std::fmt;

use super::super::error::{ErrorKind, TransportError, plain};
use crate::remote::location::StoreKind;

/// Our error on its way through `object_store`.
#[derive(Debug)]
pub(super) struct CarriedError(pub(super) TransportError);

impl fmt::Display for CarriedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for CarriedError {}

/// The error that the connector or the credentials made; for others, the innermost cause without URLs.
pub(super) fn translate(error: object_store::Error, kind: StoreKind) -> TransportError {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(&error);
    let mut innermost: &dyn StdError = &error;
    while let Some(error) = cause {
        if let Some(CarriedError(ours)) = error.downcast_ref() {
            return advise(ours.clone(), kind);
        }
        innermost = error;
        cause = error.source();
    }
    let what = match &error {
        object_store::Error::NotFound { .. } => ErrorKind::Missing,
        object_store::Error::Precondition { .. } => ErrorKind::Changed,
        _ => ErrorKind::Protocol,
    };
    TransportError::new(what, plain(&innermost.to_string()))
}

/// Adds what the user can do.
pub(super) fn advise(error: TransportError, kind: StoreKind) -> TransportError {
    let advice = match (error.kind(), kind) {
        (ErrorKind::Credentials, StoreKind::S3) => {
            "; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or AWS_SKIP_SIGNATURE=true for public data"
        }
        (ErrorKind::Credentials, StoreKind::Gcs) => {
            "; set GOOGLE_APPLICATION_CREDENTIALS, log in with gcloud, or set GOOGLE_SKIP_SIGNATURE=true for public data"
        }
        (ErrorKind::Credentials, StoreKind::Azure) => {
            "; set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or AZURE_SKIP_SIGNATURE=true for public data"
        }
        (ErrorKind::Forbidden, StoreKind::S3) if error.status == Some(403) => {
            "; without the permission to list the bucket, S3 says so for missing keys too"
        }
        _ => return error,
    };
    error.with_text(|text| format!("{text}{advice}"))
}
