//! A flow that is spliced while packets of its client are between the device, which they have passed, and
//! the proxy's socket.

mod common;
#[path = "splice/lab.rs"]
mod lab;

use fs_stacks::testing::{PATIENCE, eventually};
use lab::{Lab, Proxy};
use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

/// More than the proxy's socket to the server takes at once: its send buffer is small, but a part of it may
/// be a packet of 64 KiB.
const LATE: usize = 256 << 10;

/// A detour for packets of the client: from the device to the proxy's socket by way of `loop0` and `loop1`.
/// They wait there while the address of their next hop is not resolved.
struct Detour<'a>(&'a Lab);

impl<'a> Detour<'a> {
    fn new(lab: &'a Lab) -> Self {
        for command in [
            "link add loop0 type veth peer name loop1 address 02:00:00:00:09:02",
            "link set loop0 up",
            "link set loop1 arp off up",
            "addr add 10.93.9.1/24 dev loop0",
            "route add default via 10.93.9.2 dev loop0 table 100",
            "rule add pref 10 lookup local",
            "rule del pref 0",
            "rule add pref 5 iif front0 ipproto tcp lookup 100",
        ] {
            lab.ip("host", command);
        }
        for setting in [
            "net/ipv4/ip_forward=1",
            "net/ipv4/conf/all/rp_filter=0",
            "net/ipv4/conf/loop1/rp_filter=0",
            // Else the kernel gives packets to their socket without a look at the routes.
            "net/ipv4/ip_early_demux=0",
            "net/ipv4/neigh/loop0/unres_qlen_bytes=16777216",
            "net/ipv4/neigh/loop0/mcast_solicit=1000",
        ] {
            lab.set("host", setting);
        }
        Self(lab)
    }

    /// Packets that wait, and later ones, pass.
    fn open(&self) {
        self.0.ip("host", "neigh replace 10.93.9.2 lladdr 02:00:00:00:09:02 dev loop0 nud permanent");
    }

    /// Later packets wait.
    fn close(&self) {
        self.0.ip("host", "neigh del 10.93.9.2 dev loop0");
    }
}

/// What the client sends is lost before it leaves.
fn mute(lab: &Lab) {
    lab.exec("client", "nft add table inet mute");
    lab.exec("client", "nft add chain inet mute out { type filter hook output priority 0 ; policy drop ; }");
}

fn unmute(lab: &Lab) {
    lab.exec("client", "nft delete table inet mute");
}

/// Returns the bytes of IP packets that a namespace has sent or received; received ones have passed the
/// device's program.
fn octets(lab: &Lab, role: &str, column: &str) -> u64 {
    let text = lab.within(role, || std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with("IpExt:")).collect();
    let mut columns = lines[0].split(' ').zip(lines[1].split(' '));
    columns.find(|(name, _)| *name == column).unwrap().1.parse().unwrap()
}

/// Returns a client's and a server's end of a spliced flow, whose client has sent these bytes before. They have
/// arrived at the proxy's socket afterwards.
fn spliced(lab: &Lab, top: &str, bytes: &[u8]) -> (Proxy, TcpStream, TcpStream) {
    let detour = Detour::new(lab);
    detour.open();
    // The client can send all of it without an acknowledgment, and the proxy its pieces. Both send nothing
    // twice: a packet of the client that is sent twice would pass the proxy the second time.
    let alone = "initcwnd 300 initrwnd 300 rto_min 1000s";
    lab.ip("client", &format!("route replace 10.93.1.0/24 dev client0 src 10.93.1.2 {alone}"));
    lab.ip("host", &format!("route replace 10.93.1.0/24 dev front0 src 10.93.1.1 {alone}"));
    lab.set("client", "net/ipv4/tcp_early_retrans=0");
    lab.set("host", "net/ipv4/tcp_early_retrans=0");
    lab.set("client", "net/ipv4/tcp_wmem=4096 4194304 4194304");
    lab.set("host", "net/ipv4/tcp_rmem=4096 4194304 4194304");
    lab.set("host", "net/ipv4/tcp_wmem=4096 4194304 4194304");

    let (sender, receiver) = channel();
    let server = lab.serve(false, move |stream| sender.send(stream).map_err(std::io::Error::other));
    let proxy = lab.proxy(server, top, "");
    // The sockets to clients have the listener's.
    lab.set("host", "net/ipv4/tcp_wmem=4096 16384 16384");
    let mut client = lab.connect(proxy.addr());
    let mut late = client.try_clone().unwrap();
    let mut server = receiver.recv().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.set_nodelay(true).unwrap();
    let mut piece = || {
        server.write_all(&[1; 10]).unwrap();
        client.read_exact(&mut [0; 10]).unwrap();
    };
    // Fewer than make it a candidate.
    (0..7).for_each(|_| piece());
    // It becomes one, but a packet of the client must be seen too.
    mute(lab);
    (0..20).for_each(|_| piece());
    assert_eq!(lab.metric(&proxy, "connections_spliced_total"), 0);
    unmute(lab);

    detour.close();
    let before = [octets(lab, "client", "OutOctets"), octets(lab, "host", "InOctets")];
    late.write_all(bytes).unwrap();
    let length = octets(lab, "client", "OutOctets") - before[0];
    eventually("the device has them", || octets(lab, "host", "InOctets") - before[1] >= length);
    // The client acknowledges nothing from now on, so the proxy keeps its sockets until it does, however
    // long the late packets take.
    mute(lab);
    let mut pieces = 0;
    while lab.metric(&proxy, "connections_spliced_open") == 0 {
        assert!(pieces < 40, "it is not spliced: {}", proxy.program.log());
        piece();
        pieces += 1;
    }
    let before = octets(lab, "host", "InOctets");
    detour.open();
    eventually("the socket has them", || octets(lab, "host", "InOctets") - before >= length);
    unmute(lab);
    // With it the client acknowledges all of them.
    piece();
    (proxy, client, server)
}

#[test]
fn late_packets_do_not_stop_a_flow() {
    let Some(lab) = Lab::up() else { return };
    let bytes = common::pattern(2 * LATE);
    let (proxy, mut client, mut server) = spliced(&lab, "", &bytes[..LATE]);
    let mut got = vec![0; LATE];
    server.read_exact(&mut got).unwrap();
    assert!(got == bytes[..LATE]);

    // It goes on without the proxy.
    client.write_all(&bytes).unwrap();
    got.resize(bytes.len(), 0);
    server.read_exact(&mut got).unwrap();
    assert!(got == bytes);
    server.write_all(&bytes).unwrap();
    client.read_exact(&mut got).unwrap();
    assert!(got == bytes);
    assert_eq!(lab.metric(&proxy, "connections_spliced_open"), 1);
}

/// The server resets the flow while the proxy's socket has no room for late bytes. The reset does not reach that socket.
#[test]
fn reset_ends_a_flow_with_late_packets() {
    let Some(lab) = Lab::up() else { return };
    lab.set("server", "net/ipv4/tcp_rmem=4096 60000 60000");
    let (proxy, mut client, server) = spliced(&lab, "timeouts = { idle = \"60m\" }", &common::pattern(LATE));
    // Late bytes are relayed.
    server.peek(&mut [0]).unwrap();
    // A reset ends it with the number that the client has acknowledged. The server does not know of that, because the
    // client's acknowledgment is beyond its window, and repeats the last piece. By then the acknowledgment has passed.
    let repeats = || {
        let text = lab.within("server", || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap());
        text.lines().skip(1).any(|line| line.split_whitespace().nth(6).unwrap() != "00000000")
    };
    eventually("the server repeats a piece", repeats);
    set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
    drop(server);
    let error = client.read(&mut [0]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    eventually("the flow is over", || lab.metric(&proxy, "connections_spliced_open") == 0);
}
