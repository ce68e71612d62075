//! Replaces `handshake` in a build without the feature `tls`.

use crate::clients::Connection;
use crate::config::Mode;
use crate::site::Site;
use fs_example_common::Stream;
use std::net::SocketAddr;
use std::path::Path;

/// No listener has one.
#[derive(Clone, Debug)]
pub(crate) enum Config {}
/// The same.
pub(crate) type Acceptor = Config;

/// Returns an error: no listener can speak TLS here.
pub(crate) fn read(_certificate: &Path, _key: &Path, _mode: Mode) -> anyhow::Result<Config> {
    anyhow::bail!("this fs-proxy was built without TLS: build it with the feature `tls`, or remove the key")
}

pub(crate) async fn accept(
    _site: &Site,
    _listener: usize,
    acceptor: &Acceptor,
    _stream: Stream,
    _peer: SocketAddr,
    _connection: &Connection,
) -> Option<Stream> {
    match *acceptor {}
}
