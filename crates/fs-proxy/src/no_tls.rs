//! Replaces `tls` in a build without the feature `tls`.

use fs_stacks::Stream;
use std::io;
use std::path::Path;

/// No listener has one.
#[derive(Clone, Debug)]
pub(crate) enum Config {}
/// The same.
#[derive(Clone)]
pub(crate) struct Acceptor(Config);

impl From<Config> for Acceptor {
    fn from(config: Config) -> Self {
        Self(config)
    }
}

/// The files of a listener's `tls`.
pub(crate) struct Files<'a> {
    pub(crate) identities: Vec<(&'a Path, &'a Path)>,
    pub(crate) client_ca: Option<&'a Path>,
}

/// Returns an error: no listener can speak TLS here.
pub(crate) fn read(files: &Files<'_>, _protocols: &[&str]) -> anyhow::Result<Config> {
    let Files { identities, client_ca } = files;
    let count = identities.len() + usize::from(client_ca.is_some());
    anyhow::bail!("this fs-proxy was built without TLS, so it cannot use these {count} files: remove the key")
}

pub(crate) async fn accept(acceptor: &Acceptor, _stream: Stream) -> io::Result<Stream> {
    match acceptor.0 {}
}
