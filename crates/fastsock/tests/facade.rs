//! One crate is enough: it exports everything that README's program uses.

use fastsock::blocking::{TcpListener, TcpStream};
use fastsock::{
    CaState, Cidr, CongestionControl, Ecn, FastOpen, Handle, IfaceId, Limits, Linger, LinkChoice, PollPolicy,
    PortLease, Runtime, Secret, Share, Standalone, TcpConfig, TcpInfo, TcpOptions, TcpState,
};
use std::io::{Read, Write};
use std::net::SocketAddr;

#[test]
fn missing_device_is_named() {
    let error = Runtime::builder().device("nosuch0").cores([0]).build().unwrap_err();
    assert!(error.to_string().contains("nosuch0"), "{error}");
    let _addresses = Standalone::new().addr([10, 0, 0, 1], 24);
}

/// Every type that a setting of the builder takes has a name here.
#[test]
fn types_of_settings_have_names() {
    let mut tcp = TcpConfig::default();
    (tcp.congestion_control, tcp.ecn, tcp.fast_open) = (CongestionControl::NewReno, Ecn::Active, FastOpen::OFF);
    let limits = Limits { connections: 1024, ..Limits::default() };
    let builder = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).tcp(tcp).limits(limits);
    drop(builder.poll_policy(PollPolicy::shared()).secret(Secret([7; 32])).build().unwrap());
    let _leaves: fn(&PortLease) = PortLease::leave;
}

/// So have those of public fields and of calls' values.
#[test]
fn types_of_fields_have_names() {
    let TcpInfo { state, ca_state, .. } = TcpInfo::default();
    let _: (Option<TcpState>, CaState) = (state, ca_state);
    let TcpOptions { linger, device, .. } = TcpOptions::default();
    let _: (Linger, Option<IfaceId>) = (linger, device);
    let _: Vec<Cidr> = Standalone::new().addrs;
    let _: fn(&Handle, SocketAddr, bool, Share) = Handle::share_held;
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
