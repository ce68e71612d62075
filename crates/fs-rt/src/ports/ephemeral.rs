//! Ephemeral ports, reserved for connects.

use crate::sys::own_descriptor_table;
use crate::sys::reserve::Reservation;
use fs_core::Protocol;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// Ports that stay reserved until [`Ephemeral::end`], or until this is dropped.
///
/// A reservation is a descriptor, and thousands of them would use up the default limit of 1,024.
/// The limit applies to each descriptor table, so the reservations are in tables of their own. A
/// thread that does nothing else owns each table.
#[derive(Default)]
pub(crate) struct Ephemeral {
    /// In ascending order.
    pub(crate) ports: Vec<u16>,
    threads: Mutex<Vec<ReservationThread>>,
}

impl Ephemeral {
    /// Ports that something else holds.
    pub(crate) fn of(ports: Vec<u16>) -> Self {
        Self { ports, threads: Mutex::default() }
    }

    /// Frees the ports.
    pub(super) fn end(&self) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A thread that holds a batch of reservations in its own descriptor table.
struct ReservationThread {
    /// The thread ends when this is dropped.
    hold: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ReservationThread {
    fn drop(&mut self) {
        self.hold = None;
        // The ports are free when this returns. The thread cannot panic; a panic would free them
        // too.
        self.thread.take().map(JoinHandle::join);
    }
}

/// The reservations of one descriptor table.
struct Batch {
    ports: Vec<u16>,
    /// The port to continue with; `None` at the end of the port space.
    next: Option<u16>,
}

/// Reserves up to `count` ports upwards from `first`, skipping ports in use.
pub(crate) fn reserve_ephemeral(first: u16, count: usize) -> io::Result<Ephemeral> {
    let mut ephemeral = Ephemeral::default();
    let mut next = Some(first);
    while let Some(first) = next.filter(|_| ephemeral.ports.len() < count) {
        let (thread, batch) = reserve_on_thread(first, count - ephemeral.ports.len())?;
        if batch.ports.is_empty() && batch.next.is_some() {
            // The system, not this process, has no more descriptors. Return what was reserved; the
            // caller decides.
            break;
        }
        ephemeral.ports.extend(&batch.ports);
        ephemeral.threads.get_mut().unwrap_or_else(PoisonError::into_inner).push(thread);
        next = batch.next;
    }
    Ok(ephemeral)
}

fn reserve_on_thread(first: u16, count: usize) -> io::Result<(ReservationThread, Batch)> {
    let (answer, answered) = channel();
    let (hold, held) = channel::<()>();
    let thread = std::thread::Builder::new().name("fs-ports".into()).stack_size(64 << 10).spawn(move || {
        let (batch, reservations) = match own_descriptor_table().and_then(|()| reserve_batch(first, count)) {
            Ok((batch, reservations)) => (Ok(batch), reservations),
            Err(error) => (Err(error), Vec::new()),
        };
        if answer.send(batch).is_ok() {
            // Nothing is ever sent. It returns when the `ReservationThread` is dropped.
            let _ = held.recv();
        }
        drop(reservations);
    })?;
    let thread = ReservationThread { hold: Some(hold), thread: Some(thread) };
    let batch =
        answered.recv().map_err(|_| io::Error::other("the thread that reserves ports has ended unexpectedly"))??;
    Ok((thread, batch))
}

/// Covers both families: the kernel's dual-stack wildcard conflicts with every bind to the port.
fn reserve_batch(first: u16, count: usize) -> io::Result<(Batch, Vec<Reservation>)> {
    let (mut ports, mut held) = (Vec::new(), Vec::new());
    let mut any: IpAddr = std::net::Ipv6Addr::UNSPECIFIED.into();
    let mut next = Some(first);
    while let Some(port) = next.filter(|_| held.len() < count) {
        match Reservation::new(Protocol::Tcp, SocketAddr::new(any, port), false) {
            // The kernel may have connections there, of a listener that is closed. All packets for an
            // ephemeral port are ours.
            Ok(reservation) if reservation.is_shared => {}
            Ok(reservation) => {
                ports.push(port);
                held.push(reservation);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            // This kernel or namespace has no IPv6, so reserve for IPv4 only.
            Err(error)
                if any.is_ipv6() && matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) =>
            {
                any = Ipv4Addr::UNSPECIFIED.into();
                continue;
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => break,
            Err(error) => return Err(error),
        }
        next = port.checked_add(1);
    }
    Ok((Batch { ports, next }, held))
}
