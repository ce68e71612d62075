// Included with `api` as std::net, after std_net.rs: what its types do unsafely.

/// The same socket, given away as a number and taken back.
#[allow(unsafe_code)]
fn through_its_number(socket: TcpStream) -> TcpStream {
    // SAFETY: just given away.
    unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) }
}
