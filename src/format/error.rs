//! Why a file has no usable header.

use super::detect::ForeignFormat;
use super::gguf;
use super::input::MissingRange;
use super::numpy;
use super::pytorch;
use super::safetensors;
use super::slm;

/// Why a file has no usable header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] MissingRange),
    /// The file is of a format that weightfs does not read.
    #[error("not a model but {0}")]
    Foreign(ForeignFormat),
    /// The header is spread over too much of the file.
    #[error("its header needs more than {max} bytes in different places of the file")]
    Spread {
        /// Maximum number of bytes that are read.
        max: u64,
    },
    /// The file breaks a rule of safetensors.
    #[error(transparent)]
    Safetensors(safetensors::SafetensorsError),
    /// The file breaks a rule of GGUF.
    #[error(transparent)]
    Gguf(gguf::GgufError),
    /// The file breaks a rule of PyTorch checkpoints.
    #[error(transparent)]
    Pytorch(Box<pytorch::PytorchError>),
    /// The file breaks a rule of NumPy's formats.
    #[error(transparent)]
    Numpy(numpy::NumpyError),
    /// The file breaks a rule of SLM1.
    #[error(transparent)]
    Slm(slm::SlmError),
}

impl Error {
    /// The tensor that breaks a rule, if one does.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Self::Safetensors(safetensors::SafetensorsError::Tensor { name, .. })
            | Self::Gguf(gguf::GgufError::Tensor { name, .. })
            | Self::Numpy(numpy::NumpyError::Tensor { name, .. })
            | Self::Slm(slm::SlmError::Tensor { name, .. }) => Some(name),
            Self::Pytorch(error) => match &**error {
                pytorch::PytorchError::Tensor { name, .. } => Some(name),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the file ends before its data does.
    pub fn is_cut(&self) -> bool {
        matches!(
            self,
            Self::Safetensors(safetensors::SafetensorsError::DataCut { .. })
                | Self::Gguf(gguf::GgufError::DataCut { .. })
                | Self::Numpy(numpy::NumpyError::DataCut { .. })
                | Self::Slm(slm::SlmError::DataCut { .. })
        )
    }
}

impl From<safetensors::SafetensorsError> for Error {
    fn from(error: safetensors::SafetensorsError) -> Self {
        match error {
            safetensors::SafetensorsError::Missing(missing) => Self::Missing(missing),
            other => Self::Safetensors(other),
        }
    }
}

impl From<gguf::GgufError> for Error {
    fn from(error: gguf::GgufError) -> Self {
        match error {
            gguf::GgufError::Missing(missing) => Self::Missing(missing),
            other => Self::Gguf(other),
        }
    }
}

impl From<numpy::NumpyError> for Error {
    fn from(error: numpy::NumpyError) -> Self {
        match error {
            numpy::NumpyError::Missing(missing) => Self::Missing(missing),
            other => Self::Numpy(other),
        }
    }
}

impl From<slm::SlmError> for Error {
    fn from(error: slm::SlmError) -> Self {
        match error {
            slm::SlmError::Missing(missing) => Self::Missing(missing),
            other => Self::Slm(other),
        }
    }
}

impl From<pytorch::PytorchError> for Error {
    fn from(error: pytorch::PytorchError) -> Self {
        match error {
            pytorch::PytorchError::Missing(missing) => Self::Missing(missing),
            other => Self::Pytorch(other.into()),
        }
    }
}
