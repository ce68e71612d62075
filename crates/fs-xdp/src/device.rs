//! The kernel's information about a network device.

use crate::config::XdpMode;
use crate::error::XdpError;
use crate::netlink::{attached_mode, device_below, queueing_discipline};
use crate::sys::ioctl::{Control, EthtoolBuffer, index_of};
use libc::{ARPHRD_ETHER, ARPHRD_LOOPBACK};
use std::io;

/// `ETHTOOL_GDRVINFO` and `ETHTOOL_GCHANNELS` of `linux/ethtool.h`.
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCHANNELS: u32 = 0x3c;
/// `ETHTOOL_GGRO`, and `ETHTOOL_GFLAGS` with `ETH_FLAG_LRO`.
const ETHTOOL_GGRO: u32 = 0x2b;
const ETHTOOL_GFLAGS: u32 = 0x25;
const LRO: u32 = 1 << 15;
/// `ETHTOOL_GTSO`: any of the features that let a device cut TCP segments out of a larger packet.
const ETHTOOL_GTSO: u32 = 0x1e;
/// `ETHTOOL_STXCSUM`.
const ETHTOOL_STXCSUM: u32 = 0x17;
/// Drivers whose other end is software that may leave checksums to us. A packet from such a device
/// was never on a wire, or the host that received it has checked it. Devices of one macvlan or ipvlan
/// exchange packets in the host.
const VIRTUAL_DRIVERS: &[&str] =
    &["veth", "tun", "netkit", "bridge", "macvlan", "ipvlan", "virtio_net", "xen_netfront"];

/// A network device at the time of its look-up.
#[derive(Clone, Debug)]
pub struct NetDevice {
    /// Its name.
    pub name: String,
    /// Its index in the network namespace.
    pub index: u32,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Its MAC address (zero if it has none).
    pub mac: [u8; 6],
    /// `ARPHRD_*` of `linux/if_arp.h`.
    pub hardware_type: u16,
    /// `IFF_*` flags.
    pub flags: u16,
    /// The driver's name, or empty if it is unknown.
    pub driver: String,
}

/// The number of a device's queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueCounts {
    /// To receive.
    pub rx: u32,
    /// To send.
    pub tx: u32,
}

impl NetDevice {
    /// Looks the device up in the calling thread's network namespace.
    ///
    /// # Errors
    /// [`XdpError::NoSuchDevice`], or another error of the kernel.
    pub fn find(name: &str) -> Result<NetDevice, XdpError> {
        let gone = |error| cannot_ask(name, error);
        let index = index_of(name).map_err(gone)?;
        let control = Control::open().map_err(gone)?;
        let (hardware_type, mac) = control.hardware(name).map_err(gone)?;
        Ok(NetDevice {
            name: name.to_owned(),
            index,
            mtu: control.mtu(name).map_err(gone)?,
            mac,
            hardware_type,
            flags: control.flags(name).map_err(gone)?,
            driver: driver(&control, name),
        })
    }

    /// Returns true if frames have an Ethernet header (loopback's do too).
    pub fn is_ethernet(&self) -> bool {
        matches!(self.hardware_type, ARPHRD_ETHER | ARPHRD_LOOPBACK)
    }

    /// Returns true if the other end is software that may send packets with unfinished checksums.
    pub(crate) fn is_virtual(&self) -> bool {
        self.is_loopback()
            || VIRTUAL_DRIVERS.contains(&self.driver.as_str())
            || self.below().iter().any(Self::is_virtual)
    }

    /// Returns the slaves of a bond, or the device by which another one sends (the parent of a VLAN).
    fn below(&self) -> Vec<NetDevice> {
        if self.driver != "bonding" {
            let name =
                device_below(self.index).ok().flatten().and_then(|index| Control::open().ok()?.name_of(index).ok());
            return name.and_then(|name| NetDevice::find(&name).ok()).into_iter().collect();
        }
        let told = std::fs::read_to_string(format!("/proc/thread-self/net/bonding/{}", self.name)).unwrap_or_default();
        cards_of_bond(&told).filter_map(|name| NetDevice::find(name).ok()).collect()
    }

    /// Returns whether a device below this one (a bond's slaves, the parent of a VLAN) merges
    /// received packets beyond the MTU. The kernel does not merge on a device with an XDP program,
    /// but it does on these.
    pub(crate) fn is_merged_below(&self) -> bool {
        let entries = std::fs::read_dir(format!("/sys/class/net/{}", self.name)).into_iter().flatten().flatten();
        let lower = entries.filter_map(|entry| Some(entry.file_name().to_str()?.strip_prefix("lower_")?.to_owned()));
        let Ok(control) = Control::open() else { return false };
        let says = |name: &str, command: u32, bits: u32| {
            let mut data = EthtoolBuffer::new(command, 8);
            control.ethtool(name, &mut data).is_ok() && data.get(4) & bits != 0
        };
        lower.into_iter().any(|name| says(&name, ETHTOOL_GGRO, u32::MAX) || says(&name, ETHTOOL_GFLAGS, LRO))
    }

    /// Returns true if the device now segments TCP packets of up to 64 KiB (TSO).
    pub fn has_tso(&self) -> bool {
        self.tso().unwrap_or(false)
    }

    /// Like [`NetDevice::has_tso`]. An error if the device cannot be asked.
    pub(crate) fn tso(&self) -> io::Result<bool> {
        let (control, name) = self.control()?;
        let mut data = EthtoolBuffer::new(ETHTOOL_GTSO, 8);
        Ok(control.ethtool(&name, &mut data).is_ok() && data.get(4) != 0)
    }

    /// Returns a socket for requests, and the device's present name: it may have another one than at the
    /// look-up.
    fn control(&self) -> io::Result<(Control, String)> {
        let control = Control::open()?;
        let name = control.name_of(self.index)?;
        Ok((control, name))
    }

    /// Returns where the device runs its XDP program now, `Native` or `Generic`; `None` if it has none.
    pub fn xdp_mode(&self) -> Option<XdpMode> {
        attached_mode(self.index).ok().flatten()
    }

    /// Turns checksums of sent packets off (`ethtool -K DEVICE tx off`): the kernel writes them before
    /// the device gets a packet. Needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The errors of `ioctl(2)`.
    pub fn turn_tx_checksum_off(&self) -> io::Result<()> {
        Control::open()?.ethtool(&self.name, &mut EthtoolBuffer::new(ETHTOOL_STXCSUM, 8))
    }

    /// Returns true if packets stay in order, regardless of the socket that sends them: the device has
    /// one send queue and no queueing discipline, and its packets enter no queue below it. A bridge, a
    /// VLAN or a macvlan sends by another device, whose queues take the two sockets' packets apart.
    pub(crate) fn keeps_order(&self) -> io::Result<bool> {
        Ok(self.driver == "veth" && self.ask_queues()?.tx == 1 && queueing_discipline(self.index)? == "noqueue")
    }

    /// Returns true for the loopback device.
    pub fn is_loopback(&self) -> bool {
        self.hardware_type == ARPHRD_LOOPBACK
    }

    /// Returns true if the device is up.
    pub fn is_up(&self) -> bool {
        self.flags & libc::IFF_UP as u16 != 0
    }

    /// Returns the largest IP packet in the type that links report.
    pub(crate) fn mtu_u16(&self) -> u16 {
        u16::try_from(self.mtu).unwrap_or(u16::MAX)
    }

    /// Returns the current number of queues. Attaching an XDP program can change it.
    pub fn queue_counts(&self) -> QueueCounts {
        self.ask_queues().unwrap_or(QueueCounts { rx: 1, tx: 1 })
    }

    /// Like [`NetDevice::queue_counts`]. An error if the device cannot be asked.
    pub(crate) fn ask_queues(&self) -> io::Result<QueueCounts> {
        let (control, name) = self.control()?;
        let counts = Self::channels(&control, &name).or_else(|_| self.sysfs_queues(&name));
        Ok(counts.unwrap_or(QueueCounts { rx: 1, tx: 1 }))
    }

    fn channels(control: &Control, name: &str) -> io::Result<QueueCounts> {
        // struct ethtool_channels: cmd, max_{rx,tx,other,combined}, {rx,tx,other,combined}_count.
        let mut data = EthtoolBuffer::new(ETHTOOL_GCHANNELS, 36);
        control.ethtool(name, &mut data)?;
        let (rx, tx, combined) = (data.get(20), data.get(24), data.get(32));
        if rx + combined == 0 || tx + combined == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(QueueCounts { rx: rx + combined, tx: tx + combined })
    }

    fn sysfs_queues(&self, name: &str) -> io::Result<QueueCounts> {
        let base = format!("/sys/class/net/{name}");
        // The file system may show another network namespace.
        let index = std::fs::read_to_string(format!("{base}/ifindex"))?;
        if index.trim() != self.index.to_string() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut counts = QueueCounts { rx: 0, tx: 0 };
        for entry in std::fs::read_dir(format!("{base}/queues"))? {
            match entry?.file_name().to_string_lossy().split_once('-') {
                Some(("rx", _)) => counts.rx += 1,
                Some(("tx", _)) => counts.tx += 1,
                _ => {}
            }
        }
        if counts.rx == 0 || counts.tx == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(counts)
    }
}

/// Returns the error of a question about a device.
pub(crate) fn cannot_ask(name: &str, error: io::Error) -> XdpError {
    match error.raw_os_error() {
        Some(libc::ENODEV | libc::ENXIO) => XdpError::NoSuchDevice { device: name.to_owned() },
        _ => XdpError::system(format!("ask about {name}"), error),
    }
}

/// Returns the driver's name, or empty if the device has none (loopback).
fn driver(control: &Control, name: &str) -> String {
    // struct ethtool_drvinfo: cmd, driver[32], version[32], fw_version[32], bus_info[32], …, 196
    // bytes.
    let mut data = EthtoolBuffer::new(ETHTOOL_GDRVINFO, 196);
    if control.ethtool(name, &mut data).is_err() {
        return String::new();
    }
    (4..36).map(|at| data.byte(at)).take_while(|&byte| byte != 0).map(char::from).collect()
}

/// Parses the slaves' names of `/proc/net/bonding`.
fn cards_of_bond(told: &str) -> impl Iterator<Item = &str> {
    told.lines().filter_map(|line| line.strip_prefix("Slave Interface: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bond_has_the_slaves_that_the_kernel_lists() {
        let told = "Bonding Mode: fault-tolerance (active-backup)\nMII Status: up\n\nSlave Interface: eth0\nMII Status: up\n\n\
                    Slave Interface: eth1\nSpeed: Unknown\n";
        assert_eq!(cards_of_bond(told).collect::<Vec<_>>(), ["eth0", "eth1"]);
    }
}
