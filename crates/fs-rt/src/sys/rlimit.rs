//! RLIMIT_NOFILE: each port reservation is a descriptor, and each connection that the kernel carries.

use std::io;

/// Makes room for `more` descriptors in addition to those that are open now: raises the soft limit
/// up to the hard one.
pub(crate) fn raise_open_files(more: usize) {
    if let Err(error) = raise(more) {
        tracing::debug!(%error, "cannot raise RLIMIT_NOFILE");
    }
}

fn raise(more: usize) -> io::Result<()> {
    let open = std::fs::read_dir("/proc/self/fd").map(|d| d.count()).unwrap_or(64);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit to write to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = (open + more) as libc::rlim_t;
    if limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max.min(wanted.max(limit.rlim_cur));
        // SAFETY: `limit` is a valid rlimit; the soft limit is not above the hard one.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}
