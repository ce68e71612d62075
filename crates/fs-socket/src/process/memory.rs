//! How much memory this process may still use: what would go beyond the limit of its memory cgroup ends a process there, and the
//! kernel's sockets take no more bytes before it comes to that.
//!
//! Asked before a connection's ring grows, seldom enough to read files for it: cgroup v1 and v2, where they are mounted usually.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fs_shm::wait::is_confined;
use rustix::fs::{Mode, OFlags};

/// What stays free: other processes of the cgroup ask at the same time, and the program has to go on. Of the limit, and at least.
const KEPT_OF_LIMIT: u64 = 16;
const KEPT: u64 = 4 << 20;

/// How long one look counts, for an eighth of what was free then: others use memory meanwhile.
const FOR: Duration = Duration::from_millis(50);
const PART: u64 = 8;

/// What may be used without another look, and until when, in ms since the first look.
static GRANTED: AtomicU64 = AtomicU64::new(0);
static UNTIL: AtomicU64 = AtomicU64::new(0);

/// Whether so many bytes more may be used. A confined process cannot look: yes.
pub(crate) fn may_use(bytes: u64) -> bool {
    static BEGUN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    if is_confined() {
        return true;
    }
    let now = BEGUN.get_or_init(Instant::now).elapsed().as_millis() as u64;
    if now < UNTIL.load(Relaxed) && GRANTED.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok() {
        return true;
    }
    let free = free(bytes);
    if free < bytes {
        return false;
    }
    GRANTED.store((free - bytes) / PART, Relaxed);
    UNTIL.store(now + FOR.as_millis() as u64, Relaxed);
    true
}

/// Bytes that may be used; exact only if they are fewer than `wanted`.
fn free(wanted: u64) -> u64 {
    let mut least = system().unwrap_or(u64::MAX);
    let mut room = [0; 1024];
    let Some(text) = read(b"/proc/self/cgroup", &mut room) else { return least };
    let mut place = [0; 32];
    let root = root(&mut place);
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let kinds: &[&Kind] = match controllers {
            "" if number == "0" => &[&UNIFIED],
            _ if controllers.split(',').any(|controller| controller == "memory") => &[&V1],
            _ => continue,
        };
        for kind in kinds {
            least = least.min(of_cgroup(root, kind, path, wanted));
        }
    }
    least
}

/// Where the files are and what they are called.
struct Kind {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// In memory.stat: what the kernel drops before it ends a process.
    cached: [&'static str; 2],
}

const UNIFIED: Kind = Kind {
    mount: "/sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    cached: ["inactive_file ", "active_file "],
};
const V1: Kind = Kind {
    mount: "/sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file ", "total_active_file "],
};

/// The cgroup and all above it. In a container the path may be the host's: then only the top is there, which is the container's.
fn of_cgroup(root: &str, kind: &Kind, path: &str, wanted: u64) -> u64 {
    let mut least = u64::MAX;
    let mut path = path.trim_end_matches('/');
    loop {
        least = least.min(of_level(root, kind, path, wanted).unwrap_or(u64::MAX));
        let Some(end) = path.rfind('/') else { return least };
        path = &path[..end];
    }
}

/// `None`: there is no limit, or no such cgroup.
fn of_level(root: &str, kind: &Kind, path: &str, wanted: u64) -> Option<u64> {
    let mut room = [0; 64];
    let limit: u64 = read_in(root, kind, path, kind.limit, &mut room)?.trim_end().parse().ok()?;
    let used: u64 = read_in(root, kind, path, kind.used, &mut room)?.trim_end().parse().ok()?;
    let most = limit.saturating_sub((limit / KEPT_OF_LIMIT).max(KEPT));
    let free = most.saturating_sub(used);
    if free >= wanted {
        return Some(free);
    }
    let mut room = [0; 8192];
    let cached = read_in(root, kind, path, "memory.stat", &mut room).map_or(0, |text| sum(text, &kind.cached));
    Some(most.saturating_sub(used.saturating_sub(cached)))
}

/// MemAvailable.
fn system() -> Option<u64> {
    let mut room = [0; 512];
    let available = sum(read(b"/proc/meminfo", &mut room)?, &["MemAvailable:"]) << 10;
    (available != 0).then(|| available.saturating_sub(KEPT))
}

/// The numbers of the lines that begin with these.
fn sum(text: &str, names: &[&str]) -> u64 {
    let number = |line: &str| {
        let rest = names.iter().find_map(|name| line.strip_prefix(name))?;
        rest.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    text.lines().filter_map(number).fold(0, u64::saturating_add)
}

/// Where the files are looked for: below the root of this process, or of the nearest that it descends from, which sees them:
/// `ip netns exec` puts a new /sys over the one with the cgroups.
fn root(room: &mut [u8; 32]) -> &str {
    const GENERATIONS: u32 = 8;
    let (mut len, mut found) = (0, false);
    let mut of = parent(b"/proc/self/stat");
    for _ in 0..GENERATIONS {
        found = [V1.mount, "/sys/fs/cgroup/cgroup.controllers"].iter().any(|file| exists(&room[..len], file));
        if found {
            break;
        }
        let Some(process) = of else { break };
        let mut path = [0; 32];
        let (Some(name), Some(stat)) = (proc_path(process, "root", room), proc_path(process, "stat", &mut path)) else {
            break;
        };
        len = name;
        of = parent(&path[..stat]);
    }
    core::str::from_utf8(&room[..len]).ok().filter(|_| found).unwrap_or("")
}

fn exists(root: &[u8], file: &str) -> bool {
    let mut whole = [0; 80];
    join(&mut whole, &[root, file.as_bytes()])
        .is_some_and(|len| rustix::fs::access(&whole[..len], rustix::fs::Access::EXISTS).is_ok())
}

/// "/proc/N/NAME"; how long it is.
fn proc_path(process: u32, name: &str, room: &mut [u8; 32]) -> Option<usize> {
    let mut digits = [0; 10];
    let mut from = digits.len();
    let mut rest = process;
    while rest != 0 {
        from -= 1;
        digits[from] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    join(room, &[b"/proc/", &digits[from..], b"/", name.as_bytes()])
}

/// Of a process's stat file; `None`: it has none, or it is not to be seen.
fn parent(stat: &[u8]) -> Option<u32> {
    let mut room = [0; 256];
    // Its name may have spaces and parentheses in it.
    let (_, fields) = read(stat, &mut room)?.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(1)?.parse().ok().filter(|&parent| parent != 0)
}

fn read_in<'a>(root: &str, kind: &Kind, path: &str, name: &str, room: &'a mut [u8]) -> Option<&'a str> {
    let mut whole = [0; 512];
    let parts = [root, kind.mount, path, "/", name].map(str::as_bytes);
    let len = join(&mut whole, &parts)?;
    read(&whole[..len], room)
}

fn join(room: &mut [u8], parts: &[&[u8]]) -> Option<usize> {
    let mut len = 0;
    for part in parts {
        room.get_mut(len..len + part.len())?.copy_from_slice(part);
        len += part.len();
    }
    Some(len)
}

/// What of a file fits into `room`.
fn read<'a>(path: &[u8], room: &'a mut [u8]) -> Option<&'a str> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let len = rustix::io::read(file, &mut *room).ok()?;
    core::str::from_utf8(&room[..len]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_summed_by_their_names() {
        let text = "cache 1\ninactive_file 4096\nactive_file 100\ntotal_inactive_file 7\nMemAvailable:   33 kB\n";
        assert_eq!(sum(text, &UNIFIED.cached), 4196);
        assert_eq!(sum(text, &V1.cached), 7);
        assert_eq!(sum(text, &["MemAvailable:"]), 33);
    }

    #[test]
    fn where_there_is_no_limit_it_is_the_systems() {
        let system = system().unwrap();
        assert!(free(1) <= system + (64 << 20) && may_use(4096));
        assert!(!may_use(1 << 60));
        let mut room = [0; 32];
        assert_eq!(root(&mut room), "", "this process sees them itself, or nobody does");
        let mut stat = [0; 32];
        let len = proc_path(std::process::id(), "stat", &mut stat).unwrap();
        assert_eq!(parent(&stat[..len]), Some(rustix::process::getppid().unwrap().as_raw_pid() as u32));
        assert_eq!(of_cgroup("", &UNIFIED, "/no such/cgroup", 1), of_cgroup("", &UNIFIED, "/", 1));
    }
}
