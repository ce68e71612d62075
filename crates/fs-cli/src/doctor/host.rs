//! The kernel, privileges, memory, and our own library.

use super::finding::Finding;
use crate::run;

pub(super) fn look() -> Vec<Finding> {
    vec![kernel(&rustix::system::uname().release().to_string_lossy()), privilege(), memlock(), jit(), library()]
}

/// The oldest supported kernel. 5.14 added SO_NETNS_COOKIE, by which the daemon distinguishes
/// network namespaces. (The features of AF_XDP that we use need 5.11.)
const OLDEST: (u32, u32) = (5, 14);
/// Added bpf_get_netns_cookie() for programs of sock_ops, by which a client's name finds its connection.
const WIRE: (u32, u32) = (5, 15);
const MULTI_BUFFER: (u32, u32) = (6, 6);

fn kernel(release: &str) -> Finding {
    match version(release) {
        Some(v) if v < OLDEST => Finding::bad(
            "kernel",
            format!("Linux {release} is too old for the daemon (it needs AF_XDP with bpf_link, and SO_NETNS_COOKIE)"),
            "use Linux 5.14 or later; 6.6 or later for MTUs above 3506",
        ),
        Some(v) if v < MULTI_BUFFER => Finding::note(
            "kernel",
            format!(
                "Linux {release} has no multi-buffer packets for AF_XDP, and programs cannot share a device{}",
                if v < WIRE {
                    "; `[wire]` needs 5.15, or a kernel to which a distribution has added the same"
                } else {
                    ""
                }
            ),
            "use Linux 6.6 or later if the MTU is above 3506, or if several programs at a time need one device",
        ),
        Some(_) => Finding::good("kernel", format!("Linux {release}")),
        None => Finding::note(
            "kernel",
            format!("cannot read a version from the kernel's release `{release}`"),
            "check that it is 5.14 or later",
        ),
    }
}

/// The running kernel's version.
pub(super) fn running() -> Option<(u32, u32)> {
    version(&rustix::system::uname().release().to_string_lossy())
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn privilege() -> Finding {
    match fs_xdp::missing_privilege() {
        None => Finding::good("privilege", "all capabilities for AF_XDP are present"),
        Some(missing) => Finding::bad(
            "privilege",
            missing,
            "run programs that use a device as root, or with these capabilities; `fastsock up` and `fastsock run` need none",
        ),
    }
}

/// A core's frames (32 MiB) and rings. Kernels from 5.11 charge BPF and UMEM to the memory cgroup
/// or to this limit.
const LOCKED: u64 = 40 << 20;

fn memlock() -> Finding {
    let limit = fs_xdp::memlock_limit();
    if limit >= LOCKED {
        let says = if limit == u64::MAX { "unlimited".to_owned() } else { format!("{} KiB", limit / 1024) };
        return Finding::good("memlock", says);
    }
    if fs_xdp::missing_privilege().is_none() {
        return Finding::good("memlock", format!("{} KiB, but it does not apply to this user", limit / 1024));
    }
    Finding::note(
        "memlock",
        format!("{} KiB can be locked, and a core needs {} KiB", limit / 1024, LOCKED / 1024),
        format!("ulimit -l {}, or LimitMEMLOCK= in a systemd unit", LOCKED / 1024),
    )
}

fn jit() -> Finding {
    const PATH: &str = "/proc/sys/net/core/bpf_jit_enable";
    match std::fs::read_to_string(PATH) {
        Ok(value) if value.trim() == "0" => Finding::note(
            "bpf",
            "the kernel interprets BPF programs, which costs time for each packet",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Ok(_) => Finding::good("bpf", "the kernel compiles BPF programs"),
        // Kernels with CONFIG_BPF_JIT_ALWAYS_ON may hide it from users who cannot change it.
        Err(error) => Finding::good("bpf", format!("cannot read whether the kernel compiles BPF programs ({error})")),
    }
}

fn library() -> Finding {
    match run::library() {
        Ok(path) => Finding::good("library", path.display().to_string()),
        Err(error) => Finding::note(
            "library",
            error.to_string(),
            "build it with `cargo build --release -p fs-preload`; only `fastsock run` needs it",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_that_is_too_old_for_wire_is_said() {
        let says = |release| kernel(release).to_string();
        assert!(says("5.14.0-503.el9").starts_with("note") && says("5.14.0-503.el9").contains("`[wire]` needs 5.15"));
        assert!(!says("5.15.0").contains("[wire]") && says("6.6.0").starts_with("ok"));
    }

    #[test]
    fn kernel_releases_are_parsed() {
        assert_eq!(version("6.18.0-rc1"), Some((6, 18)));
        assert_eq!(version("5.10-debian"), Some((5, 10)));
        assert_eq!(version("unknown"), None);
        assert!(version("5.10.0").unwrap() < OLDEST && version("6.1.0").unwrap() < MULTI_BUFFER);
    }
}
