// Included with `api` as std::net, after std_net.rs: unsafe uses of its types.

/// Converts the socket to a number and back.
#[allow(unsafe_code)]
fn through_its_number(socket: TcpStream) -> TcpStream {
    // SAFETY: just given away.
    unsafe { TcpStream::from_raw_fd(socket.into_raw_fd()) }
}
