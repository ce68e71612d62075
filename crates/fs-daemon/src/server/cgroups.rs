//! Control groups: whether programs of one could have a say in a process's packets and connections.

use super::Server;
use super::arenas::no_descriptor;
use crate::config::Heed;
use crate::sys;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

/// The unified hierarchy. `None`: a kernel without, or one that does not let this daemon ask.
#[derive(Debug)]
pub(super) struct Cgroups(Option<File>);

impl Cgroups {
    pub(super) fn open() -> Self {
        Self(sys::hierarchy().inspect_err(|error| tracing::debug!(%error, "cannot read the cgroup hierarchy")).ok())
    }

    /// Whether any can have programs.
    pub(super) fn are_there(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a cgroup, or one above it, has programs for packets and connections.
    pub(super) fn has_programs(&self, path: &str) -> io::Result<bool> {
        let Some(root) = &self.0 else { return Ok(false) };
        let path = match path.trim_start_matches('/') {
            "" => ".",
            path => path,
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(root, path, flags, Mode::empty()).map_err(io::Error::from);
        let has = directory.and_then(|directory| sys::has_programs(directory.as_fd()));
        has.or_else(|error| match Errno::from_io_error(&error) {
            // Or a kernel without such programs (EINVAL, ENOSYS).
            Some(Errno::PERM | Errno::INVAL | Errno::NOSYS) => Ok(false),
            _ => Err(error),
        })
    }
}

/// A process's path in the unified hierarchy; `None` when it cannot be read.
pub(super) fn path_of(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
    let text = text
        .inspect_err(|error| {
            name_limit(error);
            tracing::debug!(pid, %error, "cannot read a process's cgroup");
        })
        .ok()?;
    unified(&text).map(str::to_owned)
}

/// The line of the unified hierarchy, which has number 0 and no controllers: cgroups(7).
fn unified(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::"))
}

fn name_limit(error: &io::Error) {
    if let Some(errno) = Errno::from_io_error(error) {
        no_descriptor(&errno);
    }
}

impl Server {
    /// Whether programs of a process's cgroup, or of those above it, could have a say in its packets and connections (IPAddressDeny=
    /// of systemd). A daemon that may not ask has no more rights than its user.
    pub(super) fn is_ruled_by_cgroup(&self, me: u32) -> bool {
        let (Some(attachment), Heed::Obey) = (self.attachments.get(me), self.config.firewall) else { return false };
        let pid = attachment.who.pid;
        let path = path_of(pid).ok_or(Errno::SRCH).map_err(io::Error::from);
        match path.and_then(|path| self.cgroups.has_programs(&path)) {
            Ok(has) => has,
            Err(error) => {
                name_limit(&error);
                tracing::debug!(%error, pid, "a process's cgroup is unknown: the kernel carries its connections");
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_in_one_group_of_the_unified_hierarchy() {
        let hybrid = "12:pids:/user.slice\n1:name=systemd:/x\n0::/user.slice/user-0.slice\n";
        assert_eq!(unified(hybrid), Some("/user.slice/user-0.slice"));
        assert_eq!(unified("0::/\n"), Some("/"));
        assert_eq!(unified("12:pids:/user.slice\n"), None);
        assert_eq!(path_of(u32::MAX), None);
    }

    #[test]
    fn where_there_are_no_groups_no_program_has_a_say() {
        let none = Cgroups(None);
        assert!(!none.are_there());
        assert!(!none.has_programs("/user.slice").unwrap());
    }

    #[test]
    fn a_group_that_cannot_be_opened_is_an_error() {
        // Not of the hierarchy, but it is only looked up.
        let somewhere = Cgroups(Some(File::open("/proc/self").unwrap()));
        assert_eq!(somewhere.has_programs("/no/such/group").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
