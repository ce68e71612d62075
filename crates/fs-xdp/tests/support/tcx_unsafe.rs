//! Asks the kernel for tcx, which shared devices and spliced flows need (Linux 6.6).
#![allow(unsafe_code)]

use std::io;

/// `BPF_PROG_QUERY` of `enum bpf_cmd`.
const PROG_QUERY: libc::c_int = 16;
/// `BPF_TCX_INGRESS` of `enum bpf_attach_type`.
const TCX_INGRESS: u64 = 46;
/// The loopback device of each network namespace.
const LOOPBACK: u64 = 1;

/// Prints that a test is skipped on this kernel, and why. Returns whether it is.
pub(crate) fn skipped_without_tcx(test: &str) -> bool {
    let skipped = !has_tcx();
    if skipped {
        println!("skipped: {test} (needs tcx, Linux 6.6)");
    }
    skipped
}

/// Asks for the programs of loopback: a kernel without tcx does not know the question. False also
/// without root.
fn has_tcx() -> bool {
    // `target_ifindex` and `attach_type` of `union bpf_attr`. The kernel writes to the rest, whatever
    // the size: up to `revision`, the eighth.
    let mut attributes = [0_u64; 8];
    attributes[0] = LOOPBACK | TCX_INGRESS << 32;
    // SAFETY: a live array of that size, which the kernel reads and writes. It has no pointers.
    let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut attributes, size_of_val(&attributes)) };
    let error = io::Error::last_os_error();
    let is_known = matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM));
    assert!(result == 0 || is_known, "BPF_PROG_QUERY: {error}");
    result == 0
}
