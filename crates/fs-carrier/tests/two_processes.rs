//! A peer in another process, which is killed at a random moment.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::{Command, Stdio};

use fs_carrier::Pacing;
use fs_carrier::kernel::RecvMode;
use fs_carrier::pair::Pair;
use fs_carrier::region::{End, Region, SideTable};
use fs_carrier::sys::Socket;

const RING: usize = 16384;
const FILE: &str = "FS_CARRIER_TEST_FILE";

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let a = TcpStream::connect(listener.local_addr().expect("its address")).expect("connect");
    let (b, _) = listener.accept().expect("accept");
    (a, b)
}

fn promote<F: AsFd>(socket: F, file: &OwnedFd, end: End) -> Pair<Socket<F>> {
    let side = SideTable::new(1).expect("memory").side(0).expect("a side");
    Pair::promote(Socket(socket), Region::map(file, RING).expect("map"), end, side, Pacing::USUAL).expect("promote")
}

/// The peer's process, started by the other test: sends back what comes. Without a region it has nothing to do.
#[test]
fn echo() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let file: OwnedFd = std::fs::File::options().read(true).write(true).open(path).expect("the region's file").into();
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    let pair = promote(socket, &file, End::B);
    let mut buffer = [0; 5000];
    while let Ok(n @ 1..) = pair.recv(&mut buffer, RecvMode::WAIT) {
        if pair.send(&buffer[..n], false) != Ok(n) {
            return;
        }
    }
}

#[test]
fn killed_peer_ends_the_stream_after_a_right_prefix() {
    // On a busy machine both ends may sleep for each message, so more rounds run.
    let mut by_ring = 0;
    for round in 0..20_u32 {
        by_ring += one_killed_peer(round);
    }
    for round in 20..200 {
        if by_ring > 0 {
            break;
        }
        by_ring += one_killed_peer(round % 20);
    }
    assert!(by_ring > 0, "the ring was never used");
}

/// Returns the number of messages that used the ring.
fn one_killed_peer(round: u32) -> u64 {
    let (a, b) = connection();
    let file = Region::create("test", RING).expect("memfd");
    let mut peer = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "echo"])
        .env(FILE, format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
        .stdin(Stdio::from(OwnedFd::from(b)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the peer");
    let pair = promote(a, &file, End::A);
    let (mut sent, mut got) = (0_u32, 0_u32);
    let kill_at = 37 * round * round;
    let mut buffer = [0; 3000];
    loop {
        let n = 1 + sent % 97;
        let piece: Vec<u8> = (sent..sent + n).map(|i| ((i * 7) >> 3) as u8).collect();
        if pair.send(&piece, false).is_err() {
            break;
        }
        sent += n;
        if got >= kill_at {
            peer.kill().expect("kill");
        }
        match pair.recv(&mut buffer, RecvMode::WAIT) {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                for &byte in &buffer[..n] {
                    assert_eq!(byte, ((got * 7) >> 3) as u8, "round {round}, byte {got}");
                    got += 1;
                }
            }
        }
    }
    assert!(got <= sent);
    assert!(got >= kill_at, "round {round}: the end came before the kill");
    peer.wait().expect("wait");
    pair.counts().ring_sends
}
