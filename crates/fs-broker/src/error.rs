//! Errors.

use fs_xdp::XdpError;
use std::error::Error as _;
use std::io;

/// The reason why a device is not shared, or a program gets no pair.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the system.
    #[error("cannot {doing}: {source}")]
    System {
        /// What was being done.
        doing: String,
        /// Why.
        source: io::Error,
    },
    /// An error of the BPF loader.
    #[error("cannot {doing}: {reason}")]
    Bpf {
        /// What was being done.
        doing: &'static str,
        /// Why.
        reason: String,
    },
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] XdpError),
}

impl Error {
    pub(crate) fn system(doing: impl Into<String>, source: io::Error) -> Self {
        Error::System { doing: doing.into(), source }
    }

    /// Creates an error with all layers of the loader's error.
    pub(crate) fn bpf(doing: &'static str, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut reason = error.to_string();
        let mut at = error.source();
        while let Some(error) = at {
            reason = format!("{reason}: {error}");
            at = error.source();
        }
        Error::Bpf { doing, reason }
    }

    /// Returns the error number for a program's call.
    pub(crate) fn errno(&self) -> i32 {
        let of = |error: &io::Error| error.raw_os_error().unwrap_or(libc::EIO);
        match self {
            Error::System { source, .. } => of(source),
            Error::Bpf { .. } => libc::EIO,
            Error::Device(error) => error.source().and_then(|e| e.downcast_ref()).map_or(libc::EIO, of),
        }
    }
}
