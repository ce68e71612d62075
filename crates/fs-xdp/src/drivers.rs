//! What drivers do not tell and would lose packets by.

use crate::config::{LINK_HEADER_MAX, XDP_PACKET_HEADROOM};
use crate::device::NetDevice;
use std::path::Path;

/// Drivers that tell their card the size of a receive buffer in units of 1 KiB, rounded down, and without copies drop what
/// does not fit one (`SRRCTL.BSIZEPKT` of Intel's 1 and 10 Gb/s cards; see the comment in ixgbe_configure_srrctl()).
const IN_KIB: &[&str] = &["igb", "igc", "ixgbe", "ixgbevf"];

impl NetDevice {
    /// Whether a chunk of this size takes every packet of the device, in every mode.
    pub fn fits_chunk(&self, chunk_size: u32) -> bool {
        let room = chunk_size - XDP_PACKET_HEADROOM;
        let room = if IN_KIB.contains(&self.driver.as_str()) { room / 1024 * 1024 } else { room };
        self.mtu + LINK_HEADER_MAX <= room
    }

    /// Whether the kernel hears requests of a checksum (TX metadata) for this device. Of the packets that it copies, those to a
    /// driver that takes socket buffers without a linear part (IFF_TX_SKB_NO_LINEAR, virtio-net alone) go another way, on
    /// which Linux 6.12 looks at no metadata: they leave with a checksum that is not finished. No kernel tells whether it does.
    pub(crate) fn hears_metadata(&self) -> bool {
        self.driver != "virtio_net"
    }

    /// Why the device's own XDP must not be used though its driver offers it.
    pub(crate) fn native_is_deaf(&self) -> Option<&'static str> {
        // The program then runs on the bond's cards, and a packet of theirs is for no socket of the bond's (xsk_rcv_check()). The generic
        // mode sees it once it is the bond's.
        (self.driver == "bonding").then_some("in native mode a bond's packets reach no AF_XDP socket of the bond")
    }

    /// Why packets of this device have to be copied even where its driver offers to go without.
    pub fn must_copy(&self) -> Option<&'static str> {
        match self.driver.as_str() {
            // igb_xsk_wakeup() raises the interrupt of the queue's sending half. Where the receiving half has another one, a queue
            // that has run out of chunks is never looked at again, and the kernel's own packets on it are lost too.
            "igb" => has_halves(&read("/proc/interrupts"), &self.name).then_some(
                "igb has separate interrupts for receive and transmit here, and its zero copy wakes the wrong one \
                 (with more than half of the card's queues they share one: ethtool -L)",
            ),
            // virtnet_xsk_pool_enable() has the card read the header of every frame that is sent, all zeros, from the driver's static
            // variable xsk_hdr. The memory of a module has no linear mapping, so the address that the card is given is that of something
            // else, which differs from boot to boot. A header that is not all zeros can ask for anything: frames were dropped, and a
            // checksum could be written into them.
            "virtio_net" => (Path::new(VIRTIO_IS_MODULE).exists() && has_static_header(&read("/proc/kallsyms")))
                .then_some(
                    "this kernel's virtio_net is a module, and its zero copy makes the card read each frame's header \
                 from a wrong address (a driver built into the kernel does not)",
                ),
            _ => None,
        }
    }
}

/// Of a driver that is no module it is not there.
const VIRTIO_IS_MODULE: &str = "/sys/module/virtio_net/initstate";

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Whether queues of `device` have an interrupt for receiving alone, as igb names them: `eth0-rx-0`, not `eth0-TxRx-0`.
fn has_halves(interrupts: &str, device: &str) -> bool {
    let names = interrupts.lines().filter_map(|line| line.split_whitespace().next_back());
    names.filter_map(|name| name.strip_prefix(device)).any(|queue| queue.starts_with("-rx-"))
}

/// Whether the kernel's symbols name the module's header; so it is taken to be where they cannot be read.
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
    fn a_chunk_is_rounded_as_the_driver_does() {
        assert!(device("virtio_net", 1500).fits_chunk(2048) && !device("virtio_net", 1775).fits_chunk(2048));
        assert!(!device("igb", 1500).fits_chunk(2048) && device("igb", 1500).fits_chunk(4096));
        assert!(device("igc", 1006).fits_chunk(2048));
    }

    #[test]
    fn only_a_bond_is_deaf_in_native_mode() {
        assert!(device("bonding", 1500).native_is_deaf().is_some() && device("veth", 1500).native_is_deaf().is_none());
    }

    #[test]
    fn an_interrupt_for_each_direction_is_found() {
        let halves = " 28: 0 0 PCI-MSIX-0000:00:03.0 0-edge eth0\n 29: 0 1 PCI-MSIX-0000:00:03.0 1-edge eth0-rx-0\n";
        assert!(has_halves(halves, "eth0") && !has_halves(halves, "eth1"));
        assert!(!has_halves(" 29: 0 1 PCI-MSIX-0000:00:03.0 1-edge eth0-TxRx-0\n", "eth0"));
        assert_eq!(device("e1000e", 1500).must_copy(), None);
    }

    #[test]
    fn a_modules_header_is_found() {
        assert!(has_static_header(
            "ffffffffc0649f80 t virtnet_xsk_wakeup\t[virtio_net]\nffffffffc013c690 b xsk_hdr\t[virtio_net]\n"
        ));
        assert!(!has_static_header(
            "ffffffffc0649f80 t virtnet_xsk_wakeup\t[virtio_net]\nffffffff8113c690 b xsk_hdr\n"
        ));
        assert!(has_static_header(""), "not readable");
    }
}
