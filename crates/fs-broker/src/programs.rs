//! The BPF programs, their maps and pins.

use crate::error::Error;
use crate::leases::{Leases, Maps, mapped};
use crate::sys::bpf;
use aya::maps::{Array, HashMap as BpfHashMap, Map, MapData, PerCpuArray, XskMap};
use aya::programs::{ProgramFd, SchedClassifier, Xdp};
use aya::{Btf, Ebpf, EbpfLoader};
use rustix::fs::statfs;
use rustix::mount::MountFlags;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

static SHARE: &[u8] = aya::include_bytes_aligned!("../bpf/share.bpf.o");
static END: &[u8] = aya::include_bytes_aligned!("../bpf/end.bpf.o");

/// Programs that can have a pair at one time: `SLOTS` of the program. Slot 0 is nobody.
pub(crate) const SLOTS: u16 = 256;
/// The BPF file system, in which maps and links are pinned.
const BPF_FILES: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` of linux/magic.h.
const BPF_MAGIC: u64 = 0xcafe_4a11;
/// The pin of the link that attaches `share_in`.
const LINK: &str = "link";

macro_rules! counters {
    ($($(#[$text:meta])* $name:ident,)*) => {
        /// Counters of the BPF programs for one slot. The order is that of share.bpf.c.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$text])* pub $name: u64,)*
        }

        const COUNTERS: usize = [$(stringify!($name)),*].len();

        impl Counters {
            fn of(counts: [u64; COUNTERS]) -> Self {
                let [$($name),*] = counts;
                Self { $($name),* }
            }

            /// Returns each counter with its name.
            pub fn named(&self) -> [(&'static str, u64); COUNTERS] {
                [$((stringify!($name), self.$name)),*]
            }
        }
    };
}

counters! {
    /// Frames to the program.
    in_frames,
    /// ICMP errors that quote a packet of the program's.
    in_icmp,
    /// First fragments of TCP to a leased port, dropped.
    in_fragment,
    /// Frames of the program that were sent.
    out_frames,
    /// The source address is not the host's.
    drop_address,
    /// The source port is not leased to the program.
    drop_port,
    /// Neither TCP nor UDP directly over IP, or a VLAN tag.
    drop_protocol,
    /// Fragments.
    drop_fragment,
    /// Malformed headers.
    drop_malformed,
    /// Longer than the device's MTU.
    drop_length,
    /// To an address of this host.
    drop_local,
}

/// A slot: `struct slot`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    /// The index of the host's end; 0: the slot is free.
    pub(crate) index: u32,
    pub(crate) uid: u32,
    pub(crate) token: [u64; 2],
}

/// The programs of one shared device.
pub(crate) struct Programs {
    directory: PathBuf,
    input: ProgramFd,
    output: ProgramFd,
    /// `output` checks super-segments.
    pub(crate) checks_segments: bool,
    uplink: Array<MapData, u32>,
    slots: Array<MapData, [u64; 3]>,
    slot_of: BpfHashMap<MapData, u32, u16>,
    addresses: BpfHashMap<MapData, [u8; 16], u8>,
    statistics: PerCpuArray<MapData, [u64; COUNTERS]>,
    known: BTreeSet<[u8; 16]>,
    pub(crate) leases: Leases,
}

impl Programs {
    /// Loads the programs. Maps that an earlier daemon pinned in `directory` are used again.
    pub(crate) fn load(directory: &Path) -> Result<Self, Error> {
        if directory.starts_with(BPF_FILES) {
            mount()?;
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)
            .map_err(|error| Error::system(format!("make {}", directory.display()), error))?;
        let failed = |error: &(dyn std::error::Error + 'static)| Error::bpf("load the BPF programs", error);
        let btf = Btf::from_sys_fs().ok();
        let mut loader = EbpfLoader::new();
        loader.btf(btf.as_ref()).default_map_pin_directory(directory);
        let mut ebpf = loader.load(SHARE).map_err(|error| failed(&error))?;
        let mut map = |name: &str| ebpf.take_map(name).ok_or_else(|| missing(name));
        let leases = Maps { ports: made(map("ports")?)?, leases: made(map("leases")?)? };
        let (uplink, slots, slot_of) = (made(map("uplink")?)?, made(map("slots")?)?, made(map("slot_of")?)?);
        let (addresses, statistics) = (made::<BpfHashMap<_, _, _>>(map("addresses")?)?, made(map("statistics")?)?);
        let known = addresses.keys().collect::<Result<_, _>>().map_err(|error| failed(&error))?;
        let leases = Leases::read(leases).map_err(|error| failed(&error))?;
        let input = classifier(&mut ebpf, "share_in")?;
        // Without the kernel's BTF it would read the wrong fields.
        let segments = btf.as_ref().map(|_| classifier(&mut ebpf, "share_segments"));
        if let Some(Err(error)) = &segments {
            tracing::warn!(%error, "programs send segments one by one");
        }
        let segments = segments.and_then(Result::ok);
        let checks_segments = segments.is_some();
        let output = segments.map_or_else(|| classifier(&mut ebpf, "share_out"), Ok)?;
        let directory = directory.to_owned();
        Ok(Self {
            directory,
            input,
            output,
            checks_segments,
            uplink,
            slots,
            slot_of,
            addresses,
            statistics,
            known,
            leases,
        })
    }

    /// Attaches to the device with this index. An attachment of an earlier daemon is updated
    /// without an interruption.
    pub(crate) fn attach(&mut self, index: u32) -> Result<(), Error> {
        let path = self.directory.join(LINK);
        let before = self.uplink.get(&0, 0).unwrap_or(0);
        self.uplink.set(0, index, 0).map_err(|error| Error::bpf("name the device", &error))?;
        let input = self.input.as_fd();
        if before == index && bpf::pinned(&path).and_then(|link| bpf::link_update(link.as_fd(), input)).is_ok() {
            return Ok(());
        }
        let _none = std::fs::remove_file(&path);
        let link = bpf::link_ingress(input, index).map_err(|error| Error::system("attach to the device", error))?;
        bpf::pin(link.as_fd(), &path).map_err(|error| Error::system("pin the attachment", error))
    }

    /// Replaces the host's addresses.
    pub(crate) fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), Error> {
        let failed = |error| Error::bpf("write the host's addresses", &error);
        let wanted: BTreeSet<[u8; 16]> = addresses.iter().map(|address| mapped(*address)).collect();
        for address in self.known.difference(&wanted) {
            self.addresses.remove(address).map_err(failed)?;
        }
        for address in wanted.difference(&self.known) {
            self.addresses.insert(address, 1, 0).map_err(failed)?;
        }
        self.known = wanted;
        Ok(())
    }

    /// Returns true if the device has this address.
    pub(crate) fn has_address(&self, address: IpAddr) -> bool {
        self.known.contains(&mapped(address))
    }

    /// Sets a slot's pair. From now on packets of its program pass through `share_out`.
    pub(crate) fn set_slot(&mut self, number: u16, slot: Slot) -> Result<(), Error> {
        let failed = |error: &(dyn std::error::Error + 'static)| Error::bpf("write a slot", error);
        let words = [u64::from(slot.index) | u64::from(slot.uid) << 32, slot.token[0], slot.token[1]];
        self.slots.set(number.into(), words, 0).map_err(|error| failed(&error))?;
        self.slot_of.insert(slot.index, number, 0).map_err(|error| failed(&error))?;
        bpf::attach_ingress(self.output.as_fd(), slot.index).map_err(|error| Error::system("attach to the pair", error))
    }

    /// Frees a slot with its leases. Its counters stay until its next program.
    pub(crate) fn free_slot(&mut self, number: u16) -> Result<(), Error> {
        self.leases.clear(number, |_, _| false).map_err(|error| Error::bpf("take leases back", &error))?;
        let slot = self.slot(number);
        self.slots.set(number.into(), [0; 3], 0).map_err(|error| Error::bpf("free a slot", &error))?;
        let _none = self.slot_of.remove(&slot.index);
        Ok(())
    }

    pub(crate) fn slot(&self, number: u16) -> Slot {
        let [word, a, b] = self.slots.get(&number.into(), 0).unwrap_or_default();
        Slot { index: word as u32, uid: (word >> 32) as u32, token: [a, b] }
    }

    /// Returns the slots that have a pair.
    pub(crate) fn used(&self) -> Vec<u16> {
        (1..SLOTS).filter(|number| self.slot(*number).index != 0).collect()
    }

    /// Returns a slot's counters.
    pub(crate) fn counters(&self, number: u16) -> Counters {
        let Ok(per_cpu) = self.statistics.get(&number.into(), 0) else { return Counters::default() };
        let mut sum = [0; COUNTERS];
        per_cpu.iter().for_each(|cpu| sum.iter_mut().zip(cpu).for_each(|(total, count)| *total += count));
        Counters::of(sum)
    }

    pub(crate) fn clear_counters(&mut self, number: u16) {
        let zeros = aya::util::nr_cpus().ok().map(|cpus| vec![[0; COUNTERS]; cpus]);
        if let Some(Ok(zeros)) = zeros.map(aya::maps::PerCpuValues::try_from) {
            let _old_counts_stay = self.statistics.set(number.into(), zeros, 0);
        }
    }
}

/// Mounts the BPF file system, as systemd does, where it is not mounted (a container). Needs
/// CAP_SYS_ADMIN then.
fn mount() -> Result<(), Error> {
    if statfs(BPF_FILES).is_ok_and(|files| files.f_type as u64 & 0xffff_ffff == BPF_MAGIC) {
        return Ok(());
    }
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("bpf", BPF_FILES, "bpf", flags, Some(c"mode=0700")).map_err(|error| {
        let doing = format!("mount the BPF file system (as root: `mount -t bpf bpf {BPF_FILES}`)");
        Error::system(doing, error.into())
    })?;
    let mounts = |process: &str| std::fs::metadata(format!("/proc/{process}/ns/mnt")).map(|of| (of.dev(), of.ino()));
    if mounts("self").ok() != mounts("1").ok() {
        tracing::warn!(
            "the BPF file system is mounted in this mount namespace only (\"ip netns exec\" makes one): connections of \
             programs on shared devices end with it. `nsenter --net=/run/netns/NAME fastsock up …` has the host's"
        );
    }
    Ok(())
}

fn missing(name: &str) -> Error {
    Error::Bpf { doing: "load the BPF programs", reason: format!("no {name} in the object") }
}

fn made<M: TryFrom<Map, Error = aya::maps::MapError>>(map: Map) -> Result<M, Error> {
    M::try_from(map)
        .map_err(|error| Error::bpf("use a pinned map (of another version? `fastsock down` removes it)", &error))
}

fn classifier(ebpf: &mut Ebpf, name: &str) -> Result<ProgramFd, Error> {
    let failed = |error: &(dyn std::error::Error + 'static)| Error::bpf("load a BPF program", error);
    let program = ebpf.program_mut(name).ok_or_else(|| missing(name))?;
    let program: &mut SchedClassifier =
        program.try_into().map_err(|error: aya::programs::ProgramError| failed(&error))?;
    program.load().map_err(|error| failed(&error))?;
    program.fd().map_err(|error| failed(&error))?.try_clone().map_err(|error| failed(&error))
}

/// The program of a pair's end.
pub(crate) struct End {
    ebpf: Ebpf,
    sockets: XskMap<MapData>,
}

impl End {
    pub(crate) fn load() -> Result<Self, Error> {
        let failed = |error: &(dyn std::error::Error + 'static)| Error::bpf("load the program of a pair", error);
        let mut ebpf = EbpfLoader::new().load(END).map_err(|error| failed(&error))?;
        let sockets = made(ebpf.take_map("sockets").ok_or_else(|| missing("sockets"))?)?;
        Ok(Self { ebpf, sockets })
    }

    /// Returns the program's descriptor, which lives as long as this.
    pub(crate) fn fd(&mut self) -> Result<i32, Error> {
        let failed = |error: &(dyn std::error::Error + 'static)| Error::bpf("load the program of a pair", error);
        let program = self.ebpf.program_mut("pair_end").ok_or_else(|| missing("pair_end"))?;
        let program: &mut Xdp = program.try_into().map_err(|error: aya::programs::ProgramError| failed(&error))?;
        program.load().map_err(|error| failed(&error))?;
        Ok(program.fd().map_err(|error| failed(&error))?.as_fd().as_raw_fd())
    }

    /// Directs packets of this queue to the socket.
    pub(crate) fn set(&mut self, queue: u32, socket: &OwnedFd) -> Result<(), Error> {
        self.sockets.set(queue, socket.as_raw_fd(), 0).map_err(|error| Error::bpf("enter a socket", &error))
    }
}

/// Removes the pins in a directory. Without them the kernel detaches and frees everything.
pub(crate) fn unpin(directory: &Path) -> std::io::Result<()> {
    // The link first: a BPF program without its maps would drop leased packets.
    let _none = std::fs::remove_file(directory.join(LINK));
    for entry in std::fs::read_dir(directory)? {
        std::fs::remove_file(entry?.path())?;
    }
    std::fs::remove_dir(directory)
}
