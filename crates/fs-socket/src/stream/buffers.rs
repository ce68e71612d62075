//! SO_SNDBUF and SO_RCVBUF of sockets that have not set them: what the kernel's would grow to when nobody reads.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use fs_shm::wait::is_confined;
use rustix::fs::{Mode, OFlags};

/// Read once: a process seldom changes its network namespace, or the system its limits. 0: not read yet.
static SYSTEM: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// net.ipv4.tcp_wmem and tcp_rmem of a system that nobody has tuned.
const USUAL: [u32; 2] = [4 << 20, 128 << 10];

/// For sending: up to the last of net.ipv4.tcp_wmem (tcp_sndbuf_expand() of the kernel). For receiving: the middle of
/// tcp_rmem, as that grows only where somebody reads.
pub(crate) fn system(sending: bool) -> u32 {
    let place = &SYSTEM[usize::from(!sending)];
    let known = place.load(Relaxed);
    if known != 0 {
        return known;
    }
    let usual = USUAL[usize::from(!sending)];
    if is_confined() {
        return usual;
    }
    let (path, word) = if sending { ("/proc/sys/net/ipv4/tcp_wmem", 2) } else { ("/proc/sys/net/ipv4/tcp_rmem", 1) };
    let read = read(path, word).unwrap_or(usual);
    place.store(read, Relaxed);
    read
}

fn read(path: &str, word: usize) -> Option<u32> {
    let mut room = [0; 128];
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(file, &mut room[..]).ok()?;
    let text = core::str::from_utf8(&room[..len]).ok()?;
    text.split_ascii_whitespace().nth(word)?.parse().ok().filter(|&bytes| bytes != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_are_those_of_proc() {
        for (sending, path, word) in
            [(true, "/proc/sys/net/ipv4/tcp_wmem", 2), (false, "/proc/sys/net/ipv4/tcp_rmem", 1)]
        {
            let text = std::fs::read_to_string(path).unwrap();
            assert_eq!(system(sending).to_string(), text.split_whitespace().nth(word).unwrap());
        }
        assert_eq!(read("/proc/no such file", 0), None);
    }
}
