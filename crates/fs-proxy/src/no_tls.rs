//! Replaces `tls` in a build without the feature `tls`.

use fs_example_common::Stream;
use std::io;
use std::path::Path;

/// No listener has one.
#[derive(Clone, Debug)]
pub(crate) enum Config {}
/// The same.
pub(crate) type Acceptor = Config;

/// Returns an error: no listener can speak TLS here.
pub(crate) fn read(_certificate: &Path, _key: &Path, _protocols: &[&str]) -> anyhow::Result<Config> {
    anyhow::bail!("this fs-proxy was built without TLS: build it with the feature `tls`, or remove the key")
}

pub(crate) async fn accept(acceptor: &Acceptor, _stream: Stream) -> io::Result<Stream> {
    match *acceptor {}
}
