//! Replaces `tls` in a build without the feature `tls`.

use fs_stacks::Stream;
use std::io;
use std::path::Path;

/// A listener's TLS configuration. It has no value, because no listener speaks TLS.
#[derive(Clone, Debug)]
pub(crate) enum Config {}

/// A listener's TLS acceptor. It has no value either.
#[derive(Debug)]
pub(crate) enum Acceptor {}

impl From<Config> for Acceptor {
    fn from(config: Config) -> Acceptor {
        match config {}
    }
}

/// Returns an error: no listener can speak TLS here.
pub(crate) fn read(_certificate: &Path, _key: &Path, _protocols: &[&str]) -> anyhow::Result<Config> {
    anyhow::bail!("this fs-proxy was built without TLS: build it with the feature `tls`, or remove the key")
}

pub(crate) async fn accept(acceptor: &Acceptor, _stream: Stream) -> io::Result<Stream> {
    match *acceptor {}
}
