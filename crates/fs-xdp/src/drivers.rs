//! Driver limits and bugs that lose packets and that drivers do not report.

use crate::config::{LINK_HEADER_MAX, XDP_PACKET_HEADROOM};
use crate::device::NetDevice;
use aya::util::KernelVersion;
use std::path::Path;

/// Drivers that set their card's receive buffer size in units of 1 KiB, rounded down, and in
/// zero-copy mode drop larger packets (`SRRCTL.BSIZEPKT` of Intel's 1 and 10 Gb/s cards; see the
/// comment in ixgbe_configure_srrctl()).
const IN_KIB: &[&str] = &["igb", "igc", "ixgbe", "ixgbevf"];

impl NetDevice {
    /// Returns whether a chunk of this size holds every packet of the device, in every mode.
    pub fn fits_chunk(&self, chunk_size: u32) -> bool {
        let room = chunk_size - XDP_PACKET_HEADROOM;
        let room = if IN_KIB.contains(&self.driver.as_str()) { room / 1024 * 1024 } else { room };
        self.mtu + LINK_HEADER_MAX <= room
    }

    /// Returns whether the kernel handles checksum requests (TX metadata) for this device. In copy
    /// mode, packets to a driver that takes socket buffers without a linear part
    /// (IFF_TX_SKB_NO_LINEAR, only virtio-net) take another path. Linux 6.12 ignores the metadata
    /// on it, and the packets leave with an unfinished checksum. No kernel reports whether it does.
    pub(crate) fn hears_metadata(&self) -> bool {
        self.driver != "virtio_net"
    }

    /// Returns why the device's native XDP must not be used although its driver offers it.
    pub(crate) fn native_is_deaf(&self) -> Option<&'static str> {
        // In native mode the program runs on the bond's slaves, and a slave's packet does not match
        // the bond's socket (xsk_rcv_check()). In generic mode the program sees the packet on the
        // bond.
        (self.driver == "bonding").then_some("in native mode a bond's packets reach no AF_XDP socket of the bond")
    }

    /// Returns whether generic mode carries more than the driver's native mode if one core serves the
    /// device (decision 0036). Native XDP on a veth device takes TSO from the other end, whose kernel then
    /// sends a packet for each segment; in generic mode its packets of 64 KiB arrive whole, which needs
    /// multi-buffer. The kernel uses one receive queue less in generic mode than the device has
    /// (veth_xmit() records none), so several cores would not all get their share.
    pub fn generic_carries_more(&self) -> bool {
        self.driver == "veth" && KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
    }

    /// Returns why packets of this device must be copied although its driver offers zero copy.
    pub fn must_copy(&self) -> Option<&'static str> {
        match self.driver.as_str() {
            // igb_xsk_wakeup() raises the interrupt of the queue's transmit half. If the receive
            // half has another interrupt, a queue that has run out of chunks is never polled again,
            // and the kernel's packets on it are lost too.
            "igb" => has_halves(&read("/proc/interrupts"), &self.name).then_some(
                "igb has separate interrupts for receive and transmit here, and its zero copy wakes the wrong one \
                 (with more than half of the card's queues they share one: ethtool -L)",
            ),
            // virtnet_xsk_pool_enable() makes the card read each sent frame's header, all zeros,
            // from the driver's static variable xsk_hdr. A module's memory has no linear mapping,
            // so the card gets the address of other memory, which differs from boot to boot. A
            // header that is not zero can request anything: frames were dropped, and a checksum
            // could be written into them.
            "virtio_net" => (Path::new(VIRTIO_IS_MODULE).exists() && has_static_header(&read("/proc/kallsyms")))
                .then_some(
                    "this kernel's virtio_net is a module, and its zero copy makes the card read each frame's header \
                 from a wrong address (a driver built into the kernel does not)",
                ),
            _ => None,
        }
    }
}

/// Does not exist if the driver is built in.
const VIRTIO_IS_MODULE: &str = "/sys/module/virtio_net/initstate";

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns whether queues of `device` have a receive-only interrupt, by igb's names: `eth0-rx-0`,
/// not `eth0-TxRx-0`.
fn has_halves(interrupts: &str, device: &str) -> bool {
    let names = interrupts.lines().filter_map(|line| line.split_whitespace().next_back());
    names.filter_map(|name| name.strip_prefix(device)).any(|queue| queue.starts_with("-rx-"))
}

/// Returns whether the kernel's symbols contain the module's header. Also true if the symbols
/// cannot be read.
fn has_static_header(symbols: &str) -> bool {
    let is_header = |line: &str| line.ends_with("[virtio_net]") && line.split_whitespace().nth(2) == Some("xsk_hdr");
    symbols.is_empty() || symbols.lines().any(is_header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(driver: &str, mtu: u32) -> NetDevice {
        let (name, driver) = ("eth0".to_owned(), driver.to_owned());
        NetDevice { name, index: 2, mtu, mac: [0; 6], hardware_type: 1, flags: 0, driver }
    }

    #[test]
    fn chunk_size_is_rounded_as_by_the_driver() {
        assert!(device("virtio_net", 1500).fits_chunk(2048) && !device("virtio_net", 1775).fits_chunk(2048));
        for intel in ["igb", "igc", "ixgbe", "ixgbevf"] {
            let fits = |mtu, chunk| device(intel, mtu).fits_chunk(chunk);
            assert!(!fits(1500, 2048) && fits(1500, 4096) && fits(1006, 2048) && !fits(1007, 2048), "{intel}");
        }
        for other in ["i40e", "ice", "mlx5_core", "veth", ""] {
            assert!(device(other, 1500).fits_chunk(2048), "{other}");
        }
    }

    /// Packets of a virtual device are dropped if their checksums are verified, and those of a card are lost
    /// unnoticed if they are not. Only virtio-net ignores the request for one.
    #[test]
    fn checksums_are_left_to_the_devices_that_write_them() {
        for software in ["veth", "tun", "netkit", "bridge", "virtio_net", "xen_netfront"] {
            assert!(device(software, 1500).is_virtual(), "{software}");
            assert_eq!(device(software, 1500).hears_metadata(), software != "virtio_net", "{software}");
        }
        for card in ["igb", "igc", "ixgbe", "ixgbevf", "i40e", "ice", "mlx5_core", "ena", "gve", "e1000e", ""] {
            assert!(!device(card, 1500).is_virtual() && device(card, 1500).hears_metadata(), "{card}");
        }
        let loopback = NetDevice { hardware_type: libc::ARPHRD_LOOPBACK, ..device("", 65_536) };
        assert!(loopback.is_virtual());
    }

    #[test]
    fn only_a_bond_is_deaf_in_native_mode() {
        assert!(device("bonding", 1500).native_is_deaf().is_some() && device("veth", 1500).native_is_deaf().is_none());
    }

    #[test]
    fn only_veth_is_served_in_generic_mode() {
        assert!(!device("ice", 1500).generic_carries_more() && !device("tun", 1500).generic_carries_more());
        let has_fragments = KernelVersion::current().unwrap() >= KernelVersion::new(6, 6, 0);
        assert_eq!(device("veth", 1500).generic_carries_more(), has_fragments);
    }

    #[test]
    fn an_interrupt_for_each_direction_is_found() {
        let halves = " 28: 0 0 PCI-MSIX-0000:00:03.0 0-edge eth0\n 29: 0 1 PCI-MSIX-0000:00:03.0 1-edge eth0-rx-0\n";
        assert!(has_halves(halves, "eth0") && !has_halves(halves, "eth1"));
        assert!(!has_halves(" 29: 0 1 PCI-MSIX-0000:00:03.0 1-edge eth0-TxRx-0\n", "eth0"));
        assert_eq!(device("e1000e", 1500).must_copy(), None);
    }

    #[test]
    fn module_header_is_found() {
        assert!(has_static_header(
            "ffffffffc0649f80 t virtnet_xsk_wakeup\t[virtio_net]\nffffffffc013c690 b xsk_hdr\t[virtio_net]\n"
        ));
        assert!(!has_static_header(
            "ffffffffc0649f80 t virtnet_xsk_wakeup\t[virtio_net]\nffffffff8113c690 b xsk_hdr\n"
        ));
        assert!(has_static_header(""), "not readable");
    }
}
