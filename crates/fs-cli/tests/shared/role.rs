//! The programs of the tests: this test binary, run as another user.

use crate::lab::{DEVICE, ROLE, noise, peers};
use fs_compat::socket2::SockRef;
use fs_compat::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use fs_rt::{Carrier, CoreCtx, Runtime};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Plays the role that the environment names. Does nothing without one:
///
/// | role | |
/// |---|---|
/// | `serve PORT` | echoes what comes to a port |
/// | `ask PORT` | sends to the peer's echo server and compares |
/// | `bind PORT` | prints whether it may have a port |
/// | `given PORT` | takes over kernel sockets, connected and not, that ask the peer's echo server at this port |
/// | `rebind PORT` | gives a port up and binds it again, many times |
/// | `churn PORT` | echoes what comes to a port, and binds and closes another one all the time. Prints `away` when that fails, and `back` when it succeeds again |
///
/// Further words: `cores=N`, `device=NAME` (repeatable), `queue=N` (repeatable), `bound` (echoes with
/// sockets that are bound to the device).
pub(crate) fn play() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let option = |name: &str| {
        let values = words.iter().filter_map(|word| word.strip_prefix(name)).map(str::to_owned);
        values.collect::<Vec<String>>()
    };
    let cores = option("cores=").first().map_or(1, |cores| cores.parse().unwrap());
    let mut devices = option("device=");
    if devices.is_empty() {
        devices.push(DEVICE.into());
    }
    let mut builder = Runtime::builder().cores(0..cores).pin(false).frames(4096).ephemeral_ports(64);
    for device in devices {
        builder = builder.device(device);
    }
    let queues: Vec<u32> = option("queue=").iter().map(|queue| queue.parse().unwrap()).collect();
    if !queues.is_empty() {
        builder = builder.queues(queues);
    }
    let runtime = builder.build().unwrap_or_else(|error| panic!("{error}"));
    let (what, port) = (words[0].to_owned(), words[1].parse().unwrap());
    let (is_bound, local) = (words.contains(&"bound"), option("local="));
    let run = move |core: CoreCtx| async move {
        match &*what {
            "serve" => serve(port, is_bound).await,
            "churn" => {
                fs_rt::spawn_local(churn());
                serve(port, is_bound).await;
            }
            "ask" => {
                for v6 in [false, true] {
                    ask(SocketAddr::new(peers(v6), port)).await;
                }
                // Requires the kernel's BTF, which the tests' kernels have.
                let merges: u64 = core.stats().links.iter().map(|(_, link)| link.tx_merges).sum();
                assert!(merges > 0, "all segments left one by one");
            }
            "bind" => match TcpListener::bind(("0.0.0.0", port)).await {
                Ok(_) => println!("ready bound"),
                Err(error) => println!("ready {error}"),
            },
            "rebind" => {
                for round in 0..50 {
                    for at in [("0.0.0.0", port), ("::", port)] {
                        let listener = TcpListener::bind(at).await;
                        drop(listener.unwrap_or_else(|error| panic!("TCP {at:?}, round {round}: {error}")));
                        let socket = UdpSocket::bind(at).await;
                        drop(socket.unwrap_or_else(|error| panic!("UDP {at:?}, round {round}: {error}")));
                    }
                }
                println!("ready");
            }
            "given" => {
                for (at, device) in
                    [("0.0.0.0:7001", None), ("0.0.0.0:0", None), ("[::]:7002", Some(DEVICE.as_bytes()))]
                {
                    given(&core, at.parse().unwrap(), device, SocketAddr::new(peers(false), port)).await;
                }
                let to = SocketAddr::new(peers(false), port);
                let at_chosen = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
                let socket = UdpSocket::from_std(at_chosen).unwrap();
                socket.connect(to).await.unwrap();
                asks(&core, &socket).await;
                let local = std::net::UdpSocket::bind(&*local[0]).unwrap();
                let at = local.local_addr().unwrap();
                assert_eq!(UdpSocket::from_std(local).unwrap().local_addr().unwrap(), at);
                println!("ready");
            }
            other => panic!("no such role: {other:?}"),
        }
    };
    runtime.run(run).unwrap();
    println!("over");
}

async fn churn() {
    let mut was_there = true;
    loop {
        let is_there = UdpSocket::bind("0.0.0.0:0").await.is_ok();
        if is_there != was_there {
            println!("{}", if is_there { "back" } else { "away" });
        }
        was_there = is_there;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn serve(port: u16, is_bound: bool) {
    let at: SocketAddr = format!("[::]:{port}").parse().unwrap();
    let device = is_bound.then_some(DEVICE.as_bytes());
    let unbound = TcpSocket::new_v6().unwrap();
    unbound.bind_device(device).unwrap();
    unbound.bind(at).unwrap();
    let listener = unbound.listen(1024).unwrap();
    let socket = UdpSocket::bind(at).await.unwrap();
    if is_bound {
        socket.bind_device(device).unwrap();
    }
    fs_rt::spawn_local(async move {
        let mut bytes = [0; 2048];
        while let Ok((len, from)) = socket.recv_from(&mut bytes).await {
            let _lost = socket.send_to(&bytes[..len], from).await;
        }
    });
    println!("ready");
    while let Ok((mut stream, _)) = listener.accept().await {
        println!("carrier {:?}", stream.carrier());
        fs_rt::spawn_local(async move {
            let (mut reader, mut writer) = stream.split();
            let _reset = tokio::io::copy(&mut reader, &mut writer).await;
        });
    }
}

async fn given(core: &CoreCtx, at: SocketAddr, device: Option<&[u8]>, to: SocketAddr) {
    let kernel = std::net::UdpSocket::bind(at).unwrap();
    SockRef::from(&kernel).bind_device(device).unwrap();
    // A socket of IPv6 has IPv4 peers by mapped addresses.
    let ip = match to.ip() {
        IpAddr::V4(v4) if at.is_ipv6() => v4.to_ipv6_mapped().into(),
        ip => ip,
    };
    kernel.connect(SocketAddr::new(ip, to.port())).unwrap();
    let port = kernel.local_addr().unwrap().port();
    let socket = UdpSocket::from_std(kernel).unwrap_or_else(|error| panic!("{at}: {error}"));
    assert_eq!((socket.peer_addr().unwrap(), socket.local_addr().unwrap().port()), (to, port));
    assert_eq!(socket.device().unwrap().as_deref(), device);
    asks(core, &socket).await;
}

/// The echo server answers over the device.
async fn asks(core: &CoreCtx, socket: &UdpSocket) {
    let received = || core.stats().stack.udp_received;
    let before = received();
    socket.send(b"echo").await.unwrap();
    assert_eq!(tokio::time::timeout(Duration::from_secs(60), socket.recv(&mut [0; 9])).await.unwrap().unwrap(), 4);
    assert_eq!(received(), before + 1, "{:?}: not by the device", socket.local_addr());
}

async fn ask(to: SocketAddr) {
    let stream = TcpStream::connect(to).await.unwrap();
    assert_eq!(stream.carrier(), Carrier::Core, "{to}");
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent = noise(1 << 20);
    let copy = sent.clone();
    fs_rt::spawn_local(async move { writer.write_all(&copy).await.unwrap() });
    let mut came = vec![0; sent.len()];
    tokio::time::timeout(Duration::from_secs(60), reader.read_exact(&mut came)).await.unwrap().unwrap();
    assert!(came == sent, "other bytes came back");
    println!("ready");
}
