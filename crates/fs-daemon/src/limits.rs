//! The limits of this process (setrlimit(2)): raised as far as it may, and looked at when it starts. What would fail at the
//! first connection is said then, to who can mend it.

use crate::daemon::StartError;
use fs_shm::{Arena, Geometry, NoBells, Side};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises them, and tries what each connection needs.
pub(crate) fn prepare(geometry: Geometry) -> Result<(), StartError> {
    // Else a file that is too large is a signal, which ends the daemon.
    crate::sys::ignore_file_size_signal();
    // Each process takes two descriptors and each arena three; an arena is a file in memory, and mapped.
    for (limit, name) in
        [(Resource::Nofile, "RLIMIT_NOFILE"), (Resource::Fsize, "RLIMIT_FSIZE"), (Resource::As, "RLIMIT_AS")]
    {
        let now = getrlimit(limit);
        if let Err(error) = setrlimit(limit, Rlimit { current: now.maximum, maximum: now.maximum }) {
            tracing::warn!(%error, "cannot raise {name}");
        }
    }
    let memory = Arena::create("fastsock-arena", geometry);
    let memory = memory.map_err(|error| explain("create a memory file", geometry, error, FILES))?;
    let mapped = Arena::map_own(memory.of(Side::A), geometry, Side::A, &NoBells);
    mapped.map_err(|error| explain("map a memory file", geometry, error, ADDRESSES))?;
    Ok(())
}

/// A limit, and how it is set.
type Cure = (Resource, &'static str, &'static str);
const FILES: Cure =
    (Resource::Fsize, "RLIMIT_FSIZE", "`ulimit -f unlimited`, or LimitFSIZE=infinity in the systemd unit");
const ADDRESSES: Cure = (Resource::As, "RLIMIT_AS", "`ulimit -v unlimited`, or LimitAS=infinity in the systemd unit");

fn explain(what: &'static str, geometry: Geometry, error: rustix::io::Errno, (limit, name, cure): Cure) -> StartError {
    let wanted = geometry.bytes() as u64;
    let hint = match getrlimit(limit).maximum {
        Some(most) if most < wanted.saturating_mul(2) => format!("; {name} allows {most}: set {cure}"),
        _ => String::new(),
    };
    StartError::Limit { what, wanted, source: error.into(), hint }
}
