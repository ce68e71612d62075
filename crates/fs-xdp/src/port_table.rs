//! The XDP program's tables of our addresses and ports: the host's addresses, our local ports and
//! the ephemeral ports.

use crate::error::XdpError;
use crate::loader::{broken, chain, take_map};
use aya::Ebpf;
use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError, PerCpuArray};
use fs_core::Protocol;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A local end in the program's map: address (IPv4 mapped into IPv6), port in network order,
/// protocol, zero.
type Key = [u8; 20];
/// One bit per port.
type PortSet = [u8; 8192];

const ACTIVE_TCP: usize = 0;
const LOCAL_TCP: usize = 1;
const LOCAL_UDP: usize = 2;
const COUNTERS: usize = 10;
/// Former addresses of the host for which the program still drops packets. The oldest are released
/// to the kernel.
const AWAY_MOST: usize = 1024;

/// The receiver of a local port's packets. The values are those of `enum share` in the program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Share {
    /// All are ours.
    #[default]
    Ours = 1,
    /// Packets of the kernel's TCP connections go to the kernel, new connections to us. A SYN with
    /// the addresses of a connection that the kernel has, such as one in TIME-WAIT, goes to the
    /// kernel.
    Former = 2,
    /// Like `Former`, but new TCP connections go to the kernel.
    Leaving = 3,
}

/// A flag next to [`Share`] in `addresses` and `local_ports`: as far as is known, the host does not
/// have the address.
const AWAY: u8 = 4;
/// A value of `local_ports`: all packets are the kernel's.
const KERNELS: u8 = 0;

/// Counts of the XDP program on its device, over all CPUs, since it was attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SteerCounters {
    /// Packets redirected to one of our sockets.
    pub redirected: u64,
    /// ICMP errors about our flows, redirected to one of our sockets.
    pub redirected_icmp: u64,
    /// TCP and UDP packets to ports that are not ours, left to the kernel.
    pub passed_port: u64,
    /// Packets that are neither TCP nor UDP, or of a VLAN, left to the kernel.
    pub passed_protocol: u64,
    /// Other fragments, and UDP packets of several datagrams, left to the kernel.
    pub passed_fragment: u64,
    /// Packets with truncated or invalid headers, left to the kernel.
    pub passed_malformed: u64,
    /// Our packets on a queue without a socket, left to the kernel.
    pub passed_no_socket: u64,
    /// TCP packets for our ports at an address that the host has lost, dropped.
    pub dropped_away: u64,
    /// First fragments of our TCP segments, dropped.
    pub dropped_fragment: u64,
    /// Our packets on a queue that will get a socket soon, dropped.
    pub dropped_no_socket: u64,
}

/// The tables of one device's program. Cheap to clone; all clones are the same table. Changes apply
/// from the next packet. For the control path: each change costs a lock and a few system calls.
#[derive(Clone)]
pub struct PortTable {
    tables: Arc<Mutex<Tables>>,
}

struct Tables {
    port_bits: Array<MapData, PortSet>,
    local_ports: BpfHashMap<MapData, Key, u8>,
    addresses: BpfHashMap<MapData, [u8; 16], u8>,
    device: Array<MapData, [u8; 12]>,
    guarded: bool,
    mac: [u8; 6],
    counters: PerCpuArray<MapData, [u64; COUNTERS]>,
    added: BTreeMap<Key, Added>,
    known_addresses: BTreeSet<[u8; 16]>,
    /// Former addresses, the most recently lost one at the end.
    away: VecDeque<[u8; 16]>,
    active: Box<PortSet>,
}

/// An entry of `local_ports`.
#[derive(Clone, Copy)]
struct Added {
    /// Number of times that it was added: several cores listen on the same port.
    times: u32,
    /// Applies while its address is not away.
    share: Share,
}

impl PortTable {
    /// Creates the tables of a device with this link address.
    pub(crate) fn new(ebpf: &mut Ebpf, mac: [u8; 6]) -> Result<Self, XdpError> {
        let broken = |error: MapError| broken(&error);
        let table = Self {
            tables: Arc::new(Mutex::new(Tables {
                port_bits: Array::try_from(take_map(ebpf, "port_bits")?).map_err(broken)?,
                local_ports: BpfHashMap::try_from(take_map(ebpf, "local_ports")?).map_err(broken)?,
                addresses: BpfHashMap::try_from(take_map(ebpf, "addresses")?).map_err(broken)?,
                device: Array::try_from(take_map(ebpf, "device")?).map_err(broken)?,
                guarded: false,
                mac,
                counters: PerCpuArray::try_from(take_map(ebpf, "counters")?).map_err(broken)?,
                added: BTreeMap::new(),
                known_addresses: BTreeSet::new(),
                away: VecDeque::new(),
                active: Box::new([0; 8192]),
            })),
        };
        table.set_mac(mac)?;
        Ok(table)
    }

    /// Redirects packets for `port` at `address` to us, while it is one of
    /// [`PortTable::set_addresses`]. `0.0.0.0` means every IPv4 address there, and `::` every IPv6
    /// address. For a listener on `::` for
    /// both families (not IPV6_V6ONLY), add both. An end may be added several times, and stays
    /// until it was removed as often.
    ///
    /// # Errors
    /// [`XdpError::Map`], and then nothing has changed.
    pub fn add_local(&self, protocol: Protocol, address: IpAddr, port: u16) -> Result<(), XdpError> {
        self.add_shared(protocol, address, port, Share::Ours)
    }

    /// Like [`PortTable::add_local`], for a port that was the kernel's until now. If it was added
    /// before, its share does not change.
    ///
    /// # Errors
    /// The errors of [`PortTable::add_local`].
    pub fn add_shared(&self, protocol: Protocol, address: IpAddr, port: u16, share: Share) -> Result<(), XdpError> {
        self.lock().add(key(protocol, address, port), share)
    }

    /// Sets the share of an end that was added. Does nothing for other ends.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    pub fn share_local(&self, protocol: Protocol, address: IpAddr, port: u16, share: Share) -> Result<(), XdpError> {
        let mut tables = self.lock();
        let key = key(protocol, address, port);
        let Some(added) = tables.added.get_mut(&key) else { return Ok(()) };
        added.share = share;
        tables.write_local(key, share).map_err(|error| failed("share a local port", &error))
    }

    /// Undoes one [`PortTable::add_local`]. Does nothing for an end that was not added.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    pub fn remove_local(&self, protocol: Protocol, address: IpAddr, port: u16) -> Result<(), XdpError> {
        self.lock().remove(key(protocol, address, port))
    }

    /// Replaces the set of ephemeral TCP ports: packets to them at one of the host's addresses are
    /// ours.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    pub fn set_ephemeral_ports(&self, ports: impl IntoIterator<Item = u16>) -> Result<(), XdpError> {
        let mut set = Box::new([0; 8192]);
        for port in ports {
            set_bit(&mut set, port);
        }
        let mut tables = self.lock();
        tables.active = set;
        let Tables { port_bits, active, .. } = &mut *tables;
        port_bits.set(ACTIVE_TCP as u32, **active, 0).map_err(|error| failed("set the ephemeral ports", &error))
    }

    /// Replaces the host's addresses: those of the device, and any others to which its packets may
    /// go. `elsewhere` are addresses of the kernel alone.
    ///
    /// A former address that is in neither is *away*: connections of ours may still use it. When
    /// the kernel gets the address again, it would reset them before this is called. So the program
    /// drops TCP packets for our ports there, unless the kernel would forward them, or they have
    /// another link address than the device's. The last 1,024 of these are remembered.
    ///
    /// # Errors
    /// [`XdpError::Map`]; addresses that went in before stay.
    pub fn set_addresses(&self, addresses: &[IpAddr], elsewhere: &[IpAddr]) -> Result<(), XdpError> {
        let mut tables = self.lock();
        let set = |of: &[IpAddr]| of.iter().map(|address| mapped(*address)).collect::<BTreeSet<_>>();
        let (wanted, elsewhere) = (set(addresses), set(elsewhere));
        for address in tables.known_addresses.clone().difference(&wanted) {
            tables.place(
                *address,
                if elsewhere.contains(address) { AddressState::Unknown } else { AddressState::Away },
            )?;
        }
        let too_many = tables.away.len().saturating_sub(AWAY_MOST);
        let away = tables.away.clone();
        for (_, address) in away.iter().enumerate().filter(|(n, away)| *n < too_many || elsewhere.contains(*away)) {
            tables.place(*address, AddressState::Unknown)?;
        }
        for address in wanted.difference(&tables.known_addresses.clone()) {
            while let Err(error) = tables.place(*address, AddressState::Here) {
                // Addresses that are away may fill the map.
                let Some(oldest) = tables.away.front().copied() else { return Err(error) };
                tables.place(oldest, AddressState::Unknown)?;
            }
        }
        Ok(())
    }

    /// Sets whether the device's queues are guarded: our packets on a queue without a socket are
    /// then dropped. Otherwise they go to the kernel, which has no socket for them and replies with
    /// RST. Use it while each queue has a socket or will get one.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    pub fn guard(&self, on: bool) -> Result<(), XdpError> {
        let mut tables = self.lock();
        tables.guarded = on;
        tables.write_device()
    }

    /// Sets the device's link address. TCP packets to an address that is away go to the kernel if
    /// they have another link address: a macvlan on the device may have the address.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    pub fn set_mac(&self, mac: [u8; 6]) -> Result<(), XdpError> {
        let mut tables = self.lock();
        tables.mac = mac;
        tables.write_device()
    }

    /// Returns the program's counters.
    ///
    /// # Errors
    /// [`XdpError::Map`].
    pub fn counters(&self) -> Result<SteerCounters, XdpError> {
        let per_cpu = self.lock().counters.get(&0, 0).map_err(|error| failed("read the counters", &error))?;
        let mut sum = [0u64; COUNTERS];
        for cpu in per_cpu.iter() {
            for (total, count) in sum.iter_mut().zip(cpu) {
                *total += count;
            }
        }
        let [
            redirected,
            redirected_icmp,
            passed_port,
            passed_protocol,
            passed_fragment,
            passed_malformed,
            passed_no_socket,
            dropped_away,
            dropped_fragment,
            dropped_no_socket,
        ] = sum;
        Ok(SteerCounters {
            redirected,
            redirected_icmp,
            passed_port,
            passed_protocol,
            passed_fragment,
            passed_malformed,
            passed_no_socket,
            dropped_away,
            dropped_fragment,
            dropped_no_socket,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    fn add(&mut self, key: Key, share: Share) -> Result<(), XdpError> {
        if let Some(added) = self.added.get_mut(&key) {
            added.times += 1;
            return Ok(());
        }
        self.write_local(key, share).map_err(|error| failed("enter a local port", &error))?;
        self.added.insert(key, Added { times: 1, share });
        // The bit is set last, so that the program never sees a bit without its entry.
        if let Err(error) = self.write_bits(key) {
            self.added.remove(&key);
            self.local_ports.remove(&key).map_err(|error| failed("remove a local port", &error))?;
            return Err(error);
        }
        Ok(())
    }

    fn remove(&mut self, key: Key) -> Result<(), XdpError> {
        match self.added.get_mut(&key) {
            None => return Ok(()),
            Some(added) if added.times > 1 => {
                added.times -= 1;
                return Ok(());
            }
            Some(_) => {}
        }
        self.added.remove(&key);
        self.write_bits(key)?;
        self.local_ports.remove(&key).map_err(|error| failed("remove a local port", &error))
    }

    /// Writes an entry of `local_ports`. Packets to an address that no device of ours has are the
    /// kernel's: its socket of the port is bound there. If the address is away, they are dropped.
    fn write_local(&mut self, key: Key, share: Share) -> Result<(), MapError> {
        let is_at = |address: &[u8; 16]| address[..] == key[..16];
        let is_wildcard =
            [mapped(Ipv4Addr::UNSPECIFIED.into()), mapped(Ipv6Addr::UNSPECIFIED.into())].iter().any(is_at);
        let receiver = if is_wildcard || self.known_addresses.iter().any(is_at) {
            share as u8
        } else if key[18] == number(Protocol::Tcp) && self.away.iter().any(is_at) {
            AWAY
        } else {
            KERNELS
        };
        self.local_ports.insert(key, receiver, 0)
    }

    /// Writes `struct device_state`.
    fn write_device(&mut self) -> Result<(), XdpError> {
        let mut state = [0; 12];
        state[..4].copy_from_slice(&u32::from(self.guarded).to_ne_bytes());
        state[4..10].copy_from_slice(&self.mac);
        self.device.set(0, state, 0).map_err(|error| failed("describe the device", &error))
    }

    /// Records where an address is, and updates the ports at it.
    fn place(&mut self, address: [u8; 16], place: AddressState) -> Result<(), XdpError> {
        let write = |tables: &mut Self| match place {
            AddressState::Here => tables.addresses.insert(address, Share::Ours as u8, 0),
            AddressState::Away => tables.addresses.insert(address, AWAY, 0),
            AddressState::Unknown => tables.addresses.remove(&address),
        };
        write(self).map_err(|error| failed("enter where an address is", &error))?;
        self.known_addresses.remove(&address);
        self.away.retain(|away| *away != address);
        match place {
            AddressState::Here => drop(self.known_addresses.insert(address)),
            AddressState::Away => self.away.push_back(address),
            AddressState::Unknown => {}
        }
        let there: Vec<(Key, Share)> =
            self.added.iter().filter(|(key, _)| key[..16] == address).map(|(key, added)| (*key, added.share)).collect();
        for (key, share) in there {
            self.write_local(key, share).map_err(|error| failed("share a local port", &error))?;
        }
        Ok(())
    }

    /// Writes the set of local ports of `like`'s protocol.
    fn write_bits(&mut self, like: Key) -> Result<(), XdpError> {
        let proto = like[18];
        let mut set: Box<PortSet> = Box::new([0; 8192]);
        for key in self.added.keys().filter(|key| key[18] == proto) {
            set_bit(&mut set, u16::from_be_bytes([key[16], key[17]]));
        }
        let index = if proto == number(Protocol::Tcp) { LOCAL_TCP } else { LOCAL_UDP };
        self.port_bits.set(index as u32, *set, 0).map_err(|error| failed("set the local ports", &error))
    }
}

/// Where an address is.
#[derive(Clone, Copy)]
enum AddressState {
    /// The host's.
    Here,
    /// It was the host's.
    Away,
    /// Unknown to us.
    Unknown,
}

fn set_bit(set: &mut PortSet, port: u16) {
    set[port as usize / 8] |= 1 << (port % 8);
}

fn failed(doing: &'static str, error: &MapError) -> XdpError {
    XdpError::Map { doing, reason: chain(error) }
}

fn number(protocol: Protocol) -> u8 {
    match protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    }
}

fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the map key of an end.
fn key(protocol: Protocol, address: IpAddr, port: u16) -> Key {
    let mut key = [0; 20];
    key[..16].copy_from_slice(&mapped(address));
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key[18] = number(protocol);
    key
}

impl std::fmt::Debug for PortTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PortTable").field("local", &self.lock().added.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_programs_layout() {
        let key = key(Protocol::Tcp, "10.1.2.3".parse().unwrap(), 0x1234);
        assert_eq!(key[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
        assert_eq!(key[16..], [0x12, 0x34, 6, 0]);
    }
}
