//! Replaces `tls` in a build without the feature `tls`.

use fs_stacks::Stream;
use std::io;
use std::net::SocketAddr;
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
    pub(crate) identities: Vec<(&'a Path, &'a Path, Option<&'a Path>)>,
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

/// The files of an upstream's `tls`.
pub(crate) struct ServerFiles<'a> {
    pub(crate) ca: Option<&'a Path>,
    pub(crate) identity: Option<(&'a Path, &'a Path)>,
}

/// No upstream has one.
#[derive(Clone, Debug)]
pub(crate) enum Connector {}
/// The same.
pub(crate) struct ToServer(Connector);

/// Returns an error: no upstream can have TLS here.
pub(crate) fn connector(
    files: &ServerFiles<'_>,
    _name: Option<&str>,
    _protocol: Option<&'static str>,
) -> anyhow::Result<Connector> {
    let ServerFiles { ca, identity } = files;
    let count = usize::from(ca.is_some()) + 2 * usize::from(identity.is_some());
    anyhow::bail!("this fs-proxy was built without TLS, so it cannot use it or its {count} files: remove the key")
}

impl Connector {
    pub(crate) fn to(&self, _server: Option<&str>, _addr: SocketAddr) -> anyhow::Result<ToServer> {
        match *self {}
    }
}

impl ToServer {
    #[allow(clippy::unused_async, reason = "as with TLS")]
    pub(crate) async fn connect(&self, _stream: Stream) -> io::Result<Stream> {
        match self.0 {}
    }
}
