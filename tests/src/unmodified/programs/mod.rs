//! The programs of the compatibility table: how each is started, and its clients.

mod databases;
mod http;
mod other;

pub use databases::postgres_programs;
pub use http::{java_classes, nginx};

use crate::apps::READY_LIMIT;
use crate::process::Proc;
use crate::unmodified::Stage;
use anyhow::{Context, Result};

/// One line of the table: a client's use of the server of its group.
pub struct Row {
    /// Its name in the table.
    pub name: &'static str,
    /// A connection of its gets a ring. False if none lasts long enough, or if the server forks a
    /// process for each: a socket that came by fork stays the kernel's.
    pub by_ring: bool,
    /// Runs the client; an error when anything is not as it must be.
    pub client: fn(&Stage, u16) -> Result<()>,
}

/// A server and the rows that need it.
pub struct Group {
    /// Its name.
    pub name: &'static str,
    /// Starts it on this port and waits until it is reached.
    pub server: fn(&Stage, u16) -> Result<Server>,
    /// In the order of the table.
    pub rows: Vec<Row>,
}

/// A server's processes. All end when it is dropped.
pub struct Server(Vec<Proc>);

impl From<Proc> for Server {
    fn from(proc: Proc) -> Server {
        Server(vec![proc])
    }
}

impl Server {
    /// Ends them by SIGTERM. Dropping it kills those that ignore it.
    pub fn end(mut self) -> Result<()> {
        for proc in &mut self.0 {
            if proc.ended()?.is_none() {
                proc.signal("TERM")?;
            }
        }
        for proc in &mut self.0 {
            proc.wait_end(READY_LIMIT)?;
        }
        Ok(())
    }
}

/// The group of this name.
pub fn group(name: &str) -> Result<Group> {
    groups().into_iter().find(|group| group.name == name).with_context(|| format!("no group {name}"))
}

/// All groups.
pub fn groups() -> Vec<Group> {
    let mut all = http::groups();
    all.extend(databases::groups());
    all.extend(other::groups());
    all
}
