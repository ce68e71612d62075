//! AF_XDP sockets: options, ring mappings, bind and wake-ups. Numbers and structures are those of
//! `linux/if_xdp.h` and `net/xdp/xsk.c`.

use crate::sys::ring_memory::{Entry, RingMemory};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `XDP_MAX_TX_SKB_BUDGET`, kernel 6.17: packets that one `sendto` sends in copy mode (32
/// otherwise).
const XDP_MAX_TX_SKB_BUDGET: libc::c_int = 9;

/// Creates an AF_XDP socket, not bound.
pub(crate) fn socket() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call without pointers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and ours.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set<T: Copy>(socket: BorrowedFd<'_>, option: libc::c_int, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is a live plain structure of the length that is told.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, (&raw const *value).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an option into a zeroed structure. A shorter result leaves its end zero.
fn read<T: Copy>(socket: BorrowedFd<'_>, option: libc::c_int) -> io::Result<(T, usize)> {
    // SAFETY: only used for the plain integer structures of this module, which zero suits.
    let mut value: T = unsafe { std::mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, option, (&raw mut value).cast(), &raw mut length)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok((value, length as usize)) }
}

/// Registers memory as the socket's UMEM. If `tx_metadata_len` is above zero, every sent descriptor
/// must have that many bytes before it in its chunk (kernel 6.11).
///
/// The memory must stay mapped until the socket and all sockets that joined it are closed.
pub(crate) fn register_umem(
    socket: BorrowedFd<'_>,
    area: &crate::umem_unsafe::Area,
    chunk_size: u32,
    headroom: u32,
    tx_metadata_len: u32,
) -> io::Result<()> {
    let registration = libc::xdp_umem_reg {
        addr: area.start().as_ptr() as u64,
        len: area.len() as u64,
        chunk_size,
        headroom,
        flags: if tx_metadata_len > 0 { libc::XDP_UMEM_TX_METADATA_LEN } else { 0 },
        tx_metadata_len,
    };
    set(socket, libc::XDP_UMEM_REG, &registration)
}

/// The ring that a size applies to.
#[derive(Clone, Copy)]
pub(crate) enum Ring {
    Fill,
    Completion,
    Rx,
    Tx,
}

/// Sets a ring's number of entries, a power of two.
pub(crate) fn set_ring_size(socket: BorrowedFd<'_>, ring: Ring, entries: u32) -> io::Result<()> {
    let option = match ring {
        Ring::Fill => libc::XDP_UMEM_FILL_RING,
        Ring::Completion => libc::XDP_UMEM_COMPLETION_RING,
        Ring::Rx => libc::XDP_RX_RING,
        Ring::Tx => libc::XDP_TX_RING,
    };
    set(socket, option, &entries)
}

/// Returns the offsets in the ring mappings. Kernels before 5.4 return a shorter structure and are
/// not supported.
pub(crate) fn mmap_offsets(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_mmap_offsets> {
    let (offsets, length) = read::<libc::xdp_mmap_offsets>(socket, libc::XDP_MMAP_OFFSETS)?;
    if length < size_of::<libc::xdp_mmap_offsets>() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    Ok(offsets)
}

/// Maps one ring.
pub(crate) fn map_ring<T: Entry>(
    socket: BorrowedFd<'_>,
    ring: Ring,
    offsets: &libc::xdp_mmap_offsets,
    entries: u32,
) -> io::Result<RingMemory<T>> {
    let (page_offset, offsets) = match ring {
        Ring::Fill => (libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr),
        Ring::Completion => (libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr),
        Ring::Rx => (libc::XDP_PGOFF_RX_RING as u64, &offsets.rx),
        Ring::Tx => (libc::XDP_PGOFF_TX_RING as u64, &offsets.tx),
    };
    RingMemory::map(socket, page_offset, offsets, entries)
}

/// Lets one `sendto` send up to `packets`. Returns `false` if the kernel has no such option.
pub(crate) fn set_tx_budget(socket: BorrowedFd<'_>, packets: u32) -> bool {
    set(socket, XDP_MAX_TX_SKB_BUDGET, &packets).is_ok()
}

/// Binds to a queue. `share_with` is a bound socket whose UMEM is joined.
pub(crate) fn bind(
    socket: BorrowedFd<'_>,
    device_index: u32,
    queue: u32,
    flags: u16,
    share_with: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: flags | if share_with.is_some() { libc::XDP_SHARED_UMEM } else { 0 },
        sxdp_ifindex: device_index,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: share_with.map_or(0, |fd| fd.as_raw_fd() as u32),
    };
    let length = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
    // SAFETY: `address` is a live structure of the length that is told.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns whether the socket was bound in zero-copy mode.
pub(crate) fn is_zero_copy(socket: BorrowedFd<'_>) -> bool {
    read::<libc::xdp_options>(socket, libc::XDP_OPTIONS)
        .is_ok_and(|(options, _)| options.flags & libc::XDP_OPTIONS_ZEROCOPY != 0)
}

/// The socket's counters.
pub(crate) fn statistics(socket: BorrowedFd<'_>) -> io::Result<libc::xdp_statistics> {
    read::<libc::xdp_statistics>(socket, libc::XDP_STATISTICS).map(|(statistics, _)| statistics)
}

/// Makes the kernel send the entries of the TX ring.
#[inline]
pub(crate) fn kick_tx(socket: RawFd) -> io::Result<()> {
    // SAFETY: no data and no address; the descriptor may be anything.
    let result = unsafe { libc::sendto(socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Makes the driver check the fill ring. `ENXIO` if the device is gone.
#[inline]
pub(crate) fn kick_rx(socket: RawFd) -> io::Result<()> {
    let null = std::ptr::null_mut();
    // SAFETY: no buffer and no address; the descriptor may be anything.
    let result = unsafe { libc::recvfrom(socket, null, 0, libc::MSG_DONTWAIT, null.cast(), null.cast()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the soft limit of `RLIMIT_MEMLOCK` in bytes.
pub(crate) fn memlock_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure to fill; it stays zero should the call fail.
    unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    limit.rlim_cur
}
