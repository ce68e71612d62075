//! One shared device.

use crate::error::Error;
use crate::leases::Refused;
use crate::pair::{self, Sockets, Wanted};
use crate::programs::{Counters, Programs, SLOTS, Slot, unpin};
use crate::proof::Proof;
use aya::util::KernelVersion;
use fs_core::Protocol;
use fs_rt::broker::message::{Device, MAX_QUEUES};
use fs_rt::netlink::{Connection, Netlink};
use fs_xdp::NetDevice;
use netlink_packet_route::RouteNetlinkMessage as Message;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::LinkMessage;
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Path at which maps and links are pinned by default: a folder for each shared device of each
/// network namespace.
pub const PINS: &str = "/sys/fs/bpf/fastsock";

/// Device and inode of the calling thread's network namespace.
pub(crate) fn namespace() -> Result<(u64, u64), Error> {
    let own = std::fs::metadata("/proc/thread-self/ns/net");
    own.map(|own| (own.dev(), own.ino())).map_err(|error| Error::system("find the network namespace", error))
}

/// A BPF file system takes no dots in names, and a device's name has no colons.
fn folder(pins: &Path, name: &str) -> Result<PathBuf, Error> {
    Ok(pins.join(format!("{}-{}", namespace()?.1, name.replace('.', ":"))))
}

/// Returns an error unless the calling thread's namespace has a device of this name that can be shared.
///
/// # Errors
/// There is no such device, or it is no Ethernet device.
pub fn check(name: &str) -> Result<(), Error> {
    find(name).map(drop)
}

fn find(name: &str) -> Result<NetDevice, Error> {
    let device = NetDevice::find(name)?;
    if !device.is_ethernet() || device.is_loopback() {
        let why = std::io::Error::from(std::io::ErrorKind::Unsupported);
        return Err(Error::system(format!("share {name}, which is no Ethernet device"), why));
    }
    Ok(device)
}

pub(crate) struct SharedDevice {
    pub(crate) name: String,
    device: NetDevice,
    /// True while the device does not exist.
    gone: bool,
    pub(crate) programs: Programs,
}

impl SharedDevice {
    /// Loads and attaches the BPF programs. Pairs of an earlier daemon go on.
    pub(crate) fn open(pins: &Path, name: &str) -> Result<Self, Error> {
        let device = find(name)?;
        if KernelVersion::current().is_ok_and(|version| version < KernelVersion::new(6, 6, 0)) {
            // Before anything is made and pinned.
            let why = std::io::Error::from(std::io::ErrorKind::Unsupported);
            let doing = format!("share {name} (needs Linux 6.6 or later: here one program at a time has a device)");
            return Err(Error::system(doing, why));
        }
        let mut programs = Programs::load(&folder(pins, name)?)?;
        programs.attach(device.index)?;
        Ok(Self { name: name.to_owned(), device, gone: false, programs })
    }

    pub(crate) fn describe(&self, namespace: (u64, u64)) -> Option<Device> {
        // The link address and the MTU may have changed.
        let NetDevice { index, mtu, mac, .. } = NetDevice::find(&self.name).ok().filter(|_| !self.gone)?;
        Some(Device { namespace, index, mtu, mac, queues: self.queues() })
    }

    fn queues(&self) -> u32 {
        self.device.queue_counts().rx.clamp(1, MAX_QUEUES)
    }

    /// Applies changes of the kernel: a new device with this name, addresses, and programs that
    /// have ended.
    pub(crate) fn follow(&mut self, netlink: &Netlink) -> Result<(), Error> {
        let failed = |error| Error::system("read devices and addresses", error);
        match NetDevice::find(&self.name) {
            Ok(now) if now.index != self.device.index || self.gone => {
                self.programs.attach(now.index)?;
                tracing::info!(device = self.name, "the device is back");
                (self.device, self.gone) = (now, false);
            }
            Ok(_) => {}
            Err(_) => self.gone = true,
        }
        let addresses = netlink.dump(Message::GetAddress(AddressMessage::default())).map_err(failed)?;
        let of_device = addresses.iter().filter_map(|message| address(message, self.device.index));
        self.programs.set_addresses(&of_device.collect::<Vec<_>>())?;
        let links = netlink.dump(Message::GetLink(LinkMessage::default())).map_err(failed)?;
        let alive: BTreeSet<u32> = links
            .iter()
            .filter_map(|message| if let Message::NewLink(link) = message { Some(link.header.index) } else { None })
            .collect();
        for slot in self.programs.used() {
            if !alive.contains(&self.programs.slot(slot).index) {
                tracing::debug!(device = self.name, slot, "the program has ended");
                self.programs.free_slot(slot)?;
            }
        }
        Ok(())
    }

    /// Makes a pair in a free slot. A user may have `most` slots.
    pub(crate) fn attach(
        &mut self,
        uid: u32,
        most: usize,
        mut wanted: Wanted,
    ) -> Result<(u16, [u64; 2], Sockets), Error> {
        let full =
            || Error::system("have more programs on the device", std::io::Error::from_raw_os_error(libc::EUSERS));
        let used = self.programs.used();
        if used.iter().filter(|slot| self.programs.slot(**slot).uid == uid).count() >= most {
            return Err(full());
        }
        let number = (1..SLOTS).find(|slot| !used.contains(slot)).ok_or_else(full)?;
        let mut token = [0; 16];
        rustix::rand::getrandom(&mut token, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| Error::system("get random bytes", error.into()))?;
        let token = u128::from_ne_bytes(token);
        let token = [(token >> 64) as u64, token as u64];
        self.programs.clear_counters(number);
        let name = pair::name(self.device.index, number);
        wanted.queues = wanted.queues.clamp(1, self.queues());
        wanted.segments &= self.programs.checks_segments;
        let (index, sockets) = pair::make(&name, &wanted)?;
        if let Err(error) = self.programs.set_slot(number, Slot { index, uid, token }) {
            self.free(number);
            return Err(error);
        }
        Ok((number, token, sockets))
    }

    /// Frees a slot with its leases and its pair.
    pub(crate) fn free(&mut self, slot: u16) {
        let index = self.programs.slot(slot).index;
        if let Err(error) = self.programs.free_slot(slot) {
            tracing::error!(device = self.name, slot, %error, "a program's leases stay");
        }
        let name = NetDevice::find(&pair::name(self.device.index, slot)).ok().filter(|pair| pair.index == index);
        if let Some(pair) = name
            && let Err(error) = pair::remove(|name| name == pair.name)
        {
            tracing::warn!(device = self.name, slot, %error, "a program's pair stays until its sockets are closed");
        }
    }

    /// Returns true if a connection of the kernel by the device would lose its packets to a new lease. A
    /// server that has closed its listener leaves the port to others, and may go on with its
    /// connections. A program that has the listener itself may have what waits in its queue.
    pub(crate) fn would_break(&self, connection: &Connection, proof: Proof) -> bool {
        let Connection { local, peer, is_held, is_over } = *connection;
        let is_covered = |end: SocketAddr| {
            end.port() == local.port()
                && end.is_ipv4() == local.is_ipv4()
                && (end.ip().is_unspecified() || end.ip() == local.ip())
        };
        !is_over
            && (is_held || !proof.listens)
            && self.programs.has_address(local.ip())
            && !self.programs.has_address(peer)
            && proof.protocol == Protocol::Tcp
            && proof.ends().any(is_covered)
    }

    /// Leases to a slot the ends that a socket proves. Returns the errno if that fails.
    pub(crate) fn lease(&mut self, slot: u16, proof: Proof) -> Result<(), i32> {
        let ends: Vec<SocketAddr> = proof.ends().collect();
        for (done, end) in ends.iter().enumerate() {
            let refused = match self.programs.leases.add(proof.protocol, *end, slot) {
                Ok(()) => continue,
                Err(Refused::Taken) => libc::EADDRINUSE,
                Err(Refused::Map(error)) => {
                    tracing::error!(%error, "cannot write a lease");
                    libc::ENOBUFS
                }
            };
            ends[..done].iter().for_each(|end| self.release(slot, proof.protocol, *end));
            return Err(refused);
        }
        Ok(())
    }

    /// Ends all leases of a slot except those for which `keeps` returns true.
    pub(crate) fn keep(&mut self, slot: u16, keeps: impl Fn((Protocol, SocketAddr)) -> bool) {
        if let Err(error) = self.programs.leases.clear(slot, |protocol, at| keeps((protocol, at))) {
            tracing::error!(device = self.name, slot, %error, "leases without a proof stay");
        }
    }

    pub(crate) fn release(&mut self, slot: u16, protocol: Protocol, at: SocketAddr) {
        if let Err(error) = self.programs.leases.remove(protocol, at, slot) {
            tracing::error!(%at, %error, "a lease stays until its program ends");
        }
    }
}

/// Returns the address of a message about device `index`, if it may be used (RFC 4862: not while
/// tentative).
fn address(message: &Message, index: u32) -> Option<IpAddr> {
    let Message::NewAddress(AddressMessage { header, attributes, .. }) = message else { return None };
    let unusable = AddressHeaderFlags::Tentative | AddressHeaderFlags::Dadfailed;
    if header.index != index || header.flags.intersects(unusable) {
        return None;
    }
    let local = attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(local) => Some(*local),
        _ => None,
    });
    local.or_else(|| {
        attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

/// A program on a shared device.
#[derive(Clone, Debug)]
pub struct Row {
    /// The shared device.
    pub device: String,
    /// The program's number.
    pub slot: u16,
    /// The host's end of its pair.
    pub pair: String,
    /// Its user.
    pub uid: u32,
    /// Number of leased ends.
    pub leases: usize,
    /// Counters of the kernel.
    pub counters: Counters,
}

/// Returns the folders of the calling thread's namespace in `pins`, each with its device's name.
fn folders(pins: &Path) -> Result<Vec<(String, PathBuf)>, Error> {
    let own = format!("{}-", namespace()?.1);
    let entries = match std::fs::read_dir(pins) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| Error::system(format!("read {}", pins.display()), error))?,
    };
    let of = |entry: std::fs::DirEntry| {
        let device = entry.file_name().to_str()?.strip_prefix(&own)?.replace(':', ".");
        Some((device, entry.path()))
    };
    Ok(entries.flatten().filter_map(of).collect())
}

/// Returns the programs on shared devices of the calling thread's namespace. Needs CAP_BPF.
///
/// # Errors
/// Those of the system and of the BPF loader.
pub fn list(pins: &Path) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (device, folder) in folders(pins)? {
        let programs = Programs::load(&folder)?;
        let index = NetDevice::find(&device).map_or(0, |device| device.index);
        rows.extend(programs.used().into_iter().map(|slot| Row {
            device: device.clone(),
            slot,
            pair: pair::name(index, slot),
            uid: programs.slot(slot).uid,
            leases: programs.leases.count(slot),
            counters: programs.counters(slot),
        }));
    }
    Ok(rows)
}

/// Stops sharing the devices of the calling thread's namespace: removes attachments, maps and pairs.
/// Connections of programs on them end. Returns how many pairs there were.
///
/// # Errors
/// Those of the system.
pub fn purge(pins: &Path) -> Result<usize, Error> {
    for (_, folder) in folders(pins)? {
        unpin(&folder).map_err(|error| Error::system(format!("remove {}", folder.display()), error))?;
    }
    // Other namespaces may have some.
    let _not_empty = std::fs::remove_dir(pins);
    pair::remove(|_| true)
}
