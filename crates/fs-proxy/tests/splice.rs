//! Spliced flows between namespaces: each byte arrives once and in order, before, while and after a
//! flow leaves user space.

mod common;
#[path = "splice/lab.rs"]
mod lab;

use fs_stacks::sys::send_signal;
use fs_stacks::testing::{PATIENCE, Signal, eventually, output};
use lab::{Lab, MODES, Mode, Proxy};
use rustix::net::sockopt::set_socket_linger;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::mpsc::channel;
use std::time::Duration;

const BLOCK: usize = 64 << 10;
/// Turns after which a flow is spliced, with some to spare.
const TURNS: usize = 100;

/// Bytes that follow from a seed.
fn stream(seed: u64) -> impl FnMut(usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    move |length| {
        let mut bytes = vec![0; length];
        random.fill(&mut bytes);
        bytes
    }
}

fn send(to: &mut TcpStream, seed: u64, mut length: usize) -> std::io::Result<()> {
    let mut next = stream(seed);
    while length > 0 {
        let block = length.min(BLOCK);
        to.write_all(&next(block))?;
        length -= block;
    }
    Ok(())
}

/// Reads as many bytes, and returns an error unless they are those of the seed.
fn receive(from: &mut TcpStream, seed: u64, mut length: usize) -> std::io::Result<()> {
    let (mut next, mut bytes) = (stream(seed), vec![0; BLOCK]);
    while length > 0 {
        let block = length.min(BLOCK);
        from.read_exact(&mut bytes[..block])?;
        if bytes[..block] != next(block) {
            return Err(std::io::Error::other(format!("other bytes, {length} before the end")));
        }
        length -= block;
    }
    Ok(())
}

/// A server that gets a seed and two lengths, then as many bytes, and sends as many. The highest
/// seed asks for the end.
fn exchange_server(stream: TcpStream) -> std::io::Result<()> {
    exchange_server_of(Mode::Tcp)(stream)
}

fn exchange_server_of(mode: Mode) -> impl Fn(TcpStream) -> std::io::Result<()> + Clone + Send + 'static {
    move |mut stream| {
        mode.accept(&mut stream, &[])?;
        exchange(stream)
    }
}

fn exchange(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = [0; 24];
    while stream.read_exact(&mut head).is_ok() {
        let [seed, up, down] = [0, 8, 16].map(|at| u64::from_be_bytes(head[at..at + 8].try_into().unwrap()) as usize);
        if seed == usize::MAX {
            // The client asks for the end.
            return Ok(());
        }
        receive(&mut stream, seed as u64, up).inspect_err(|error| eprintln!("server, {up} bytes: {error}"))?;
        send(&mut stream, seed as u64 + 1, down)?;
    }
    Ok(())
}

/// One turn with that server.
fn turn(stream: &mut TcpStream, seed: u64, up: usize, down: usize) {
    let head = [seed, up as u64, down as u64].map(u64::to_be_bytes).concat();
    stream.write_all(&head).unwrap();
    send(stream, seed, up).unwrap();
    receive(stream, seed + 1, down).unwrap_or_else(|error| panic!("seed {seed}, {up} up, {down} down: {error}"));
}

fn turns(stream: &mut TcpStream, number: usize) {
    (0..number).for_each(|number| turn(stream, number as u64, 10, 20));
}

/// Turns of many lengths.
fn many_turns(mut stream: TcpStream, seed: u64, rounds: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        let mut length = |limit: usize| match random.usize(..8) {
            0 => 0,
            1 => 1,
            2..=4 => random.usize(..2000),
            5 | 6 => random.usize(..100_000),
            _ => random.usize(..limit),
        };
        let (up, down) = (length(1_000_000), length(2_000_000));
        turn(&mut stream, seed * 1_000_000 + round as u64 * 2, up, down);
    }
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
}

/// Many flows at once.
fn many_flows(lab: &Lab, proxy: &Proxy, flows: u64, rounds: usize) {
    many_flows_of(lab, Mode::Tcp, proxy, flows, rounds);
}

fn many_flows_of(lab: &Lab, mode: Mode, proxy: &Proxy, flows: u64, rounds: usize) {
    let clients: Vec<_> = (1..=flows)
        .map(|seed| {
            let mut stream = lab.connect(proxy.addr());
            std::thread::spawn(move || {
                mode.begin(&mut stream, &[]).unwrap();
                many_turns(stream, seed, rounds);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

/// Returns a client's and a server's end of a spliced flow, of a server that passes its connections
/// to the test after some turns.
fn spliced(lab: &Lab, mode: Mode, top: &str) -> (Proxy, TcpStream, TcpStream) {
    let (sender, receiver) = channel();
    let server = lab.serve(false, move |mut stream| {
        stream.set_read_timeout(Some(PATIENCE))?;
        mode.accept(&mut stream, &[])?;
        for _ in 0..TURNS {
            stream.read_exact(&mut [0; 10])?;
            stream.write_all(&[2; 20])?;
        }
        sender.send(stream).map_err(std::io::Error::other)
    });
    let proxy = lab.proxy_of(mode, server, top, "");
    let mut client = lab.connect(proxy.addr());
    mode.begin(&mut client, &[]).unwrap();
    for _ in 0..TURNS {
        client.write_all(&[1; 10]).unwrap();
        client.read_exact(&mut [0; 20]).unwrap();
    }
    let server = receiver.recv().unwrap();
    eventually("the flow is spliced", || lab.metric(&proxy, "connections_spliced_open") == 1);
    (proxy, client, server)
}

fn is_reset(stream: &mut TcpStream) -> bool {
    stream.read_exact(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn bodies_are_whole_while_flows_leave() {
    for (mode, v6) in [(Mode::Tcp, false), (Mode::Tcp, true), (Mode::Tunnel, false), (Mode::Tunnel, true)] {
        let Some(lab) = Lab::up() else { return };
        let proxy = lab.proxy_of(mode, lab.serve(v6, exchange_server_of(mode)), "", "");
        many_flows_of(&lab, mode, &proxy, 16, 40);
        assert_eq!(lab.metric(&proxy, "connections_spliced_total"), 16);
        eventually("all are closed", || lab.metric(&proxy, "connections_open") == 0);
        assert_eq!(lab.metric(&proxy, "connections_spliced_open"), 0);
        assert_eq!(lab.metric(&proxy, "connections_failed_total"), 0);
    }
}

#[test]
fn bodies_are_whole_over_links_that_lose_packets() {
    for (client, host, server) in [(50, 0, 50), (0, 30, 0), (20, 0, 0)] {
        let Some(lab) = Lab::up() else { return };
        for (role, one_in) in [("client", client), ("host", host), ("server", server)] {
            if one_in > 0 {
                lab.lose(role, one_in);
            }
        }
        let proxy = lab.proxy(lab.serve(false, exchange_server), "", "");
        many_flows(&lab, &proxy, 8, 30);
        assert!(lab.metric(&proxy, "connections_spliced_total") > 0);
    }
}

#[test]
fn window_scales_and_options_may_differ_or_lack() {
    for (client, server) in [
        ("net/ipv4/tcp_rmem=4096 30000 60000", "net/ipv4/tcp_rmem=4096 131072 33554432"),
        ("net/ipv4/tcp_rmem=4096 131072 33554432", "net/ipv4/tcp_rmem=4096 30000 60000"),
        ("net/ipv4/tcp_window_scaling=0", "net/ipv4/tcp_window_scaling=1"),
        ("net/ipv4/tcp_timestamps=0", "net/ipv4/tcp_timestamps=0"),
        ("net/ipv4/tcp_sack=0", "net/ipv4/tcp_sack=0"),
    ] {
        let Some(lab) = Lab::up() else { return };
        lab.set("client", client);
        lab.set("server", server);
        lab.lose("client", 200);
        let proxy = lab.proxy(lab.serve(false, exchange_server), "", "");
        many_flows(&lab, &proxy, 4, 30);
        assert!(lab.metric(&proxy, "connections_spliced_total") > 0, "{client}");
    }
}

#[test]
fn what_does_not_fit_stays_in_user_space() {
    let server_mtu = |lab: &Lab| lab.ip("server", "link set server0 mtu 1400");
    type Setting<'a> = (&'a str, &'a dyn Fn(&Lab));
    let settings: [Setting<'_>; 5] = [
        ("only one connection has timestamps", &|lab| lab.set("client", "net/ipv4/tcp_timestamps=0")),
        ("only one connection has selective", &|lab| lab.set("server", "net/ipv4/tcp_sack=0")),
        ("segments of one connection may have", &server_mtu),
        ("has ECN", &|lab| lab.set("client", "net/ipv4/tcp_ecn=1")),
        // The server sees another port than that of the proxy's socket: none of the kernel's own choice.
        ("packets do not come", &|lab| {
            lab.exec("host", "nft add table ip nat");
            lab.exec("host", "nft add chain ip nat out { type nat hook postrouting priority 100 ; }");
            lab.exec("host", "nft add rule ip nat out oifname back0 meta l4proto tcp masquerade to :20000-30000");
        }),
    ];
    for (why, set) in settings {
        let Some(lab) = Lab::up() else { return };
        set(&lab);
        let proxy = lab.proxy(lab.serve(false, exchange_server), "", "");
        let mut client = lab.connect(proxy.addr());
        turns(&mut client, 2000);
        assert_eq!(lab.metric(&proxy, "connections_spliced_total"), 0, "{why}");
        assert_eq!(lab.metric(&proxy, "splices_refused_total"), 1, "{why}");
        many_turns(client, 5, 5);
    }
}

#[test]
fn half_closes_pass_and_the_log_has_each_byte() {
    for mode in MODES {
        let Some(lab) = Lab::up() else { return };
        let log = common::temp_path("splice-log");
        let (proxy, mut client, mut server) = spliced(&lab, mode, &format!("access_log = {log:?}"));
        client.write_all(&[3; 100_000]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        assert_eq!(all, [3; 100_000]);
        // One direction is closed, the other one moves.
        server.write_all(&[4; 200_000]).unwrap();
        drop(server);
        all.clear();
        client.read_to_end(&mut all).unwrap();
        assert_eq!(all, [4; 200_000]);
        eventually("it is closed", || lab.metric(&proxy, "connections_open") == 0);
        let line = format!("in={} out={} ", TURNS * 10 + 100_000, TURNS * 20 + 200_000);
        eventually("the line is in the log", || !std::fs::read_to_string(&log).unwrap().is_empty());
        let text = std::fs::read_to_string(&log).unwrap();
        let end = if mode == Mode::Tcp { "\"ok\"\n" } else { "\"GET /t\"\n" };
        assert!(text.contains(&line) && text.ends_with(end), "{text}");
        assert_eq!(lab.metric(&proxy, "bytes_in_total"), TURNS as u64 * 10 + 100_000);
        assert_eq!(lab.metric(&proxy, "bytes_out_total"), TURNS as u64 * 20 + 200_000);
        std::fs::remove_file(&log).unwrap();
    }
}

/// The first bytes of a tunnel come right behind the heads, so other parts of the proxy have read them.
#[test]
fn tunnels_begin_with_the_bytes_behind_the_heads() {
    for (up, down) in [(1, 1), (60_000, 60_000), (300_000, 10)] {
        let Some(lab) = Lab::up() else { return };
        let log = common::temp_path("splice-log");
        let server = lab.serve(false, move |mut stream| {
            let mut first = vec![0; up];
            Mode::Tunnel.accept(&mut stream, &self::stream(1)(down))?;
            stream.read_exact(&mut first)?;
            assert!(first == self::stream(2)(up));
            exchange(stream)
        });
        let proxy = lab.proxy_of(Mode::Tunnel, server, &format!("access_log = {log:?}"), "");
        let mut client = lab.connect(proxy.addr());
        Mode::Tunnel.begin(&mut client, &stream(2)(up)).unwrap();
        let mut first = vec![0; down];
        client.read_exact(&mut first).unwrap();
        assert!(first == stream(1)(down));
        turns(&mut client, TURNS);
        eventually("it is spliced", || lab.metric(&proxy, "connections_spliced_open") == 1);
        turn(&mut client, 7, 300_000, 300_000);
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        let (up, down) = (up + (TURNS + 1) * 24 + TURNS * 10 + 300_000, down + TURNS * 20 + 300_000);
        let line = format!("in={up} out={down} ");
        eventually("the line is in the log", || std::fs::read_to_string(&log).unwrap().contains(&line));
        assert_eq!(lab.metric(&proxy, "bytes_in_total"), up as u64);
        assert_eq!(lab.metric(&proxy, "bytes_out_total"), down as u64);
        std::fs::remove_file(&log).unwrap();
    }
}

#[test]
fn flows_are_listed_with_their_bytes() {
    for mode in MODES {
        let Some(lab) = Lab::up() else { return };
        let admin = common::temp_path("splice-admin");
        let (proxy, mut client, mut server) = spliced(&lab, mode, &format!("admin = {admin:?}"));
        client.write_all(&[3; 100_000]).unwrap();
        server.read_exact(&mut [0; 100_000]).unwrap();
        let flows = |options: &[&str]| {
            let command = ["admin", "--socket", admin.to_str().unwrap(), "flows"];
            let output = output(common::EXE, &[&command, options].concat());
            String::from_utf8(output.stdout).unwrap()
        };
        let (up, down) = (TURNS * 10 + 100_000, TURNS * 20);
        let bytes = format!("\"bytes_in\":{up},\"bytes_out\":{down}}}]\n");
        eventually("the bytes are counted", || flows(&["--json"]).ends_with(&bytes));
        let text = flows(&["--json"]);
        let [client_addr, server_addr] = [&client, &server].map(|end| end.local_addr().unwrap());
        let proxy_addr = server.peer_addr().unwrap();
        let ends = format!("\"client\":\"{client_addr}\",\"proxy\":\"{proxy_addr}\",\"server\":\"{server_addr}\"");
        assert!(text.contains(&ends), "{text}");
        let table = flows(&[]);
        let row: Vec<&str> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!((row[1], row[3], row[6]), (&*client_addr.to_string(), &*server_addr.to_string(), &*up.to_string()));
        eventually("it is idle", || {
            let table = flows(&[]);
            let row = table.lines().nth(1).unwrap().split_whitespace();
            row.map(str::to_owned).nth(5).unwrap().parse::<f64>().unwrap() > 0.5
        });
        assert!(lab.page(&proxy, "/").contains(&format!("<td>{client_addr}</td><td>{proxy_addr}</td>")));
        // The first turns were relayed by the proxy.
        let spliced = lab.metric(&proxy, "spliced_bytes_in_total");
        assert!((100_000..up as u64).contains(&spliced), "{spliced}");
        drop((client, server));
        eventually("it is over", || flows(&["--json"]) == "[]\n");
        assert!(!lab.page(&proxy, "/").contains(&client_addr.to_string()));
        std::fs::remove_file(&admin).unwrap();
    }
}

#[test]
fn resets_pass_in_both_directions() {
    for (mode, from_server) in [(Mode::Tcp, false), (Mode::Tcp, true), (Mode::Tunnel, false), (Mode::Tunnel, true)] {
        let Some(lab) = Lab::up() else { return };
        let (proxy, client, server) = spliced(&lab, mode, "");
        let (from, mut to) = if from_server { (server, client) } else { (client, server) };
        // Unread bytes turn the close into a reset.
        to.write_all(&[1; 10]).unwrap();
        from.peek(&mut [0]).unwrap();
        drop(from);
        assert!(is_reset(&mut to));
        eventually("it is closed", || lab.metric(&proxy, "connections_open") == 0);
        assert_eq!(lab.metric(&proxy, "connections_failed_total"), 1);
    }
}

fn idle_flow_is_reset_at_both_ends(mode: Mode) {
    let Some(lab) = Lab::up() else { return };
    // Longer than a thread that is stopped: the flow is spliced by then.
    let (proxy, mut client, mut server) = spliced(&lab, mode, "timeouts = { idle = \"6s\" }");
    assert!(is_reset(&mut client) && is_reset(&mut server));
    eventually("it is closed", || lab.metric(&proxy, "connections_open") == 0);
    assert_eq!(lab.metric(&proxy, "connections_failed_total"), 1);
}

#[test]
fn idle_flow_of_tcp_is_reset_at_both_ends() {
    idle_flow_is_reset_at_both_ends(Mode::Tcp);
}

#[test]
fn idle_flow_of_a_tunnel_is_reset_at_both_ends() {
    idle_flow_is_reset_at_both_ends(Mode::Tunnel);
}

#[test]
fn stop_waits_for_flows_and_resets_the_rest() {
    for mode in MODES {
        let Some(lab) = Lab::up() else { return };
        let (mut proxy, mut client, mut server) = spliced(&lab, mode, "timeouts = { drain = \"60s\" }");
        proxy.program.terminate();
        let addr = proxy.addr();
        eventually("new ones are refused", || lab.within("client", move || TcpStream::connect(addr)).is_err());
        client.write_all(&[5; 10]).unwrap();
        server.read_exact(&mut [0; 10]).unwrap();
        drop(server);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        drop(client);
        assert!(proxy.program.wait().success());

        let (mut proxy, mut client, mut server) = spliced(&lab, mode, "timeouts = { drain = \"1s\" }");
        proxy.program.terminate();
        assert!(is_reset(&mut client) && is_reset(&mut server));
        assert!(proxy.program.wait().success());
    }
}

#[test]
fn flows_go_on_through_a_reload_and_a_successor() {
    for mode in MODES {
        let Some(lab) = Lab::up() else { return };
        let (proxy, mut client, mut server) = spliced(&lab, mode, "");
        proxy.program.signal(Signal::HangUp);
        proxy.program.says("is in use");
        client.write_all(&[5; 10]).unwrap();
        server.read_exact(&mut [0; 10]).unwrap();
        proxy.program.signal(Signal::User2);
        proxy.program.says("serves; this one ends");
        let log = proxy.program.log();
        let (before, _) = log.split_once(" serves; this one ends").unwrap();
        let successor = before.rsplit(' ').next().unwrap().parse().unwrap();
        server.write_all(&[6; 10]).unwrap();
        client.read_exact(&mut [0; 10]).unwrap();
        drop((client, server));
        let mut proxy = proxy;
        assert!(proxy.program.wait().success());
        send_signal(successor, Signal::Terminate).unwrap();
        let addr = proxy.addr();
        eventually("it has ended", || lab.within("client", move || TcpStream::connect(addr)).is_err());
    }
}

#[test]
fn flows_end_with_a_process_that_is_killed() {
    for mode in MODES {
        let Some(lab) = Lab::up() else { return };
        let (proxy, mut client, mut server) = spliced(&lab, mode, "");
        drop(proxy);
        // The kernel detaches the program a moment later. Then the next packet meets no connection.
        for end in [&mut client, &mut server] {
            end.set_nonblocking(true).unwrap();
            eventually("it is reset", || {
                let (sent, read) = (end.write(&[1]), end.read(&mut [0; 100]));
                [sent, read]
                    .iter()
                    .any(|result| result.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset))
            });
        }
    }
}

#[test]
fn ports_are_used_again() {
    let Some(lab) = Lab::up() else { return };
    let proxy = lab.proxy(lab.serve(false, exchange_server), "", "");
    let to = proxy.addr();
    for round in 0..8 {
        let mut client = None;
        // The client's own kernel may still wait for the last acknowledgment.
        eventually("it connects", || {
            client = lab.within("client", move || connect_from(4000, to)).ok();
            client.is_some()
        });
        let mut client = client.unwrap();
        turns(&mut client, TURNS);
        eventually("it is spliced", || lab.metric(&proxy, "connections_spliced_total") == round + 1);
        turn(&mut client, 7, 3000, 200_000);
        // Neither kind of end leaves TIME-WAIT at the client, because the next connection follows
        // at once.
        if round % 2 == 0 {
            set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        } else {
            client.write_all(&[0xff; 24]).unwrap();
            assert_eq!(client.read(&mut [0]).unwrap(), 0);
        }
    }
}

/// Spliced flows leave their ports to connections of the host to other peers.
#[test]
fn ports_serve_other_peers_too() {
    for v6 in [false, true] {
        let Some(lab) = Lab::up() else { return };
        let servers = [lab.serve(v6, exchange_server), lab.serve(v6, exchange_server)];
        let proxy = lab.proxy(servers[0], "", "");
        // Two more than flows, because the test asks for metrics.
        lab.set("host", "net/ipv4/ip_local_port_range=40000 40005");
        let mut clients: Vec<_> = (0..4).map(|_| lab.connect(proxy.addr())).collect();
        clients.iter_mut().for_each(|client| turns(client, TURNS));
        eventually("all are spliced", || lab.metric(&proxy, "connections_spliced_open") == 4);
        eventually("the sockets are gone", || lab.sockets("host", &format!("src {}", proxy.addr())) == 0);
        let connect = |to: SocketAddr| lab.within("host", move || TcpStream::connect(to));
        let _others: Vec<_> = (0..6).map(|_| connect(servers[1]).unwrap()).collect();
        // A port that a flow holds is not given to another connection to its server.
        let _last: Vec<_> = (0..2).map(|_| connect(servers[0]).unwrap()).collect();
        assert_eq!(connect(servers[0]).unwrap_err().kind(), ErrorKind::AddrNotAvailable);
        clients.iter_mut().for_each(|client| turn(client, 7, 300_000, 300_000));
    }
}

/// The proxy's socket gets what it has sent acknowledged only if the receiver has room for it. Before that, its peer
/// gets no acknowledgment.
#[test]
fn flow_stays_while_its_receiver_has_no_room() {
    for up in [true, false] {
        let Some(lab) = Lab::up() else { return };
        // The window of the end that does not read is shorter than 8 pieces, and the proxy's socket takes all of them.
        lab.set(if up { "server" } else { "client" }, "net/ipv4/tcp_rmem=4096 8192 8192");
        let (sender, receiver) = channel();
        let server = lab.serve(false, move |stream| sender.send(stream).map_err(std::io::Error::other));
        let proxy = lab.proxy(server, "", "");
        let client = lab.connect(proxy.addr());
        let server = receiver.recv().unwrap();
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        server.set_nodelay(true).unwrap();
        let (mut from, mut to) = if up { (client, server) } else { (server, client) };
        let bytes = stream(1)(30 << 10);
        for piece in bytes.chunks(1 << 10) {
            from.write_all(piece).unwrap();
            // Probes of the closed window are answered, so the receiver's packets are seen.
            std::thread::sleep(Duration::from_millis(30));
        }
        assert_eq!(lab.metric(&proxy, "connections_spliced_total"), 0);
        receive(&mut to, 1, bytes.len()).unwrap();
    }
}

/// The kernel chooses no port for the flow, because its range has changed or another program is bound to the port.
#[test]
fn ports_are_held_that_the_kernel_does_not_choose() {
    for bound in [false, true] {
        let Some(lab) = Lab::up() else { return };
        let proxy = lab.proxy(lab.serve(false, exchange_server), "", "");
        lab.set("host", "net/ipv4/ip_local_port_range=40000 40001");
        let mut client = lab.connect(proxy.addr());
        turns(&mut client, 1);
        let other = lab.within("host", move || {
            bound.then(|| [40000, 40001].map(|port| std::net::TcpListener::bind(("127.0.0.7", port)).unwrap()))
        });
        let range = if bound { "40000 40009" } else { "50000 50009" };
        lab.set("host", &format!("net/ipv4/ip_local_port_range={range}"));
        turns(&mut client, TURNS);
        eventually("the sockets are gone", || lab.sockets("host", &format!("src {}", proxy.addr())) == 0);
        turn(&mut client, 7, 300_000, 300_000);
        assert_eq!(lab.metric(&proxy, "connections_spliced_open"), 1);
        drop(other);
    }
}

/// Connects from a port, which may have been in use a moment ago.
fn connect_from(port: u16, to: SocketAddr) -> rustix::io::Result<TcpStream> {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from(([10, 93, 1, 2], port)))?;
    connect(&socket, &to)?;
    rustix::net::sockopt::set_tcp_nodelay(&socket, true)?;
    Ok(TcpStream::from(socket))
}

#[test]
fn errors_of_routers_reach_the_sender() {
    for v6 in [false, true] {
        let Some(lab) = Lab::up() else { return };
        let proxy = lab.proxy(lab.serve(v6, exchange_server), "", "");
        let mut client = lab.connect(proxy.addr());
        turns(&mut client, TURNS);
        eventually("it is spliced", || lab.metric(&proxy, "connections_spliced_open") == 1);
        turn(&mut client, 7, 300_000, 300_000);
        // From now on, long packets do not pass the router. It tells the proxy, which is their source.
        lab.ip("router", "link set far0 mtu 1300");
        turn(&mut client, 9, 3_000_000, 300_000);
    }
}

#[test]
fn conntrack_keeps_no_entry() {
    let Some(lab) = Lab::up() else { return };
    lab.exec("host", "nft add table inet filter");
    lab.exec("host", "nft add chain inet filter in { type filter hook input priority 0 ; }");
    lab.exec("host", "nft add rule inet filter in ct state established counter accept");
    let tracked = |lab: &Lab| {
        let read = || std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count").unwrap();
        lab.within("host", read).trim().parse::<u32>().unwrap()
    };
    let (sender, receiver) = channel();
    let server = lab.serve(false, move |stream| {
        sender.send(()).map_err(std::io::Error::other)?;
        exchange_server(stream)
    });
    let proxy = lab.proxy(server, "", "");
    let mut client = lab.connect(proxy.addr());
    receiver.recv().unwrap();
    assert_eq!(tracked(&lab), 2);
    turns(&mut client, TURNS);
    // The test's own questions about metrics are tracked too.
    eventually("both are forgotten", || tracked(&lab) == 0);
    turns(&mut client, TURNS);
    assert_eq!(tracked(&lab), 0);
    assert_eq!(lab.metric(&proxy, "connections_spliced_open"), 1);
}

#[test]
fn limits_of_clients_count_spliced_flows() {
    for mode in MODES {
        let Some(lab) = Lab::up() else { return };
        let (proxy, client, server) = spliced(&lab, mode, "limits = { client_connections = 1 }");
        let addr = proxy.addr();
        let connect = || {
            let stream = lab.within("client", move || TcpStream::connect(addr))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            std::io::Result::Ok(stream)
        };
        // The reset may come before connect(2) returns.
        assert!(match connect() {
            Ok(mut stream) => is_reset(&mut stream),
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        });
        drop((client, server));
        eventually("the place is free", || {
            let Ok(mut next) = connect() else { return false };
            let begun = mode.begin(&mut next, &[]).is_ok();
            begun && next.write_all(&[1; 10]).is_ok() && next.read_exact(&mut [0; 20]).is_ok()
        });
    }
}

/// Rules of `tc` see what a device sends of a spliced flow, and not what it receives.
#[test]
fn rules_of_tc_apply_where_packets_leave() {
    let Some(lab) = Lab::up() else { return };
    let (_proxy, mut client, mut server) = spliced(&lab, Mode::Tcp, "");
    let lose = |device: &str, at: &str| {
        lab.exec("host", &format!("tc qdisc add dev {device} clsact"));
        let rule = "protocol ip u32 match u32 0 0 action mirred egress redirect dev lo";
        lab.exec("host", &format!("tc filter add dev {device} {at} {rule}"));
    };
    lose("front0", "ingress");
    client.write_all(&[1; 1000]).unwrap();
    server.read_exact(&mut [0; 1000]).unwrap();
    lose("back0", "egress");
    client.write_all(&[1; 1000]).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    lab.exec("host", "tc filter del dev back0 egress");
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    server.read_exact(&mut [0; 1000]).unwrap();
}
