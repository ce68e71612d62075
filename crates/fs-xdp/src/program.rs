//! The XDP program of `bpf/steer.bpf.c`: loading, attaching, and the socket map.
//!
//! It is attached by a bpf_link, which the kernel removes when its last descriptor is closed. So
//! the program disappears with the process, however it ends. A child process has copies of our
//! descriptors from fork until exec or exit, so the process that attached the program detaches it
//! with `BPF_LINK_DETACH` before it closes the descriptor.

use crate::device::NetDevice;
use crate::error::XdpError;
use crate::holder;
use crate::loader::{broken, chain, kernel_is, refused, take_map};
use crate::port_table::PortTable;
use crate::sys::{bpf, capabilities};
use aya::maps::{MapData, XskMap};
use aya::programs::{ProgramError, Xdp};
use aya::{Ebpf, EbpfLoader, VerifierLogLevel};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// Compiled from `bpf/steer.bpf.c` by `bpf/build.sh`; CI rebuilds and compares.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/steer.bpf.o");

/// Where the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attached {
    /// In the driver.
    Native,
    /// On socket buffers, before the kernel's stack.
    Generic,
}

/// The program, attached to one device while this value lives.
pub(crate) struct Program {
    // Dropped in this order: first detach from the device, then free program and maps.
    _link: BpfLink,
    _ebpf: Ebpf,
    sockets: Mutex<XskMap<MapData>>,
    pub(crate) attached: Attached,
    /// The program takes packets of several buffers.
    pub(crate) frags: bool,
}

/// The attachment: a bpf_link.
struct BpfLink {
    fd: OwnedFd,
    /// The process that attached it.
    process: u32,
}

impl Drop for BpfLink {
    fn drop(&mut self) {
        // A forked child has a copy of this value and of the descriptor. The program stays for the
        // parent.
        if self.process == std::process::id()
            && let Err(error) = bpf::link_detach(self.fd.as_fd())
        {
            tracing::debug!(%error, "cannot detach the XDP program's link: it is detached when every copy of its \
                                     descriptor is closed");
        }
    }
}

/// `XDP_FLAGS_*` of `linux/if_link.h`: on socket buffers; in the driver.
const XDP_FLAGS_SKB_MODE: u32 = 1 << 1;
const XDP_FLAGS_DRV_MODE: u32 = 1 << 2;

/// The modes to try, native first, and whether with packets of several buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) native: Option<Frags>,
    pub(crate) generic: Option<Frags>,
}

/// Whether the program takes packets of several buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frags(pub(crate) bool);

impl Program {
    /// Loads the program, lets `fill` fill its table, and attaches it to `device`.
    pub(crate) fn attach(
        device: &NetDevice,
        wanted: Wanted,
        fill: impl FnOnce(&PortTable) -> io::Result<()>,
    ) -> Result<(Program, PortTable), XdpError> {
        if !kernel_is(5, 9) {
            return Err(XdpError::KernelLacks {
                what: "bpf_link for XDP, which removes the program when the process ends",
                cure: "use Linux 5.9 or later, or the AF_PACKET link",
            });
        }
        // The loader probes the kernel's features once and caches the result. Without capabilities
        // it would cache a wrong result.
        let missing = capabilities::missing(capabilities::FOR_XDP);
        if missing.contains(&"CAP_BPF") {
            return Err(XdpError::MissingCapability { doing: "load the XDP program", missing });
        }
        let mut ebpf = create(OBJECT)?;
        let sockets = XskMap::try_from(take_map(&mut ebpf, "sockets")?).map_err(|error| broken(&error))?;
        let ports = PortTable::new(&mut ebpf, device.mac)?;
        fill(&ports).map_err(|error| XdpError::system("fill the XDP program's table", error))?;
        let (link, attached, frags) = attach(&mut ebpf, device, wanted)?;
        Ok((Program { _link: link, _ebpf: ebpf, sockets: Mutex::new(sockets), attached, frags }, ports))
    }

    /// Redirects our packets that arrive on `queue` to `socket`, until the socket is closed.
    pub(crate) fn set_socket(&self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), XdpError> {
        let mut sockets = self.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        sockets.set(queue, socket, 0).map_err(|error| XdpError::Map { doing: "enter a socket", reason: chain(&error) })
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program").field("attached", &self.attached).field("frags", &self.frags).finish_non_exhaustive()
    }
}

/// Creates the object's maps. Requests the verifier's log only after it has rejected a program.
fn create(object: &[u8]) -> Result<Ebpf, XdpError> {
    EbpfLoader::new()
        .verifier_log_level(VerifierLogLevel::DEBUG)
        .load(object)
        .map_err(|error| refused("create the XDP program's maps", &error))
}

/// Loads the requested variant and returns its name.
fn load(ebpf: &mut Ebpf, Frags(frags): Frags) -> Result<&'static str, XdpError> {
    let name = if frags { "fastsock_frags" } else { "fastsock" };
    match program(ebpf, name)?.load() {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(name),
        Err(error) => Err(refused("load the XDP program", &error)),
    }
}

fn attach(ebpf: &mut Ebpf, device: &NetDevice, wanted: Wanted) -> Result<(BpfLink, Attached, bool), XdpError> {
    let mut native_error = device.native_is_deaf().map(io::Error::other);
    if let Some(frags) = wanted.native.filter(|_| native_error.is_none()) {
        let name = load(ebpf, frags)?;
        match attach_in(ebpf, name, device, XDP_FLAGS_DRV_MODE)? {
            Ok(link) => return Ok((link, Attached::Native, frags.0)),
            Err(error) => native_error = Some(error),
        }
    }
    if let Some(frags) = wanted.generic {
        if !frags.0 && device.is_merged_below() {
            // Each such packet would be dropped, also when it is sent again, so connections would
            // stall.
            return Err(XdpError::KernelLacks {
                what: "multi-buffer packets for AF_XDP (6.6), and the devices below this one produce them by merging packets \
                       (GRO, LRO)",
                cure: "turn merging off on each device below it (ethtool -K DEVICE gro off lro off rx-gro-hw off), \
                       or use Linux 6.6 or later",
            });
        }
        if let Some(reason) = native_error {
            let NetDevice { name, driver, .. } = device;
            tracing::info!(device = name, driver, %reason, "the device has no native XDP: using generic mode");
        }
        let name = load(ebpf, frags)?;
        return match attach_in(ebpf, name, device, XDP_FLAGS_SKB_MODE)? {
            Ok(link) => Ok((link, Attached::Generic, frags.0)),
            Err(error) => Err(XdpError::system(format!("attach the XDP program to {}", device.name), error)),
        };
    }
    Err(XdpError::NativeUnsupported {
        device: device.name.clone(),
        driver: device.driver.clone(),
        source: native_error.unwrap_or_else(|| io::ErrorKind::Unsupported.into()),
    })
}

/// Attaches in one mode (`XDP_FLAGS_*`). The outer error is one that no other mode would solve.
fn attach_in(ebpf: &mut Ebpf, name: &str, device: &NetDevice, mode: u32) -> Result<io::Result<BpfLink>, XdpError> {
    let fd = program(ebpf, name)?.fd().map_err(|error| broken(&error))?;
    let error = match bpf::link_xdp(fd.as_fd(), device.index, mode) {
        Ok(link) => return Ok(Ok(BpfLink { fd: link, process: std::process::id() })),
        Err(error) => error,
    };
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => {
            let (program, cure) = holder::describe(device);
            Err(XdpError::ProgramAttached { device: device.name.clone(), program, cure })
        }
        Some(libc::EPERM | libc::EACCES) => Err(refused("attach the XDP program", &error)),
        Some(libc::ENODEV) => Err(XdpError::NoSuchDevice { device: device.name.clone() }),
        _ => Ok(Err(error)),
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Xdp, XdpError> {
    ebpf.program_mut(name)
        .ok_or_else(|| XdpError::Program(format!("no program {name} in the object")))?
        .try_into()
        .map_err(|error: ProgramError| broken(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loader::release;

    /// The end of the instruction `&= 8191`: offset and immediate value.
    const MASK: [u8; 6] = [0, 0, 0xff, 0x1f, 0, 0];

    /// Returns the offsets of this instruction in the object, with any register.
    fn masks() -> Vec<usize> {
        let is_mask = |at: &usize| OBJECT[*at] == 0x57 && OBJECT[at + 2..at + 8] == MASK;
        (0..OBJECT.len() - 8).step_by(8).filter(is_mask).collect()
    }

    #[test]
    fn index_into_the_port_table_is_masked() {
        assert_eq!(masks().len(), 2, "the compiler has left the bound out: see in_set() in steer.bpf.c");
    }

    /// An object that reads beyond the port table. The error names the kernel and has the
    /// verifier's reason.
    #[test]
    fn verifier_rejection_has_the_verifiers_reason() {
        if !capabilities::missing(capabilities::FOR_XDP).is_empty() {
            println!("skipped: needs root");
            return;
        }
        let mut object = OBJECT.to_vec();
        for at in masks() {
            // `&= 8191` becomes `+= 8192`.
            object[at] = 0x07;
            object[at + 4..at + 8].copy_from_slice(&8192_u32.to_le_bytes());
        }
        let mut ebpf = create(&object).unwrap();
        let error = load(&mut ebpf, Frags(false)).unwrap_err();
        assert!(matches!(&error, XdpError::Verifier { .. }), "{error}");
        assert!(error.to_string().contains(&release()) && error.to_string().contains("R0"), "{error}");
    }
}
