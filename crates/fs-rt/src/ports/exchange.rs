//! Ports that pass from one process to the next with the kernel's listening socket.
//!
//! The last process keeps its connections on the device, and the kernel gets new ones
//! ([`Ports::leave`]). The next process has them from the kernel until it has the device. Then new ones
//! are the device's, and the kernel keeps those that it has ([`Ports::take_again`]), until there are
//! none ([`Ports::end_sharing`]).

use super::{AllUsed, LeasedAddress, Ports, Used};
use fs_core::Protocol;
use fs_xdp::Share;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

impl Used {
    /// Returns true if it was the kernel's, and no other process holds it.
    fn is_former(&self) -> bool {
        !self.held && self.share == Share::Former
    }
}

impl Ports {
    /// Like [`Ports::acquire`], with a kernel socket that listens at `at`, in another process too. The
    /// kernel may have connections there.
    ///
    /// # Errors
    /// `AddrInUse` if another socket reserves the address.
    pub(crate) fn acquire_listening(
        &self,
        at: SocketAddr,
        v6_only: bool,
        socket: OwnedFd,
    ) -> io::Result<LeasedAddress> {
        self.require_kernel()?;
        let place = self.take_by(LeasedAddress::new(Protocol::Tcp, at, v6_only), socket)?;
        let mut used = self.lock();
        if let Some(entry) = used.get_mut(&place) {
            (entry.is_shared_socket, entry.share) = (true, Share::Former);
            self.tell(&used, place);
        }
        Ok(place)
    }

    /// Leaves a place's new connections to another process that has the reserving socket too. We get
    /// the packets of all others.
    pub(crate) fn leave(&self, place: LeasedAddress) {
        let mut used = self.lock();
        self.leave_to_kernel(&mut used, place);
    }

    pub(super) fn leave_to_kernel(&self, used: &mut AllUsed, place: LeasedAddress) {
        let Some(entry) = used.get_mut(&place) else { return };
        entry.share = Share::Leaving;
        let reservation = entry.reservation.take();
        self.tell(used, place);
        drop(reservation);
    }

    /// Returns the TCP ports of which the kernel may have connections from before they were ours.
    pub(crate) fn shared_with_kernel(&self) -> Vec<u16> {
        let used = self.lock();
        used.iter().filter(|(_, entry)| entry.is_former()).map(|(place, _)| place.at.port()).collect()
    }

    /// The kernel has no connection at a port any more, so that its packets need no look-up in the
    /// kernel's table.
    pub(crate) fn end_sharing(&self, port: u16) {
        let mut used = self.lock();
        let is_it = |(place, entry): &(&LeasedAddress, &Used)| place.at.port() == port && entry.is_former();
        let places: Vec<LeasedAddress> = used.iter().filter(is_it).map(|(place, _)| *place).collect();
        for place in places {
            if let Some(entry) = used.get_mut(&place) {
                entry.share = Share::Ours;
            }
            self.tell(&used, place);
        }
    }
}
