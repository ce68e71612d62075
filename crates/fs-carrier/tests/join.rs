//! Ends that join a region at different moments, in the middle of a connection.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use fs_carrier::Pacing;
use fs_carrier::exact::{self, Carried};
use fs_carrier::kernel::RecvMode;
use fs_carrier::pair::Pair;
use fs_carrier::region::{End, Region, SideTable};
use fs_carrier::sys::Socket;
use fs_carrier::traffic::{Traffic, traffic};

const RING: usize = 4096;
const PACING: Pacing = Pacing { spin_ns: 5_000_000, room_ns: 0, yields: 0, is_eager: false, crowd: None };

fn promote<'a>(socket: &'a TcpStream, file: &OwnedFd, end: End) -> Pair<Socket<&'a TcpStream>> {
    let side = SideTable::new(1).expect("memory").side(0).expect("a side");
    Pair::promote(Socket(socket), Region::map(file, RING).expect("map"), end, side, PACING).expect("promote")
}

#[test]
fn reserved_region_has_all_pages() {
    let blocks = |file: &OwnedFd| rustix::fs::fstat(file).expect("its size").st_blocks as u64 * 512;
    let file = Region::create("test", RING).expect("memfd");
    assert!(blocks(&file) < 4096 + 2 * RING as u64);
    Region::reserve(&file, RING).expect("memory");
    assert_eq!(blocks(&file), 4096 + 2 * RING as u64);
}

#[test]
fn first_end_uses_the_kernel_until_the_other_joins() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut a = TcpStream::connect(listener.local_addr().expect("its address")).expect("connect");
    let (mut b, _) = listener.accept().expect("accept");
    // Nagle's algorithm would hold back single bytes until an acknowledgement comes, 40 ms later.
    a.set_nodelay(true).expect("TCP_NODELAY");
    a.write_all(b"before").expect("sent");
    b.write_all(b"123").expect("sent");
    b.read_exact(&mut [0; 2]).expect("a part");
    assert_eq!(exact::carried(&Socket(&a)), Some(Carried { sent: 6, taken: 0 }));
    assert_eq!(exact::carried(&Socket(&b)), Some(Carried { sent: 3, taken: 2 }));
    let file = Region::create("test", RING).expect("memfd");
    let pair_a = promote(&a, &file, End::A);
    let mut buffer = [0; 16];
    // Waits that look: the ring is not asked for, as the other end would not hear of it.
    for text in [&b"123"[..], b"4567"] {
        assert_eq!(pair_a.recv(&mut buffer, RecvMode::WAIT), Ok(text.len()));
        assert_eq!(&buffer[..text.len()], text);
        assert!(pair_a.words().iter().all(|word| word.is_kernel_only()));
        (&b).write_all(b"4567").expect("sent");
    }
    assert_eq!(pair_a.send(b" after", false), Ok(6));
    let pair_b = promote(&b, &file, End::B);
    assert_eq!(pair_b.recv(&mut buffer, RecvMode::WAIT), Ok(10));
    assert_eq!(&buffer[..10], b"fore after");
    assert_eq!(pair_b.recv(&mut buffer, RecvMode::NOW), Err(rustix::io::Errno::AGAIN));
    assert_eq!(pair_a.recv(&mut buffer, RecvMode::WAIT), Ok(4));
    // Now both have joined, so a reader that looks gets the ring.
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buffer = [0; 8];
            let mut got = Vec::new();
            while got.len() < 2000 {
                let n = pair_b.recv(&mut buffer, RecvMode::WAIT).expect("bytes");
                got.extend_from_slice(&buffer[..n]);
            }
            got
        });
        // The reader looks before the first byte comes: with bytes in each receive, it never asks for the ring.
        let start = std::time::Instant::now();
        while pair_b.counts().to_ring == 0 {
            assert!(start.elapsed() < std::time::Duration::from_secs(60), "{:?}", pair_b.counts());
            std::thread::yield_now();
        }
        for i in 0..2000_u32 {
            assert_eq!(pair_a.send(&[i as u8], false), Ok(1));
            if i % 100 == 0 {
                // The reader finds the kernel's queue empty, and looks.
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        let got = reader.join().expect("no panic");
        assert!(got.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    });
    let [forth, back] = traffic(&file).expect("words");
    assert_eq!(forth.ring + forth.kernel, 6 + 6 + 2000);
    assert_eq!(back, Traffic { ring: 0, kernel: 11, is_pinned: false });
    assert_eq!(pair_b.counts().pins + pair_a.counts().pins, 0);
}
