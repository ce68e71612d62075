//! The BPF loader (aya): causes of its errors, and maps by name.

use crate::error::XdpError;
use crate::sys::capabilities;
use aya::Ebpf;
use aya::programs::ProgramError;
use aya::util::KernelVersion;
use std::error::Error;
use std::io;

pub(crate) fn take_map(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map, XdpError> {
    ebpf.take_map(name).ok_or_else(|| XdpError::Program(format!("no map {name} in the object")))
}

/// Returns the error number at the root of a loader's error.
fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut at: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = at {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error();
        }
        // `#[error(transparent)]` hides the layer itself, so check the relevant types.
        if let Some(ProgramError::SyscallError(call)) = error.downcast_ref::<ProgramError>() {
            return call.io_error.raw_os_error();
        }
        at = error.source();
    }
    None
}

/// Formats all layers of an error on one line.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut at = error.source();
    while let Some(error) = at {
        let layer = error.to_string();
        if !text.contains(&layer) {
            text = format!("{text}: {layer}");
        }
        at = error.source();
    }
    text
}

pub(crate) fn broken(error: &(dyn Error + 'static)) -> XdpError {
    XdpError::Program(chain(error))
}

/// Converts an error of the loader: with the verifier's log if it rejected the program, else with
/// the missing capability if that is the reason.
pub(crate) fn refused(doing: &'static str, error: &(dyn Error + 'static)) -> XdpError {
    if let Some(ProgramError::LoadError { verifier_log, .. }) = error.downcast_ref::<ProgramError>()
        && let Some(log) = last_lines(&verifier_log.to_string())
    {
        return XdpError::Verifier { kernel: release(), log };
    }
    match errno(error) {
        Some(libc::EPERM | libc::EACCES) => {
            XdpError::MissingCapability { doing, missing: capabilities::missing(capabilities::FOR_XDP) }
        }
        Some(libc::ENOSYS) => {
            XdpError::KernelLacks { what: "BPF", cure: "use a kernel with CONFIG_BPF_SYSCALL, or the AF_PACKET link" }
        }
        Some(number) => XdpError::system(doing, io::Error::from_raw_os_error(number)),
        None => broken(error),
    }
}

/// Returns the running kernel's release, as `uname -r` prints it.
pub(crate) fn release() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    release.map_or_else(|_| "of unknown release".to_owned(), |text| text.trim().to_owned())
}

/// Returns the last lines of a verifier's log, which have the reason, without its statistics.
/// `None` for an empty log, which a rejection before verification leaves.
fn last_lines(log: &str) -> Option<String> {
    const LINES: usize = 5;
    let lines = log.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("processed "));
    let mut last: Vec<&str> = lines.rev().take(LINES).collect();
    last.reverse();
    (!last.is_empty()).then(|| last.join(" | "))
}

/// Returns true if the running kernel is this version or later.
pub(crate) fn kernel_is(major: u8, minor: u8) -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(major, minor, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_of_a_log_have_the_reason() {
        let log = "0: R1=ctx() R10=fp0\n1: (71) r1 = *(u8 *)(r0 +0)\nR0 unbounded memory access\nprocessed 2 insns\n\n";
        let said = "0: R1=ctx() R10=fp0 | 1: (71) r1 = *(u8 *)(r0 +0) | R0 unbounded memory access";
        assert_eq!(last_lines(log).as_deref(), Some(said));
        assert_eq!(last_lines("\nprocessed 0 insns\n"), None);
        assert_eq!(last_lines(&"x\n".repeat(100)).map(|text| text.len()), Some(5 + 4 * 3));
    }
}
