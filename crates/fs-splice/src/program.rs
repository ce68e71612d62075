//! The BPF program, its map, and the devices that it is attached to.

use crate::conntrack::Conntrack;
use crate::entry::{Entry, Key, Words, settlement};
use crate::error::{Error, Refusal};
use aya::maps::{HashMap as BpfHashMap, MapData, MapError};
use aya::programs::tc::{TcAttachOptions, TcAttachType};
use aya::programs::{LinkOrder, SchedClassifier};
use aya::util::KernelVersion;
use aya::{Ebpf, EbpfLoader, TestRun, TestRunOptions};
use fs_rt::netlink::Netlink;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Compiled from `bpf/splice.bpf.c` by `bpf/build.sh`; CI rebuilds and compares.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/splice.bpf.o");
/// The program at the devices.
const PACKETS: &str = "splice_in";
/// The program that changes an entry for the process.
const SETTLE: &str = "splice_settle";
/// `ARPHRD_ETHER`: a device of another type has other headers.
const ETHERNET: &str = "1";
/// `BPF_NOEXIST` and `BPF_EXIST` of `linux/bpf.h`.
const IF_NEW: u64 = 1;
const IF_OLD: u64 = 2;

/// The program of this process. It is detached when this is dropped, or the process ends.
pub struct Splicer {
    loaded: Mutex<Loaded>,
    next_id: AtomicU64,
}

struct Loaded {
    // Dropped with the links first.
    ebpf: Ebpf,
    /// Indices of devices with the program. An index is not used again.
    devices: BTreeSet<u32>,
}

impl Splicer {
    /// Loads the program.
    ///
    /// # Errors
    /// If the kernel is older than 6.6, or the process lacks rights.
    pub fn load() -> Result<Arc<Self>, Error> {
        let version = KernelVersion::current().map_err(|error| Error::bpf("read the kernel's version", &error))?;
        if version < KernelVersion::new(6, 6, 0) {
            return Err(Error::Kernel);
        }
        let mut ebpf =
            EbpfLoader::new().load(OBJECT).map_err(|error| Error::bpf("load the program of spliced flows", &error))?;
        for name in [PACKETS, SETTLE] {
            let program = classifier(&mut ebpf, name)?;
            program.load().map_err(|error| Error::bpf("load the program of spliced flows", &error))?;
        }
        // Sockets of spliced flows go by TCP_REPAIR.
        crate::holder::check().map_err(|error| Error::Rights(format!("cannot use TCP_REPAIR: {error}")))?;
        let loaded = Mutex::new(Loaded { ebpf, devices: BTreeSet::new() });
        Ok(Arc::new(Self { loaded, next_id: AtomicU64::new(1) }))
    }

    /// Attaches the program to what a device receives, unless it is there.
    fn attach(&self, device: u32) -> Result<(), Refusal> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Loaded { ebpf, devices } = &mut *loaded;
        if devices.contains(&device) {
            return Ok(());
        }
        let name = rustix::net::netdevice::index_to_name(netlink_handle()?, device)
            .map_err(|error| Refusal::System("name a device", error.into()))?;
        let kind = std::fs::read_to_string(format!("/sys/class/net/{name}/type")).unwrap_or_default();
        if kind.trim() != ETHERNET {
            return Err(Refusal::Device);
        }
        let failed =
            |error: &(dyn std::error::Error + 'static)| Refusal::Table(Error::bpf("attach", error).to_string());
        let options = TcAttachOptions::TcxOrder(LinkOrder::default());
        let program = classifier(ebpf, PACKETS).map_err(|error| failed(&error))?;
        program.attach_with_options(&name, TcAttachType::Ingress, options).map_err(|error| failed(&error))?;
        devices.insert(device);
        tracing::info!("spliced flows: attached to {name}");
        Ok(())
    }

    #[cfg(test)]
    pub(crate) fn with_program<T>(&self, work: impl FnOnce(&mut SchedClassifier) -> T) -> T {
        let mut loaded = self.loaded.lock().unwrap();
        work(classifier(&mut loaded.ebpf, PACKETS).unwrap())
    }
}

impl std::fmt::Debug for Splicer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Splicer").finish_non_exhaustive()
    }
}

fn netlink_handle() -> Result<std::os::fd::OwnedFd, Refusal> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|error| Refusal::System("open a socket", error.into()))
}

fn classifier<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut SchedClassifier, Error> {
    let program = ebpf.program_mut(name).ok_or(Error::Bpf { doing: "load", reason: "no program".into() })?;
    program.try_into().map_err(|error: aya::programs::ProgramError| Error::bpf("load a BPF program", &error))
}

/// A core's access to the map and to the kernel's routes.
pub struct Table {
    splicer: Arc<Splicer>,
    flows: RefCell<BpfHashMap<MapData, Key, Words>>,
    pub(crate) routes: Netlink,
    pub(crate) conntrack: Conntrack,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

impl Table {
    /// Opens the table, for the calling thread's network namespace.
    ///
    /// # Errors
    /// If descriptors or memory are missing.
    pub fn open(splicer: &Arc<Splicer>) -> Result<Rc<Self>, Error> {
        let failed = |error: &(dyn std::error::Error + 'static)| Error::bpf("open the table of flows", error);
        let loaded = splicer.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let map = loaded.ebpf.map("flows").ok_or(Error::Bpf { doing: "load", reason: "no map".into() })?;
        let aya::maps::Map::HashMap(data) = map else {
            return Err(Error::Bpf { doing: "load", reason: "the map is of another kind".into() });
        };
        let fd = data.fd().as_fd().try_clone_to_owned().map_err(|error| Error::System("open the table", error))?;
        let data = MapData::from_fd(fd).map_err(|error| failed(&error))?;
        let flows = BpfHashMap::try_from(aya::maps::Map::HashMap(data)).map_err(|error| failed(&error))?;
        let routes = Netlink::open([]).map_err(|error| Error::System("open a netlink socket", error))?;
        Ok(Rc::new(Self { splicer: splicer.clone(), flows: RefCell::new(flows), routes, conntrack: Conntrack::open() }))
    }

    pub(crate) fn attach(&self, device: u32) -> Result<(), Refusal> {
        self.splicer.attach(device)
    }

    pub(crate) fn new_id(&self) -> u64 {
        self.splicer.next_id.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn add(&self, key: &Key, entry: &Entry) -> Result<(), Refusal> {
        let added = self.flows.borrow_mut().insert(key, entry.words(), IF_NEW);
        added.map_err(|error| Refusal::Table(Error::bpf("add", &error).to_string()))
    }

    /// Replaces an entry, if it is there.
    pub(crate) fn set(&self, key: &Key, entry: &Entry) -> Result<(), Refusal> {
        let set = self.flows.borrow_mut().insert(key, entry.words(), IF_OLD);
        set.map_err(|error| Refusal::Table(Error::bpf("set", &error).to_string()))
    }

    /// Changes `own_end` of an entry of the flow `id`, if it is there. [`Table::set`] would undo what
    /// the program writes at the same time.
    pub(crate) fn settle(&self, key: &Key, id: u64, own_end: u32) -> io::Result<()> {
        let mut loaded = self.splicer.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let program = classifier(&mut loaded.ebpf, SETTLE).map_err(io::Error::other)?;
        let request = settlement(key, id, own_end);
        let options = TestRunOptions { data_in: Some(&request), repeat: 1, ..TestRunOptions::new() };
        program.test_run(options).map(drop).map_err(|error| io::Error::other(Error::bpf("settle", &error)))
    }

    /// Returns an entry of the flow `id`.
    pub(crate) fn get(&self, key: &Key, id: u64) -> Option<Entry> {
        match self.flows.borrow().get(key, 0) {
            Ok(words) => Some(Entry::of(&words)).filter(|entry| entry.id == id),
            Err(MapError::KeyNotFound) => None,
            Err(error) => {
                tracing::debug!("spliced flows: {error}");
                None
            }
        }
    }

    /// Removes an entry of the flow `id`. The addresses may be those of a later flow.
    pub(crate) fn remove(&self, key: &Key, id: u64) {
        if self.get(key, id).is_some() {
            let _gone = self.flows.borrow_mut().remove(key);
        }
    }
}
