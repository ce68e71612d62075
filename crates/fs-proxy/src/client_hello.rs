//! The server name that a TLS client asks for, read without ending its TLS (RFC 6066 3).

use fs_stacks::Stream;
use rustls::server::Acceptor;
use std::io;
use tokio::io::AsyncReadExt;

/// Bytes in which a name must come. A ClientHello has about 300 to 2,000 bytes.
const LENGTH_MAX: usize = 16 << 10;

/// Reads a ClientHello. Returns all bytes that were read, and the name, if there is one. A client
/// that does not speak TLS names nothing.
///
/// # Errors
/// If the connection ends before: [`io::ErrorKind::UnexpectedEof`] before its first byte.
pub(crate) async fn read(stream: &mut Stream) -> io::Result<(Vec<u8>, Option<String>)> {
    let mut acceptor = Acceptor::default();
    let mut bytes = Vec::new();
    let mut piece = [0; 2048];
    loop {
        let length = match stream.read(&mut piece).await {
            // Some checks end with a reset.
            Ok(0) | Err(_) if bytes.is_empty() => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(0) => return Err(io::Error::other("ends within a ClientHello")),
            read => read?,
        };
        bytes.extend_from_slice(&piece[..length]);
        let mut rest = &piece[..length];
        while !rest.is_empty() {
            acceptor.read_tls(&mut rest)?;
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let name = accepted.client_hello().server_name().map(str::to_owned);
                return Ok((bytes, name));
            }
            Ok(None) if bytes.len() < LENGTH_MAX => {}
            Ok(None) | Err(_) => return Ok((bytes, None)),
        }
    }
}
