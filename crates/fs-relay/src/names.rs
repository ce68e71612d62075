//! Gives the program's end of a connection the client's address, with the BPF programs of
//! `bpf/peername.bpf.c`.

use aya::maps::{HashMap, MapData};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, SockOps};
use aya::{Ebpf, EbpfLoader};
use std::error::Error;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Compiled from `bpf/peername.bpf.c` by `bpf/build.sh`; `cargo xtask test bpf` compares.
static OBJECT: &[u8] = aya::include_bytes_aligned!("../bpf/peername.bpf.o");

/// `struct connection` and `struct name` of the programs.
type Connection = [u8; 48];
type Name = [u8; 20];

/// A bpf_link without flags does not replace or exclude other programs.
const MODE: CgroupAttachMode = CgroupAttachMode::Single;

/// The inode number of the host's root cgroup (kernfs).
const ROOT_INODE: u64 = 1;

/// The reason why the BPF programs could not be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NamesError {
    /// No cgroup2 hierarchy is mounted.
    #[error(
        "no cgroup2 file system is mounted: `mount -t cgroup2 none /sys/fs/cgroup`, or enter the network namespace by \
         `nsenter --net` instead of `ip netns exec`, which hides it (BPF programs of the root cgroup give programs \
         their clients' addresses)"
    )]
    NoCgroup,
    /// The root cgroup is not visible, so some programs would see a loopback address.
    #[error(
        "{path} is not the host's root cgroup: start the daemon in the host's cgroup namespace (docker: --cgroupns=host), \
         as programs in other cgroups would take every client for a local one"
    )]
    NotRoot {
        /// The mount point.
        path: PathBuf,
    },
    /// The kernel rejected a program.
    #[error("cannot {doing} ({reason}): it needs root, or CAP_BPF and CAP_NET_ADMIN, and Linux 5.15 or later")]
    Program {
        /// The operation that failed.
        doing: &'static str,
        /// The kernel's reason.
        reason: String,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The attached programs. They are detached when this is dropped or the process ends.
pub(crate) struct Names {
    expected: Mutex<HashMap<MapData, Connection, Name>>,
    netns: u64,
    _programs: Ebpf,
}

/// A connection whose server will get a client's address, until this is dropped.
pub(crate) struct Expected {
    names: Arc<Names>,
    connection: Connection,
}

impl Names {
    /// Loads the programs and attaches them to the root cgroup. `netns` is the cookie of the
    /// network namespace (SO_NETNS_COOKIE) in which connections are made.
    pub(crate) fn attach(netns: u64) -> Result<Self, NamesError> {
        let path = cgroup_root()?;
        let io = |source| NamesError::Io { path: path.clone(), source };
        let cgroup = File::open(&path).map_err(io)?;
        if cgroup.metadata().map_err(io)?.ino() != ROOT_INODE {
            return Err(NamesError::NotRoot { path });
        }
        let mut programs = EbpfLoader::new().load(OBJECT).map_err(|error| failed("load its BPF maps", &error))?;
        // The programs that read names are attached first, so that no name exists without them.
        for name in ["peername4", "peername6"] {
            let program: &mut CgroupSockAddr = of_object(&mut programs, name)?;
            program.load().map_err(|error| failed("load a BPF program of getpeername(2)", &error))?;
            let attached = program.attach(&cgroup, MODE);
            attached.map_err(|error| failed("attach a BPF program to the root cgroup", &error))?;
        }
        let program: &mut SockOps = of_object(&mut programs, "established")?;
        program.load().map_err(|error| failed("load a BPF program of sock_ops", &error))?;
        let attached = program.attach(&cgroup, MODE);
        attached.map_err(|error| failed("attach a BPF program to the root cgroup", &error))?;
        let expected = programs.take_map("expected").ok_or("the object has no map `expected`");
        let expected = expected.and_then(|map| HashMap::try_from(map).map_err(|_| "`expected` is another kind of map"));
        let expected =
            expected.map_err(|reason| NamesError::Program { doing: "find its BPF map", reason: reason.into() })?;
        Ok(Self { expected: Mutex::new(expected), netns, _programs: programs })
    }

    /// Gives the server's end of a connection from `source` to `server` the name `client`. Returns
    /// `None` if the relay expects such a connection already. Must be called before connect(2).
    pub(crate) fn expect(
        self: &Arc<Self>,
        source: SocketAddr,
        server: SocketAddr,
        client: SocketAddr,
    ) -> io::Result<Option<Expected>> {
        let mut connection = [0; 48];
        connection[..16].copy_from_slice(&mapped(source.ip()));
        connection[16..32].copy_from_slice(&mapped(server.ip()));
        connection[32..34].copy_from_slice(&source.port().to_be_bytes());
        connection[34..36].copy_from_slice(&server.port().to_be_bytes());
        connection[40..].copy_from_slice(&self.netns.to_ne_bytes());
        let mut name = [0; 20];
        name[..16].copy_from_slice(&mapped(client.ip()));
        name[16..18].copy_from_slice(&client.port().to_be_bytes());
        /// From linux/bpf.h.
        const BPF_NOEXIST: u64 = 1;
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        match expected.insert(connection, name, BPF_NOEXIST) {
            Ok(()) => Ok(Some(Expected { names: self.clone(), connection })),
            Err(error) => match errno(&error) {
                Some(17) => Ok(None),
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => Err(io::Error::other(error.to_string())),
            },
        }
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        let mut expected = self.names.expected.lock().unwrap_or_else(PoisonError::into_inner);
        // The entry of an established connection is gone already.
        let _taken = expected.remove(&self.connection);
    }
}

fn of_object<'a, P>(programs: &'a mut Ebpf, name: &str) -> Result<P, NamesError>
where
    P: TryFrom<&'a mut aya::programs::Program>,
{
    let program = programs.program_mut(name).and_then(|program| program.try_into().ok());
    program.ok_or_else(|| NamesError::Program {
        doing: "find its BPF program",
        reason: format!("no {name} in the object"),
    })
}

/// Returns the address in network order, IPv4 mapped into IPv6.
fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Returns the mount point of the cgroup2 hierarchy.
fn cgroup_root() -> Result<PathBuf, NamesError> {
    let path = Path::new("/proc/self/mountinfo");
    let text = std::fs::read_to_string(path).map_err(|source| NamesError::Io { path: path.into(), source })?;
    mount_point(&text).ok_or(NamesError::NoCgroup)
}

/// Lines of proc_pid_mountinfo(5): the mount point is the fifth field, the type follows " - ".
fn mount_point(mountinfo: &str) -> Option<PathBuf> {
    let of_cgroup2 = |line: &&str| line.split_once(" - ").is_some_and(|(_, of)| of.starts_with("cgroup2 "));
    mountinfo.lines().find(of_cgroup2)?.split(' ').nth(4).map(PathBuf::from)
}

fn errno(error: &(dyn Error + 'static)) -> Option<i32> {
    let mut at = Some(error);
    while let Some(error) = at {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return io.raw_os_error();
        }
        if let Some(aya::maps::MapError::SyscallError(call)) = error.downcast_ref() {
            return call.io_error.raw_os_error();
        }
        at = error.source();
    }
    None
}

/// Describes all layers of an error on one line.
fn failed(doing: &'static str, error: &(dyn Error + 'static)) -> NamesError {
    let mut reason = error.to_string();
    let mut at = error.source();
    while let Some(error) = at {
        let layer = error.to_string();
        if !reason.contains(&layer) {
            reason = format!("{reason}: {layer}");
        }
        at = error.source();
    }
    NamesError::Program { doing, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_point_of_cgroup2_is_found() {
        let text = "29 23 0:26 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                    30 23 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
        assert_eq!(mount_point(text), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mount_point("29 23 0:26 / /sys/fs/cgroup rw - cgroup cgroup rw\n"), None);
    }
}
