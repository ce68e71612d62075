//! One crate is enough: it exports everything that README's program uses.

use fastsock::blocking::{TcpListener, TcpStream};
use fastsock::{Runtime, Standalone};
use std::io::{Read, Write};

#[test]
fn missing_device_is_named() {
    let error = Runtime::builder().device("nosuch0").cores([0]).build().unwrap_err();
    assert!(error.to_string().contains("nosuch0"), "{error}");
    let _addresses = Standalone::new().addr([10, 0, 0, 1], 24);
}

#[test]
fn sockets_of_any_thread() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let client = std::thread::spawn(move || TcpStream::connect(at).unwrap().write_all(b"hello").unwrap());
    let mut said = String::new();
    listener.accept().unwrap().0.read_to_string(&mut said).unwrap();
    client.join().unwrap();
    assert_eq!(said, "hello");
}
