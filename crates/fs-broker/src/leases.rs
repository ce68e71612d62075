//! Leases: the program that has each (protocol, address, port) of the host. The BPF programs read this table.
//!
//! An IPv4 address is held as the IPv6 address that maps it. "Any" is the zero address of its family:
//! such a lease holds at each of the host's addresses at which no other program has the port.

use aya::maps::{Array, HashMap as BpfHashMap, MapData, MapError};
use fs_core::Protocol;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// The value of `ports` that makes the programs look into `leases`.
const BY_ADDRESS: u16 = 0xffff;

/// Address, port in network order, protocol, zero: `struct lease_key`.
type Key = [u8; 20];
type Address = [u8; 16];

/// A port of a protocol over one family; the second is its place in `struct port`.
type Port = (u16, usize);

/// The BPF maps, and a copy of their contents.
pub(crate) struct Leases<M = Maps> {
    maps: M,
    table: BTreeMap<Port, Vec<(Address, u16)>>,
}

/// The maps that hold the leases for the BPF programs.
pub(crate) trait Write {
    fn port(&mut self, port: u16, slots: [u16; 4]) -> Result<(), MapError>;
    /// Slot 0 removes it.
    fn exact(&mut self, key: Key, slot: u16) -> Result<(), MapError>;
}

pub(crate) struct Maps {
    pub(crate) ports: Array<MapData, [u16; 4]>,
    pub(crate) leases: BpfHashMap<MapData, Key, u16>,
}

impl Write for Maps {
    fn port(&mut self, port: u16, slots: [u16; 4]) -> Result<(), MapError> {
        self.ports.set(port.into(), slots, 0)
    }

    fn exact(&mut self, key: Key, slot: u16) -> Result<(), MapError> {
        match slot {
            0 => match self.leases.remove(&key) {
                Err(MapError::SyscallError(call)) if call.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
                removed => removed,
            },
            slot => self.leases.insert(key, slot, 0),
        }
    }
}

/// The reason why a lease is refused.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Another program has it.
    Taken,
    Map(MapError),
}

impl From<MapError> for Refused {
    fn from(error: MapError) -> Self {
        Refused::Map(error)
    }
}

pub(crate) fn mapped(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn place(protocol: Protocol, at: SocketAddr) -> (Port, Address) {
    let udp = usize::from(protocol == Protocol::Udp);
    let v6 = if at.is_ipv6() { 2 } else { 0 };
    ((at.port(), udp + v6), mapped(at.ip()))
}

fn is_any(address: &Address) -> bool {
    address[..10].iter().all(|byte| *byte == 0)
        && address[12..].iter().all(|byte| *byte == 0)
        && matches!(address[10..12], [0, 0] | [0xff, 0xff])
}

fn key((port, which): Port, address: &Address) -> Key {
    let mut key = [0; 20];
    key[..16].copy_from_slice(address);
    key[16..18].copy_from_slice(&port.to_be_bytes());
    key[18] = if which % 2 == 1 { 17 } else { 6 };
    key
}

impl Leases<Maps> {
    /// Reads the leases of an earlier daemon.
    pub(crate) fn read(maps: Maps) -> Result<Self, MapError> {
        let mut table: BTreeMap<Port, Vec<(Address, u16)>> = BTreeMap::new();
        for number in 0..=u16::MAX {
            let slots = maps.ports.get(&number.into(), 0)?;
            for (which, slot) in slots.into_iter().enumerate().filter(|(_, slot)| ![0, BY_ADDRESS].contains(slot)) {
                let any = if which < 2 { IpAddr::V4([0; 4].into()) } else { IpAddr::V6([0; 16].into()) };
                table.insert((number, which), vec![(mapped(any), slot)]);
            }
        }
        for entry in maps.leases.iter() {
            let (key, slot) = entry?;
            let mut address = [0; 16];
            address.copy_from_slice(&key[..16]);
            let v6 = if key[..12] == mapped(IpAddr::V4([0; 4].into()))[..12] { 0 } else { 2 };
            let port = (u16::from_be_bytes([key[16], key[17]]), usize::from(key[18] == 17) + v6);
            let entries = table.entry(port).or_default();
            if !entries.iter().any(|(known, _)| *known == address) {
                entries.push((address, slot));
            }
        }
        Ok(Self { maps, table })
    }
}

impl<M: Write> Leases<M> {
    /// Leases an end to a slot. Does nothing if the slot has it already.
    pub(crate) fn add(&mut self, protocol: Protocol, at: SocketAddr, slot: u16) -> Result<(), Refused> {
        let (port, address) = place(protocol, at);
        let entries = self.table.entry(port).or_default();
        match entries.iter().find(|(known, _)| *known == address) {
            Some((_, holder)) if *holder == slot => return Ok(()),
            Some(_) => return Err(Refused::Taken),
            None => entries.push((address, slot)),
        }
        if let Err(error) = self.write(port, &[]) {
            // Kept, it would be refused to others, and be no lease to its program. The maps are as
            // before, or have no room for that.
            let _undone = self.retain(port, |entry| *entry != (address, slot));
            return Err(error.into());
        }
        Ok(())
    }

    /// Returns true if a slot has this lease.
    pub(crate) fn has(&self, protocol: Protocol, at: SocketAddr, slot: u16) -> bool {
        let (port, address) = place(protocol, at);
        self.table.get(&port).is_some_and(|entries| entries.contains(&(address, slot)))
    }

    /// Ends a slot's lease of an end.
    pub(crate) fn remove(&mut self, protocol: Protocol, at: SocketAddr, slot: u16) -> Result<(), MapError> {
        let (port, address) = place(protocol, at);
        self.retain(port, |entry| *entry != (address, slot))
    }

    /// Ends all leases of a slot except those for which `keeps` returns true.
    pub(crate) fn clear(&mut self, slot: u16, keeps: impl Fn(Protocol, SocketAddr) -> bool) -> Result<(), MapError> {
        let of_slot = |entries: &Vec<(Address, u16)>| entries.iter().any(|(_, holder)| *holder == slot);
        let ports: Vec<Port> =
            self.table.iter().filter(|(_, entries)| of_slot(entries)).map(|(port, _)| *port).collect();
        for port in ports {
            let end = |address: &Address| {
                let v6 = std::net::Ipv6Addr::from(*address);
                let ip = v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4);
                let protocol = if port.1 % 2 == 1 { Protocol::Udp } else { Protocol::Tcp };
                (protocol, SocketAddr::new(ip, port.0))
            };
            self.retain(port, |(address, holder)| {
                let (protocol, at) = end(address);
                *holder != slot || keeps(protocol, at)
            })?;
        }
        Ok(())
    }

    /// Returns the number of a slot's leases.
    pub(crate) fn count(&self, slot: u16) -> usize {
        self.table.values().flatten().filter(|(_, holder)| *holder == slot).count()
    }

    fn retain(&mut self, port: Port, mut keeps: impl FnMut(&(Address, u16)) -> bool) -> Result<(), MapError> {
        let Some(entries) = self.table.get_mut(&port) else { return Ok(()) };
        let gone: Vec<Address> = entries.extract_if(.., |entry| !keeps(entry)).map(|(address, _)| address).collect();
        if entries.is_empty() {
            self.table.remove(&port);
        }
        if gone.is_empty() { Ok(()) } else { self.write(port, &gone) }
    }

    /// Writes a port. The programs never see a BY_ADDRESS without its entries.
    fn write(&mut self, port: Port, gone: &[Address]) -> Result<(), MapError> {
        let entries = |which| self.table.get(&(port.0, which)).map_or(&[][..], Vec::as_slice);
        let value = |entries: &[(Address, u16)]| match entries {
            [] => 0,
            [(address, slot)] if is_any(address) => *slot,
            _ => BY_ADDRESS,
        };
        let values = [0, 1, 2, 3].map(|which| value(entries(which)));
        let exact = entries(port.1).to_vec();
        if values[port.1] == BY_ADDRESS {
            for (address, slot) in &exact {
                self.maps.exact(key(port, address), *slot)?;
            }
        }
        self.maps.port(port.0, values)?;
        for address in gone {
            self.maps.exact(key(port, address), 0)?;
        }
        if values[port.1] != BY_ADDRESS {
            for (address, _) in &exact {
                self.maps.exact(key(port, address), 0)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[derive(Default)]
    struct Fake {
        ports: BTreeMap<u16, [u16; 4]>,
        exact: BTreeMap<Key, u16>,
        is_full: bool,
    }

    impl Write for Fake {
        fn port(&mut self, port: u16, slots: [u16; 4]) -> Result<(), MapError> {
            self.ports.insert(port, slots);
            Ok(())
        }

        fn exact(&mut self, key: Key, slot: u16) -> Result<(), MapError> {
            match slot {
                0 => self.exact.remove(&key),
                _ if self.is_full => return Err(MapError::OutOfBounds { index: 0, max_entries: 0 }),
                slot => self.exact.insert(key, slot),
            };
            Ok(())
        }
    }

    impl Leases<Fake> {
        /// Returns the owner of an end at an address of the host, as `owner` of share.bpf.c does.
        fn owner(&self, protocol: Protocol, at: &str) -> u16 {
            let (port, address) = place(protocol, at.parse().unwrap());
            match self.maps.ports.get(&port.0).map_or(0, |slots| slots[port.1]) {
                BY_ADDRESS => {
                    let any = if port.1 < 2 { mapped(IpAddr::V4([0; 4].into())) } else { [0; 16] };
                    let found = |address| self.maps.exact.get(&key(port, address)).copied();
                    found(&address).or_else(|| found(&any)).unwrap_or(0)
                }
                slot => slot,
            }
        }
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn lease_that_cannot_be_written_is_nobodys() {
        let mut leases = Leases { maps: Fake { is_full: true, ..Fake::default() }, table: BTreeMap::new() };
        for _ in 0..2 {
            assert!(matches!(leases.add(Protocol::Tcp, at("10.0.0.2:80"), 2), Err(Refused::Map(_))));
        }
        assert_eq!((leases.count(2), leases.owner(Protocol::Tcp, "10.0.0.2:80")), (0, 0));
        leases.maps.is_full = false;
        leases.add(Protocol::Tcp, at("10.0.0.2:80"), 3).unwrap();
        assert_eq!(leases.owner(Protocol::Tcp, "10.0.0.2:80"), 3);
    }

    #[test]
    fn exact_lease_comes_before_that_of_any_address() {
        let mut leases = Leases { maps: Fake::default(), table: BTreeMap::new() };
        leases.add(Protocol::Tcp, at("0.0.0.0:80"), 1).unwrap();
        assert!(leases.maps.exact.is_empty(), "one load finds it");
        leases.add(Protocol::Tcp, at("10.0.0.2:80"), 2).unwrap();
        leases.add(Protocol::Tcp, at("[::]:80"), 3).unwrap();
        leases.add(Protocol::Udp, at("0.0.0.0:80"), 4).unwrap();
        let owners = |leases: &Leases<Fake>| {
            [
                (Protocol::Tcp, "10.0.0.1:80"),
                (Protocol::Tcp, "10.0.0.2:80"),
                (Protocol::Tcp, "[fd00::1]:80"),
                (Protocol::Udp, "10.0.0.2:80"),
            ]
            .map(|(protocol, at)| leases.owner(protocol, at))
        };
        assert_eq!(owners(&leases), [1, 2, 3, 4]);
        assert!(matches!(leases.add(Protocol::Tcp, at("10.0.0.2:80"), 5), Err(Refused::Taken)));
        leases.add(Protocol::Tcp, at("10.0.0.2:80"), 2).unwrap();
        // Another slot's lease stays.
        leases.remove(Protocol::Tcp, at("0.0.0.0:80"), 2).unwrap();
        assert_eq!(owners(&leases), [1, 2, 3, 4]);
        leases.remove(Protocol::Tcp, at("10.0.0.2:80"), 2).unwrap();
        assert_eq!(owners(&leases), [1, 1, 3, 4]);
        assert!(leases.maps.exact.is_empty());
        leases.clear(1, |_, _| false).unwrap();
        assert_eq!(owners(&leases), [0, 0, 3, 4]);
        leases.clear(3, |protocol, end| (protocol, end) == (Protocol::Tcp, at("[::]:80"))).unwrap();
        assert_eq!((leases.count(3), leases.count(1)), (1, 0));
    }
}
