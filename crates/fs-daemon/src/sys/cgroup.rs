//! Programs that a cgroup has for its processes' packets and connections: bpf(2), BPF_PROG_QUERY.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Of linux/bpf.h: the command, its flag for "those of the cgroups above it as well", and what has a say in a connection
/// (BPF_CGROUP_INET_INGRESS, BPF_CGROUP_INET_EGRESS, BPF_CGROUP_INET4_CONNECT, BPF_CGROUP_INET6_CONNECT).
const PROG_QUERY: i32 = 16;
const QUERY_EFFECTIVE: u32 = 1;
const KINDS: [u32; 4] = [0, 1, 10, 11];

/// The `query` of `union bpf_attr`.
#[repr(C, align(8))]
#[derive(Default)]
struct Query {
    target_fd: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    prog_ids: u64,
    prog_cnt: u32,
    _pad: u32,
    prog_attach_flags: u64,
}

/// Whether a cgroup, or one above it, has any. `cgroup`: its directory. It needs CAP_NET_ADMIN.
pub(crate) fn has_programs(cgroup: BorrowedFd<'_>) -> io::Result<bool> {
    for attach_type in KINDS {
        let target_fd = cgroup.as_raw_fd().cast_unsigned();
        let mut query = Query { target_fd, attach_type, query_flags: QUERY_EFFECTIVE, ..Query::default() };
        // SAFETY: `query` is as long as is said, and names no other memory: without room for numbers only their count is written.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut query, size_of::<Query>()) };
        if answer != 0 {
            return Err(io::Error::last_os_error());
        }
        if query.prog_cnt != 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The unified hierarchy; programs are attached to cgroups of that one only. Where it is mounted nowhere (ip-netns(8) takes away what is
/// below /sys) it is mounted for this process alone, which needs CAP_SYS_ADMIN.
pub(crate) fn hierarchy() -> io::Result<File> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_it = |line: &&str| line.split_once(" - ").is_some_and(|(_, rest)| rest.starts_with("cgroup2 "));
    match mounts.lines().find(is_it).and_then(|line| line.split(' ').nth(4)) {
        Some(path) => File::open(path),
        None => mount(),
    }
}

fn mount() -> io::Result<File> {
    /// Of linux/mount.h: FSOPEN_CLOEXEC and FSMOUNT_CLOEXEC, FSCONFIG_CMD_CREATE.
    const CLOEXEC: u32 = 1;
    const CREATE: u32 = 6;
    let made = |fd: libc::c_long| match i32::try_from(fd) {
        // SAFETY: the kernel has just made it for us.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: the name ends in a zero.
    let context = made(unsafe { libc::syscall(libc::SYS_fsopen, c"cgroup2".as_ptr(), CLOEXEC) })?;
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: the command takes no key and no value.
    if unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), CREATE, none, none, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it names no memory.
    made(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), CLOEXEC, 0) }).map(File::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::path::PathBuf;

    #[test]
    fn the_hierarchy_is_there_wherever_it_is_mounted() {
        match mount() {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => println!("skipped: {error}"),
            mounted => {
                let names = |root: File| {
                    rustix::fs::openat(
                        &root,
                        "cgroup.controllers",
                        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
                        rustix::fs::Mode::empty(),
                    )
                };
                names(mounted.unwrap()).unwrap();
                names(hierarchy().unwrap()).unwrap();
            }
        }
    }

    /// A call of bpf(2) with the first words of `union bpf_attr`.
    fn bpf(command: i32, words: &[u32]) -> io::Result<i32> {
        // SAFETY: `words` is as long as is said; the memory that they name lives, as the caller sees to.
        let answer = unsafe { libc::syscall(libc::SYS_bpf, command, words.as_ptr(), size_of_val(words)) };
        if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer as i32) }
    }

    /// `r0 = 0; exit` for what leaves (BPF_PROG_TYPE_CGROUP_SKB, BPF_CGROUP_INET_EGRESS): IPAddressDeny=any of systemd.
    fn deny() -> io::Result<OwnedFd> {
        const PROG_LOAD: i32 = 5;
        static CODE: [u64; 2] = [0xb7, 0x95];
        static LICENSE: [u8; 4] = *b"GPL\0";
        let halves = |address: usize| [address as u32, (address >> 32) as u32];
        let mut words = [0_u32; 18];
        words[..2].copy_from_slice(&[8, CODE.len() as u32]);
        words[2..4].copy_from_slice(&halves(CODE.as_ptr() as usize));
        words[4..6].copy_from_slice(&halves(LICENSE.as_ptr() as usize));
        words[17] = 1;
        let program = bpf(PROG_LOAD, &words)?;
        // SAFETY: the kernel has just made it for us.
        Ok(unsafe { OwnedFd::from_raw_fd(program) })
    }

    #[test]
    fn programs_of_a_cgroup_and_of_those_above_it_are_seen() {
        const PROG_ATTACH: i32 = 8;
        const EGRESS: u32 = 1;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).and_then(|line| line.split(' ').nth(4));
        let name = format!("fs-daemon-{}", std::process::id());
        let Some(group) = mount.map(|mount| PathBuf::from(mount).join(name)) else {
            println!("skipped: no cgroup2");
            return;
        };
        let below = group.join("below");
        if let Err(error) = std::fs::create_dir_all(&below) {
            println!("skipped: {error}");
            return;
        }
        let [above, inner] = [&group, &below].map(|path| File::open(path).unwrap());
        let seen = |directory: &File| has_programs(directory.as_fd());
        let result = (|| {
            let before = (seen(&above)?, seen(&inner)?);
            let program = deny()?;
            let fds = [above.as_raw_fd(), program.as_raw_fd()].map(i32::cast_unsigned);
            bpf(PROG_ATTACH, &[fds[0], fds[1], EGRESS, 0])?;
            io::Result::Ok((before, (seen(&above)?, seen(&inner)?)))
        })();
        std::fs::remove_dir(&below).unwrap();
        std::fs::remove_dir(&group).unwrap();
        match result {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => println!("skipped: {error}"),
            result => assert_eq!(result.unwrap(), ((false, false), (true, true))),
        }
    }
}
