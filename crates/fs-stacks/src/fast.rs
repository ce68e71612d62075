//! fastsock's side of the comparison: `fs-rt` runs the cores, and `fs-compat` has the sockets.

use crate::args::{LinkKind, StackArgs};
use crate::counters::StackCounter;
use crate::net::{Listener, Stream, UdpSocket};
use fastsock::local::TcpSocket;
use fastsock::{LinkChoice, Runtime, Standalone, XdpMode};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Opens devices, queues and memory as the options say.
pub(crate) fn build(args: &StackArgs) -> anyhow::Result<Runtime> {
    let mut builder = Runtime::builder().cores(args.cores.0.iter().copied()).busy_poll(args.busy_poll);
    for device in &args.devices {
        builder = builder.device(device);
    }
    builder = builder.link(match args.link {
        LinkKind::Xdp => LinkChoice::XdpAuto,
        LinkKind::XdpNative => LinkChoice::Xdp { mode: XdpMode::Native },
        LinkKind::XdpGeneric => LinkChoice::Xdp { mode: XdpMode::Generic },
        LinkKind::Packet => LinkChoice::Packet,
        LinkKind::Tap => LinkChoice::Tap,
    });
    for (index, addrs) in args.standalone.iter().enumerate() {
        let mut standalone = Standalone::new();
        for &(addr, prefix) in &addrs.0 {
            standalone = standalone.addr(addr, prefix);
        }
        for &gateway in args.gateways.get(index).map_or(&[][..], |list| &list.0) {
            standalone = standalone.gateway(gateway);
        }
        builder = builder.standalone(standalone);
    }
    if let Some(congestion_control) = args.congestion {
        builder = builder.tcp(fs_core::TcpConfig { congestion_control, ..fs_core::TcpConfig::default() });
    }
    if let Some(frames) = args.frames {
        builder = builder.frames(frames);
    }
    if let Some(connections) = args.max_connections {
        builder = builder.limits(fs_core::Limits { connections, ..fs_core::Limits::default() });
    }
    if let Some(ports) = args.ephemeral_ports {
        builder = builder.ephemeral_ports(ports);
    }
    builder = builder.late_devices(args.late_devices);
    if args.partial_checksums {
        builder = builder.accept_partial_checksum(true);
    }
    Ok(builder.build()?)
}

fn tcp_socket(addr: SocketAddr) -> io::Result<TcpSocket> {
    if addr.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }
}

pub(crate) fn listen(addr: SocketAddr, backlog: u32) -> io::Result<Listener> {
    let socket = tcp_socket(addr)?;
    socket.bind(addr)?;
    socket.listen(backlog).map(Listener::Fast)
}

pub(crate) fn adopt(socket: std::net::TcpListener, backlog: u32) -> io::Result<Listener> {
    let listener = fastsock::local::TcpListener::from_std(socket)?;
    listener.set_backlog(backlog)?;
    Ok(Listener::Fast(listener))
}

/// Completes when the calling core has no connection any more, also none that is closed and still
/// sends.
pub(crate) async fn connections_ended() {
    let Some(core) = fastsock::CoreRef::current() else { return };
    while core.inspect(|stack| stack.tcp_connections()) > 0 {
        tokio::time::sleep(LAST_BYTES_INTERVAL).await;
    }
}

/// Interval of the check for connections that still send. Only at the end of a process.
const LAST_BYTES_INTERVAL: Duration = Duration::from_millis(10);

/// Returns why no other process can take over from this one.
pub(crate) fn refuses_successor(handle: &fastsock::Handle) -> Option<&'static str> {
    if !handle.attaches_devices() {
        return Some("only with AF_XDP on devices that no daemon shares, or with --stack kernel");
    }
    // The successor would try the faster mode again, and the device would lose packets.
    let is_slower = handle.stats().iter().any(|core| !core.given_up.is_empty());
    is_slower.then_some("a device does not work in the XDP mode that --link names: name the mode that it is in")
}

pub(crate) async fn connect(addr: SocketAddr, local: Option<IpAddr>) -> io::Result<Stream> {
    let socket = tcp_socket(addr)?;
    if let Some(local) = local {
        socket.bind(SocketAddr::new(local, 0))?;
    }
    socket.connect(addr).await.map(Stream::Fast)
}

pub(crate) async fn bind_udp(addr: SocketAddr) -> io::Result<UdpSocket> {
    fastsock::local::UdpSocket::bind(addr).await.map(UdpSocket::Fast)
}

/// Returns every counter of every core.
pub(crate) fn counters(handle: &fastsock::Handle) -> Vec<StackCounter> {
    let mut all = Vec::new();
    for core in handle.stats() {
        let index = core.core;
        let mut push = |name: &str, kind: &str, value: u64| {
            all.push(StackCounter { core: index, name: name.into(), kind: kind.into(), value });
        };
        for (name, value) in core.stack.counters() {
            push(name, "", value);
        }
        for &reason in fs_core::DropReason::ALL {
            match core.stack.dropped(reason) {
                0 => {}
                value => push("drops", reason.name(), value),
            }
        }
        for (iface, link) in &core.links {
            let iface = format!("{}", iface.0);
            push("link_rx_packets", &iface, link.rx_packets);
            push("link_tx_packets", &iface, link.tx_packets);
            push("link_rx_dropped", &iface, link.rx_dropped);
            push("link_rx_ran_out", &iface, link.rx_ran_out);
            push("link_tx_dropped", &iface, link.tx_dropped);
            push("link_syscalls", &iface, link.syscalls);
        }
        push("runtime_turns", "", core.runtime.turns);
        push("runtime_sleeps", "", core.runtime.sleeps);
        push("runtime_coalescings", "", core.runtime.coalescings);
        push("runtime_timed_sleeps", "", core.runtime.timed_sleeps);
        push("runtime_wakes", "", core.runtime.wakes);
        push("messages_sent", "", core.runtime.messages_sent);
        push("messages_received", "", core.runtime.messages_received);
        push("mailbox_full", "", core.runtime.mailbox_full);
        push("doorbells", "", core.runtime.doorbells);
    }
    all
}
