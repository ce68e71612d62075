//! A TLS echo server with tokio-rustls. Handshake and encryption run on the connection's core.
//!
//! The certificate is made for this run, and written to the file that the second argument names.

use fastsock::Runtime;
use fastsock::local::TcpListener;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;

/// A client that does not complete its handshake must not keep its connection.
const HANDSHAKE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let at: SocketAddr = arguments.next().as_deref().unwrap_or("127.0.0.1:4433").parse()?;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    std::fs::write(arguments.next().as_deref().unwrap_or("localhost.pem"), made.cert.pem())?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    // The devices of FASTSOCK_DEVICE. Without one, or without rights to it: kernel sockets.
    let runtime = Runtime::builder().devices_of_environment().or_kernel().build()?;
    for result in runtime.run(move |_core| serve(at, acceptor))? {
        result?;
    }
    Ok(())
}

async fn serve(at: SocketAddr, acceptor: TlsAcceptor) -> std::io::Result<()> {
    let listener = TcpListener::bind(at).await?;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _peer)) => stream,
            // The runtime shuts down.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(()),
            // Too many open files, or a connection that ended in the queue: the listener goes on.
            Err(error) => {
                eprintln!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        };
        let handshake = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream));
        fastsock::spawn_local(async move {
            let echoed = async {
                let (mut reader, mut writer) = tokio::io::split(handshake.await??);
                tokio::io::copy(&mut reader, &mut writer).await?;
                // Sends close_notify, so that the peer can tell the end from a truncation.
                writer.shutdown().await
            };
            if let Err(error) = echoed.await {
                eprintln!("{error}");
            }
        });
    }
}
