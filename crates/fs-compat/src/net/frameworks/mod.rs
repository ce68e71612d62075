//! Implementations of frameworks' transport traits, each behind its feature.

#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "hyper-util")]
mod hyper_util;
#[cfg(feature = "quinn")]
mod quinn;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(feature = "axum")]
pub use self::axum::PeerAddr;
#[cfg(feature = "hyper-util")]
pub use self::hyper_util::{Connecting, Connector};
#[cfg(feature = "tonic")]
pub use self::tonic::TcpIncoming;
