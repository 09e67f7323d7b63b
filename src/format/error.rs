//! Why a file has no usable header.

use super::detect::Foreign;
use super::gguf;
use super::input::Missing;
use super::numpy;
use super::pytorch;
use super::safetensors;
use super::slm;

/// Why a file has no usable header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The file is of a format that weightfs does not read.
    #[error("not a model but {0}")]
    Foreign(Foreign),
    /// The header is spread over too much of the file.
    #[error("its header needs more than {max} bytes in different places of the file")]
    Spread {
        /// How many bytes are read at most.
        max: u64,
    },
    /// The file breaks a rule of safetensors.
    #[error(transparent)]
    Safetensors(safetensors::Error),
    /// The file breaks a rule of GGUF.
    #[error(transparent)]
    Gguf(gguf::Error),
    /// The file breaks a rule of PyTorch checkpoints.
    #[error(transparent)]
    Pytorch(Box<pytorch::Error>),
    /// The file breaks a rule of NumPy's formats.
    #[error(transparent)]
    Numpy(numpy::Error),
    /// The file breaks a rule of SLM1.
    #[error(transparent)]
    Slm(slm::Error),
}

impl Error {
    /// The tensor that breaks a rule, if one does.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Self::Safetensors(safetensors::Error::Tensor { name, .. })
            | Self::Gguf(gguf::Error::Tensor { name, .. })
            | Self::Numpy(numpy::Error::Tensor { name, .. })
            | Self::Slm(slm::Error::Tensor { name, .. }) => Some(name),
            Self::Pytorch(error) => match &**error {
                pytorch::Error::Tensor { name, .. } => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the file ends before its data does.
    pub fn is_cut(&self) -> bool {
        matches!(
            self,
            Self::Safetensors(safetensors::Error::DataCut { .. })
                | Self::Gguf(gguf::Error::DataCut { .. })
                | Self::Numpy(numpy::Error::DataCut { .. })
                | Self::Slm(slm::Error::DataCut { .. })
        )
    }
}

impl From<safetensors::Error> for Error {
    fn from(error: safetensors::Error) -> Self {
        match error {
            safetensors::Error::Missing(missing) => Self::Missing(missing),
            other => Self::Safetensors(other),
        }
    }
}

impl From<gguf::Error> for Error {
    fn from(error: gguf::Error) -> Self {
        match error {
            gguf::Error::Missing(missing) => Self::Missing(missing),
            other => Self::Gguf(other),
        }
    }
}

impl From<numpy::Error> for Error {
    fn from(error: numpy::Error) -> Self {
        match error {
            numpy::Error::Missing(missing) => Self::Missing(missing),
            other => Self::Numpy(other),
        }
    }
}

impl From<slm::Error> for Error {
    fn from(error: slm::Error) -> Self {
        match error {
            slm::Error::Missing(missing) => Self::Missing(missing),
            other => Self::Slm(other),
        }
    }
}

impl From<pytorch::Error> for Error {
    fn from(error: pytorch::Error) -> Self {
        match error {
            pytorch::Error::Missing(missing) => Self::Missing(missing),
            other => Self::Pytorch(other.into()),
        }
    }
}
