//! Two real processes: this test program starts itself as the other one. Streams both ways, checked by SHA-256, with
//! blocking calls on both sides; a process killed at any point, and what the survivor sees.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::process::{Child, Command, Stdio};

use fs_shm::{Arena, Channel, Errno, Geometry, Interest, Memory, NoBells, OpenArgs, Side, Wait, WaitEnd, holder};
use sha2::{Digest, Sha256};

const GEOMETRY: Geometry = Geometry::STANDARD;
const LEN: usize = 8 << 20;

/// Not a test of its own: what the other process does.
#[test]
fn other_process() {
    let Ok(paths) = std::env::var("FS_SHM_TEST_MEMORY") else { return };
    let memory: Vec<File> =
        paths.split(',').map(|path| File::options().read(true).write(true).open(path).unwrap()).collect();
    let memory = [memory[0].as_fd(), memory[1].as_fd()];
    holder::set_attachment(2);
    let arena = leak(Arena::map(memory, GEOMETRY, Side::B, &NoBells).unwrap());
    let channel = loop {
        match Channel::accept(arena) {
            Some(channel) => break channel,
            None => drop(arena.wait_inbox(Wait::default())),
        }
    };
    match std::env::var("FS_SHM_TEST_WORK").unwrap().as_str() {
        "echo-hash" => {
            // Hashes what comes until the end, sends a stream of its own, then the hash.
            let reader = std::thread::spawn(move || digest_of(&channel));
            send_stream(&channel, 77);
            let digest = reader.join().unwrap();
            send_all(&channel, &digest);
            channel.close(false).unwrap();
        }
        "hold-lock-and-die" => {
            let writing = channel.writing().unwrap();
            println!("holding");
            std::thread::sleep(std::time::Duration::from_secs(60));
            drop(writing);
        }
        work => panic!("unknown work {work}"),
    }
}

#[test]
fn streams_both_ways_arrive_unchanged() {
    let (memory, mut other) = start("echo-hash");
    let arena = leak(Arena::map(memory.of(Side::A), GEOMETRY, Side::A, &NoBells).unwrap());
    let channel = Channel::open(arena, &OpenArgs::default()).unwrap();
    let reader = std::thread::spawn(move || {
        let mut all = Vec::with_capacity(LEN + 32);
        read_to_end(&channel, |bytes| all.extend_from_slice(bytes));
        all
    });
    let sent = send_stream(&channel, 5);
    channel.shutdown(fs_shm::Shutdown::Write).unwrap();
    let all = reader.join().unwrap();
    assert_eq!(all.len(), LEN + 32);
    assert_eq!(<[u8; 32]>::from(Sha256::digest(&all[..LEN])), hash_of(77));
    assert_eq!(all[LEN..], sent);
    channel.close(false).unwrap();
    assert!(other.wait().unwrap().success());
    assert_eq!(arena.used(), 0);
}

#[test]
fn a_killed_process_leaves_a_lock_that_can_be_broken() {
    let (memory, mut other) = start("hold-lock-and-die");
    let arena = leak(Arena::map(memory.of(Side::A), GEOMETRY, Side::A, &NoBells).unwrap());
    let client = Channel::open(arena, &OpenArgs::default()).unwrap();
    let mut lines = BufReader::new(other.stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("holding") {}
    other.kill().unwrap();
    other.wait().unwrap();
    // What the daemon does: as the dead process's side, after its locks are free again.
    let as_b = leak(Arena::map(memory.of(Side::B), GEOMETRY, Side::B, &NoBells).unwrap());
    let dead = Channel::at(as_b, client.slot()).unwrap();
    client.send_one(b"never read").unwrap();
    dead.break_locks(2);
    assert_eq!(dead.close(false), Ok(true));
    assert_eq!(client.recv_one(&mut [0; 8]), Err(Errno::CONNRESET));
    assert_eq!(client.send_one(b"x"), Err(Errno::PIPE));
    client.close(false).unwrap();
    assert_eq!(arena.used(), 0);
}

fn start(work: &str) -> (Memory, Child) {
    let memory = Arena::create("two-processes", GEOMETRY).unwrap();
    let path = |fd: BorrowedFd<'_>| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
    let own = std::env::current_exe().unwrap();
    // Programs of another processor are run by an emulator (cargo xtask proof processors).
    let runner = std::env::var("FS_TEST_RUNNER").unwrap_or_default();
    let mut words = runner.split_whitespace();
    let mut command = words.next().map_or_else(|| Command::new(&own), Command::new);
    if !runner.is_empty() {
        command.args(words).arg(&own);
    }
    let child = command
        .args(["other_process", "--exact", "--nocapture"])
        .env("FS_SHM_TEST_MEMORY", memory.of(Side::B).map(path).join(","))
        .env("FS_SHM_TEST_WORK", work)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    (memory, child)
}

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

/// Message sizes and bytes from a seed.
fn stream(seed: u32) -> impl Iterator<Item = Vec<u8>> {
    let (mut state, mut left) = (seed, LEN);
    std::iter::from_fn(move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let len = [8, 40, 41, 1000, 16_384, 70_000][(state >> 16) as usize % 6].min(left);
        left -= len;
        (len != 0).then(|| (0..len as u32).map(|i| (i.wrapping_mul(state | 1) >> 7) as u8).collect())
    })
}

fn hash_of(seed: u32) -> [u8; 32] {
    let mut hash = Sha256::new();
    stream(seed).for_each(|message| hash.update(message));
    hash.finalize().into()
}

fn send_stream(channel: &Channel<'_>, seed: u32) -> [u8; 32] {
    stream(seed).for_each(|message| send_all(channel, &message));
    hash_of(seed)
}

fn send_all(channel: &Channel<'_>, mut message: &[u8]) {
    while !message.is_empty() {
        match channel.send_one(message) {
            Ok(n) => message = &message[n..],
            Err(Errno::AGAIN) => wait(channel, Interest::Write),
            Err(errno) => panic!("send: {errno}"),
        }
    }
}

fn digest_of(channel: &Channel<'_>) -> [u8; 32] {
    let mut hash = Sha256::new();
    read_to_end(channel, |bytes| hash.update(bytes));
    hash.finalize().into()
}

fn read_to_end(channel: &Channel<'_>, mut take: impl FnMut(&[u8])) {
    let mut buf = vec![0; 30_000];
    loop {
        match channel.recv_one(&mut buf) {
            Ok(0) => return,
            Ok(n) => take(&buf[..n]),
            Err(Errno::AGAIN) => wait(channel, Interest::Read),
            Err(errno) => panic!("recv: {errno}"),
        }
    }
}

/// A slice that ends without a wake-up would be a lost one: the other process always has something to do within it.
fn wait(channel: &Channel<'_>, interest: Interest) {
    let mut slices = 0;
    while channel.wait(interest, Wait::default()) == WaitEnd::Slice {
        slices += 1;
        assert!(slices < 60, "nothing for a minute");
    }
}
