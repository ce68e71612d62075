//! Bulk transfers whose segments the link merges: over veth, from a runtime on AF_XDP to the
//! kernel's TCP.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::TcpStream;
use fs_rt::{CoreStats, Runtime};
use std::future::poll_fn;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use veth::{DEVICE, PEER, Wire, at};

/// Limit for each wait.
const LIMIT: Duration = Duration::from_secs(60);

/// The byte at an offset of a transfer. No two pieces are alike.
fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn piece(from: u64, len: usize) -> Vec<u8> {
    (from..from + len as u64).map(byte).collect()
}

/// Reads to the end, checks each byte, and returns the number of bytes.
fn read_all(listener: &TcpListener) -> u64 {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let (mut buffer, mut at) = (vec![0; 1 << 18], 0);
    loop {
        let got = match stream.read(&mut buffer) {
            // With a time limit, a process that was stopped and goes on gets this.
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            got => got.unwrap(),
        };
        if got == 0 {
            return at;
        }
        assert!(buffer[..got].iter().zip(at..).all(|(&got, at)| got == byte(at)), "bytes behind {at} are wrong");
        at += got as u64;
    }
}

/// Reads a counter of /proc/net/netstat in the peer's namespace.
fn peer_counter(wire: &Wire, name: &str) -> u64 {
    let told = wire.peer.enter(|| std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap());
    let lines: Vec<&str> = told.lines().filter(|line| line.starts_with("TcpExt:")).collect();
    let at = lines[0].split_whitespace().position(|word| word == name).unwrap();
    lines[1].split_whitespace().nth(at).unwrap().parse().unwrap()
}

/// Sends pieces of these lengths with pauses between them. Returns the core's counters.
fn send(wire: &Wire, pieces: Vec<usize>, pause: Duration) -> CoreStats {
    let total: u64 = pieces.iter().map(|&len| len as u64).sum();
    let listener = wire.peer.enter(|| TcpListener::bind(at(PEER, 80)).unwrap());
    let reader = std::thread::spawn(move || read_all(&listener));
    let runtime = wire.ours.enter(Wire::runtime);
    let (told, stats) = std::sync::mpsc::channel();
    wire.ours
        .enter(|| {
            runtime.run(move |core| {
                let (pieces, told) = (pieces.clone(), told.clone());
                async move {
                    let mut stream = TcpStream::connect(at(PEER, 80)).await.unwrap();
                    let mut sent = 0;
                    for len in pieces {
                        stream.write_all(&piece(sent, len)).await.unwrap();
                        sent += len as u64;
                        if !pause.is_zero() {
                            tokio::time::sleep(pause).await;
                        }
                    }
                    stream.shutdown().await.unwrap();
                    // Wait until the peer has closed too.
                    let _end = stream.read(&mut [0; 1]).await;
                    told.send(core.stats()).unwrap();
                }
            })
        })
        .unwrap();
    assert_eq!(reader.join().unwrap(), total);
    stats.recv().unwrap()
}

/// On a device with several queues, packets of AF_XDP and of the packet socket may overtake each
/// other, but not within a flow. Long and short pieces alternate, so that some segments are merged
/// and others are not.
#[test]
fn alternating_carriers_keep_order() {
    let Some(wire) = Wire::with_queues("carriers in turns", 4) else { return };
    // GRO on the peer's side makes it use NAPI per queue, as a card's driver does.
    wire.peer.run("ethtool -K fsc1 gro on > /dev/null");
    // tbf delays the packet socket's packets, while AF_XDP bypasses it. Without the per-flow rule
    // AF_XDP would overtake.
    wire.ours.run(&format!("tc qdisc add dev {DEVICE} root tbf rate 1gbit burst 70k limit 10m"));
    let pieces = (0..600).map(|i| [200_000, 1400, 30_000, 5, 2900, 14_480][i % 6]).collect();
    let stats = send(&wire, pieces, Duration::from_micros(100));
    let link = &stats.links[0].1;
    assert!(link.tx_merges > 100, "{link:?}");
    assert!(link.tx_packets - link.tx_merged > 100, "nothing was sent by itself: {link:?}");
    assert_eq!(peer_counter(&wire, "TCPOFOQueue"), 0, "segments came out of order: {link:?}");
}

/// A path loses some or all merged packets. Retransmissions are single segments, so all bytes
/// arrive.
#[test]
fn transfer_completes_when_merged_packets_are_dropped() {
    for (rule, len) in [("numgen inc mod 7 == 0 drop", 6_000_000), ("drop", 300_000)] {
        let Some(wire) = Wire::up("merged packets dropped") else { return };
        wire.peer.run(&format!(
            "nft 'table inet t {{ counter lost {{ }} ; chain c {{ type filter hook prerouting priority -300 ; \
             ip length > 1500 {} counter name lost drop ; }} ; }}'",
            rule.trim_end_matches("drop")
        ));
        let stats = send(&wire, vec![len], Duration::ZERO);
        assert!(stats.links[0].1.tx_merges > 0);
        assert!(!wire.peer.try_run("nft list counter inet t lost | grep -q 'packets 0'"), "nothing was dropped");
    }
}

/// Returns true if the XDP program of the runtime's device is in generic mode.
fn is_generic(wire: &Wire) -> bool {
    wire.ours.try_run(&format!("ip link show {DEVICE} | grep -q xdpgeneric"))
}

/// In native mode the peer's kernel would send a packet for each segment (decision 0036).
#[test]
fn one_core_receives_large_packets_whole() {
    const LEN: usize = 6_000_000;
    let Some(wire) = Wire::up("large packets arrive whole") else { return };
    let listener = wire.peer.enter(|| TcpListener::bind(at(PEER, 80)).unwrap());
    let writer = std::thread::spawn(move || listener.accept().unwrap().0.write_all(&piece(0, LEN)).unwrap());
    let runtime = wire.ours.enter(Wire::runtime);
    assert!(is_generic(&wire));
    let (told, stats) = std::sync::mpsc::channel();
    wire.ours
        .enter(|| {
            runtime.run(move |core| {
                let told = told.clone();
                async move {
                    let mut stream = TcpStream::connect(at(PEER, 80)).await.unwrap();
                    let (mut buffer, mut got) = (vec![0; 1 << 16], 0);
                    while got < LEN as u64 {
                        let len = stream.read(&mut buffer).await.unwrap();
                        assert_eq!(buffer[..len], piece(got, len), "after {got} bytes");
                        assert!(len > 0, "{got} bytes");
                        got += len as u64;
                    }
                    told.send(core.stats()).unwrap();
                }
            })
        })
        .unwrap();
    writer.join().unwrap();
    let link = stats.recv().unwrap().links[0].1;
    assert!(link.rx_packets < LEN as u64 / 1448 / 4, "{link:?}");
}

/// What one connection receives leaves by another one, in the frames in which it came.
#[test]
fn received_frames_are_forwarded() {
    const LEN: usize = 6_000_000;
    let Some(wire) = Wire::up("frames are forwarded") else { return };
    let [source, sink] = [80, 81].map(|port| wire.peer.enter(|| TcpListener::bind(at(PEER, port)).unwrap()));
    let writer = std::thread::spawn(move || source.accept().unwrap().0.write_all(&piece(0, LEN)).unwrap());
    let reader = std::thread::spawn(move || read_all(&sink));
    let runtime = wire.ours.enter(Wire::runtime);
    let (told, counted) = std::sync::mpsc::channel();
    wire.ours
        .enter(|| {
            runtime.run(move |core| {
                let told = told.clone();
                async move {
                    let mut from = TcpStream::connect(at(PEER, 80)).await.unwrap();
                    let mut to = TcpStream::connect(at(PEER, 81)).await.unwrap();
                    let mut forwarded = 0;
                    loop {
                        from.readable().await.unwrap();
                        match poll_fn(|cx| from.poll_forward(cx, &to, usize::MAX)).await {
                            0 => break,
                            moved => forwarded += moved,
                        }
                    }
                    // Only reads report the end.
                    assert_eq!(from.read(&mut [0; 9]).await.unwrap(), 0);
                    to.shutdown().await.unwrap();
                    let _end = to.read(&mut [0; 1]).await;
                    told.send((forwarded, core.stats())).unwrap();
                }
            })
        })
        .unwrap();
    writer.join().unwrap();
    assert_eq!(reader.join().unwrap(), LEN as u64);
    let (forwarded, stats) = counted.recv().unwrap();
    assert_eq!(forwarded, LEN);
    // Chunks of a large packet are full segments, so they leave merged.
    let link = stats.links[0].1;
    assert!(link.tx_merged > link.tx_merges * 16, "{link:?}");
}

/// The kernel would leave one of their queues unused.
#[test]
fn two_cores_keep_native_mode() {
    let Some(wire) = Wire::with_queues("two cores in native mode", 2) else { return };
    let runtime = wire.ours.enter(|| Runtime::builder().device(DEVICE).cores([0, 1]).pin(false).frames(4096).build());
    assert!(!is_generic(&wire));
    drop(runtime.unwrap());
    // A core for each queue of the device: only one runs.
    let Some(wire) = Wire::up("two cores, one queue") else { return };
    let runtime = wire.ours.enter(|| Runtime::builder().device(DEVICE).cores([0, 1]).pin(false).frames(4096).build());
    assert!(is_generic(&wire));
    drop(runtime.unwrap());
}

/// Stops a flow when dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// TSO is switched while a flow sends. The kernel reports it (RTM_NEWLINK), and the link follows.
#[test]
fn link_follows_tso_switch() {
    let Some(wire) = Wire::up("TSO switched under a flow") else { return };
    let listener = wire.peer.enter(|| TcpListener::bind(at(PEER, 80)).unwrap());
    let reader = std::thread::spawn(move || read_all(&listener));
    let runtime = wire.ours.enter(Wire::runtime);
    let over = Arc::new(AtomicBool::new(false));
    let sent = Arc::new(AtomicU64::new(0));
    let handle = runtime.handle();
    std::thread::scope(|scope| {
        let (told, count, ours) = (over.clone(), sent.clone(), &wire.ours);
        let run = scope.spawn(move || {
            ours.enter(|| {
                runtime.run(move |_| {
                    let (told, count) = (told.clone(), count.clone());
                    async move {
                        let mut stream = TcpStream::connect(at(PEER, 80)).await.unwrap();
                        while !told.load(Ordering::Relaxed) {
                            let from = count.load(Ordering::Relaxed);
                            stream.write_all(&piece(from, 100_000)).await.unwrap();
                            count.store(from + 100_000, Ordering::Relaxed);
                        }
                        stream.shutdown().await.unwrap();
                        let _end = stream.read(&mut [0; 1]).await;
                    }
                })
            })
        });
        // Also if an assertion fails: the scope waits for the thread.
        let end = Over(&over);
        // No counters are published at first.
        let link = || handle.stats()[0].links.first().map(|(_, link)| *link).unwrap_or_default();
        // Waits until this many packets were sent, all merged or all not.
        let wait_for = |merged: bool| {
            let until = Instant::now() + LIMIT;
            loop {
                let before = link();
                while link().tx_packets < before.tx_packets + 2000 {
                    assert!(Instant::now() < until, "nothing is sent");
                    std::thread::sleep(Duration::from_millis(5));
                }
                if (link().tx_merges > before.tx_merges) == merged {
                    return;
                }
                assert!(Instant::now() < until, "merging does not become {merged}: {before:?}");
            }
        };
        wait_for(true);
        for _ in 0..2 {
            wire.ours.run(&format!("ethtool -K {DEVICE} tso off > /dev/null"));
            wait_for(false);
            wire.ours.run(&format!("ethtool -K {DEVICE} tso on > /dev/null"));
            wait_for(true);
        }
        drop(end);
        run.join().unwrap().unwrap();
    });
    assert_eq!(reader.join().unwrap(), sent.load(Ordering::Relaxed));
}
