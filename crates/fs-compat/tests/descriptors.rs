//! A program with the usual limit of 1,024 descriptors. This test has its own process.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::TcpStream;
use fs_rt::Runtime;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::time::Duration;
use veth::{DEVICE, PEER, Wire, at};

/// More than the limit allows.
const CONNECTIONS: usize = 1500;

#[test]
fn connections_do_not_use_descriptors_for_ports() {
    let Some(wire) = Wire::up("a program with 1,024 descriptors") else { return };
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum: Some(1024) }).unwrap();
    wire.peer.run("sysctl -qw net.core.somaxconn=4096");
    // Connections wait in the accept queue and need no descriptors of the server.
    let server = wire.peer.enter(|| std::net::TcpListener::bind(at(PEER, 80)).unwrap());
    rustix::net::listen(&server, 4096).unwrap();
    let (connected, own) = wire.ours.enter(|| {
        let runtime = Runtime::builder().device(DEVICE).cores([0]).pin(false).build().unwrap();
        let own = std::fs::read_dir("/proc/self/fd").unwrap().count();
        let connected = runtime.run(|_| async {
            let mut streams = Vec::new();
            while streams.len() < CONNECTIONS {
                match tokio::time::timeout(Duration::from_secs(60), TcpStream::connect(at(PEER, 80))).await.unwrap() {
                    Ok(stream) => streams.push(stream),
                    Err(error) => return (streams.len(), Some(error)),
                }
            }
            (streams.len(), None)
        });
        (connected.unwrap().pop().unwrap(), own)
    });
    assert!(own < 200, "{own} descriptors are the program's");
    assert_eq!(connected.0, CONNECTIONS, "{:?}", connected.1);
}
