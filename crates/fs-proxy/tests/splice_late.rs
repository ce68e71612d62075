//! A flow that is spliced while packets of its client are between the device, which they have passed, and
//! the proxy's socket.

mod common;
#[path = "splice/lab.rs"]
mod lab;

use fs_stacks::testing::PATIENCE;
use lab::Lab;
use std::io::{Read, Write};
use std::sync::mpsc::channel;

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

#[test]
fn late_packets_do_not_stop_a_flow() {
    let Some(lab) = Lab::up() else { return };
    let detour = Detour::new(&lab);
    detour.open();
    // The client can send all of it without an acknowledgment, and sends nothing twice. A packet that is
    // sent twice would pass the proxy the second time.
    lab.ip("client", "route replace 10.93.1.0/24 dev client0 src 10.93.1.2 initcwnd 300 rto_min 1000s");
    lab.set("client", "net/ipv4/tcp_early_retrans=0");
    lab.set("client", "net/ipv4/tcp_wmem=4096 4194304 4194304");
    lab.ip("host", "route replace 10.93.1.0/24 dev front0 src 10.93.1.1 initrwnd 300");
    lab.set("host", "net/ipv4/tcp_rmem=4096 4194304 4194304");
    lab.set("host", "net/ipv4/tcp_wmem=4096 16384 16384");

    let (sender, receiver) = channel();
    let server = lab.serve(false, move |stream| sender.send(stream).map_err(std::io::Error::other));
    let proxy = lab.proxy(server, "", "");
    let mut client = lab.connect(proxy.addr());
    let mut server = receiver.recv().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.set_nodelay(true).unwrap();
    let mut piece = || {
        server.write_all(&[1; 10]).unwrap();
        client.read_exact(&mut [0; 10]).unwrap();
        client.try_clone().unwrap()
    };
    // Fewer than make it a candidate.
    (0..7).for_each(|_| drop(piece()));
    assert_eq!(lab.metric(&proxy, "connections_spliced_total"), 0);

    detour.close();
    let bytes = common::pattern(2 * LATE);
    let mut sent = LATE;
    piece().write_all(&bytes[..sent]).unwrap();
    while lab.metric(&proxy, "connections_spliced_open") == 0 {
        assert!(sent < LATE + 40_000, "it is not spliced: {}", proxy.program.log());
        // Also packets of the client must be seen.
        piece().write_all(&bytes[sent..sent + 1000]).unwrap();
        sent += 1000;
    }
    detour.open();
    let mut got = vec![0; sent];
    server.read_exact(&mut got).unwrap();
    assert!(got == bytes[..sent]);

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
