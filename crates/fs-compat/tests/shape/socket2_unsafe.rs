// Included with `api` as socket2, after socket2.rs: unsafe uses of its types.

#[allow(unsafe_code)]
fn filled(buf: &[MaybeUninit<u8>]) -> Vec<u8> {
    // SAFETY: the tests pass the part that a call returned as received.
    buf.iter().map(|byte| unsafe { byte.assume_init() }).collect()
}

/// Storage for an address that is not set yet.
#[allow(unsafe_code)]
fn no_address() -> SockAddr {
    // SAFETY: an address of no family has no bytes.
    unsafe { SockAddr::try_init(|_, _| Ok(())).unwrap().1 }
}

/// Converts the socket to a number and back.
#[allow(unsafe_code)]
fn through_its_number(socket: Socket) -> Socket {
    // SAFETY: just given away.
    unsafe { Socket::from_raw_fd(socket.into_raw_fd()) }
}

#[test]
#[allow(unsafe_code)]
fn addresses_from_parts() {
    let mut storage = api::SockAddrStorage::zeroed();
    assert_eq!(storage.size_of() as usize, size_of::<libc::sockaddr_storage>());
    // SAFETY: a `sockaddr_in`, all of it.
    let addr = unsafe {
        let v4 = storage.view_as::<libc::sockaddr_in>();
        v4.sin_family = libc::AF_INET as api::sa_family_t;
        v4.sin_port = 80u16.to_be();
        v4.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        SockAddr::new(storage, size_of::<libc::sockaddr_in>() as api::socklen_t)
    };
    assert_eq!(addr.as_socket(), Some("127.0.0.1:80".parse().unwrap()));
    // SAFETY: getsockname writes a whole address.
    let (answer, addr) = unsafe {
        let (socket, _) = listener(&any4());
        SockAddr::try_init(|storage, len| Ok(libc::getsockname(socket.as_raw_fd(), storage.cast(), len))).unwrap()
    };
    assert_eq!((answer, addr.domain()), (0, Domain::IPV4));
    // SAFETY: reads the family of the address in `addr`.
    assert_eq!(unsafe { (*addr.as_ptr().cast::<libc::sockaddr>()).sa_family }, libc::AF_INET as u16);
    let mut again = addr.clone().as_storage();
    // SAFETY: it is a `sockaddr_in`.
    assert_eq!(unsafe { again.view_as::<libc::sockaddr_in>() }.sin_port.to_be(), addr.as_socket().unwrap().port());
}
