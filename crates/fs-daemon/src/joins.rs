//! Which network namespaces are joined by memory: only those that the configuration names together.
//!
//! Whoever administers a namespace chooses its addresses, and any user may make a namespace of his own. So the addresses
//! of a namespace say nothing to another one unless the configuration's author vouches for both.
//!
//! A name is resolved once, when the daemon starts, to the kernel's cookie of the namespace, which it never gives again:
//! a namespace that takes the name, the inode or the process number later is another one, and not joined.

use crate::config::Config;
use crate::listeners::Netns;
use crate::netns;
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The daemon's own namespace, in the configuration.
const OWN: &str = "self";

/// Why a namespace of the configuration is no use.
#[derive(Debug, thiserror::Error)]
#[error("cannot join network namespace `{name}`: {source}{hint}")]
#[non_exhaustive]
pub struct JoinError {
    /// As the configuration has it.
    pub name: String,
    /// Why.
    pub source: io::Error,
    hint: &'static str,
}

/// A namespace of the configuration, and what its name led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    name: String,
    /// As `readlink /proc/PID/ns/net` has it.
    inode: u64,
    netns: Netns,
}

/// Groups of namespaces; those of one group are joined with each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Joins {
    groups: Vec<Vec<Named>>,
    pairs: HashSet<(Netns, Netns)>,
}

impl Joins {
    /// Resolves the configuration's names.
    pub(crate) fn resolve(groups: &[Vec<String>]) -> Result<Self, JoinError> {
        let mut joins = Self::default();
        for names in groups {
            let group = names.iter().map(|name| Named::resolve(name)).collect::<Result<Vec<_>, _>>()?;
            for one in &group {
                joins.pairs.extend(group.iter().map(|other| (one.netns, other.netns)));
            }
            joins.groups.push(group);
        }
        Ok(joins)
    }

    /// Whether memory may join two namespaces.
    pub(crate) fn join(&self, one: Netns, other: Netns) -> bool {
        one == other || self.pairs.contains(&(one, other))
    }
}

/// One line for each group: `self (net:[4026531840]), client (net:[4026532217])`.
impl fmt::Display for Joins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, group) in self.groups.iter().enumerate() {
            let names: Vec<String> =
                group.iter().map(|named| format!("{} (net:[{}])", named.name, named.inode)).collect();
            write!(f, "{}{}", if n == 0 { "" } else { "\n" }, names.join(", "))?;
        }
        Ok(())
    }
}

impl Config {
    /// Checks that the network namespaces of `[[join]]` exist. Needs the daemon's rights.
    ///
    /// # Errors
    /// The first name that cannot be resolved, and why.
    pub fn check_joins(&self) -> Result<(), JoinError> {
        Joins::resolve(&self.joins).map(drop)
    }
}

impl Named {
    /// `self`, a name of ip-netns(8), or the path of a file that a namespace is mounted on.
    fn resolve(name: &str) -> Result<Self, JoinError> {
        use std::os::unix::fs::MetadataExt;
        let failed = |hint| move |source| JoinError { name: name.to_owned(), source, hint };
        let missing = "; `ip netns list` lists the names, and `ip netns attach NAME PID` creates one";
        let path = match name {
            OWN => "/proc/thread-self/ns/net".to_owned(),
            path if path.starts_with('/') => path.to_owned(),
            name => format!("/run/netns/{name}"),
        };
        let file = File::open(&path).map_err(failed(missing))?;
        // A process's own file has no path of its own: the number may be another process's by now.
        let target = std::fs::read_link(format!("/proc/thread-self/fd/{}", file.as_raw_fd())).map_err(failed(""))?;
        if name != OWN && target.to_string_lossy().starts_with("net:[") {
            let hint = "; give the namespace a name (`ip netns attach NAME PID`) and use that";
            return Err(failed(hint)(io::Error::other(
                "the path names a process by its ID, which another process can get later",
            )));
        }
        let inode = file.metadata().map_err(failed(""))?.ino();
        let netns = if name == OWN { netns::own() } else { netns::inside(file, netns::own) };
        let netns = netns.map_err(failed("; the daemon must be root, and the file must be a network namespace"))?;
        Ok(Self { name: name.to_owned(), inode, netns })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<Vec<String>> {
        vec![names.iter().map(|&name| name.to_owned()).collect()]
    }

    #[test]
    fn nothing_is_joined_by_itself() {
        let joins = Joins::default();
        assert!(joins.join(3, 3) && !joins.join(3, 4));
    }

    #[test]
    fn names_are_resolved_or_refused_with_a_reason() {
        let own = netns::own().unwrap();
        let joins = Joins::resolve(&names(&["self"])).unwrap();
        assert!(joins.join(own, own) && !joins.join(own, own + 1));
        let link = std::fs::read_link("/proc/self/ns/net").unwrap();
        assert_eq!(joins.to_string(), format!("self ({})", link.display()));
        let by_number = format!("/proc/{}/ns/net", std::process::id());
        for (name, expected) in [
            ("no-such-namespace", "`no-such-namespace`: No such file"),
            (by_number.as_str(), "a process by its ID"),
            ("/proc/self/ns/net", "ip netns attach"),
            ("/etc/passwd", "the file must be a network namespace"),
        ] {
            let error = Joins::resolve(&names(&["self", name])).unwrap_err().to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }
}
