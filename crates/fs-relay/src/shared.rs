//! State that the cores of a relay share.

use crate::config::Config;
use crate::names::Names;
use crate::source::Sources;
use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

/// Counters of all cores.
#[derive(Debug, Default)]
pub struct Counters {
    /// Connections accepted on the device.
    pub accepted: AtomicU64,
    /// Connections that are relayed now.
    pub open: AtomicU64,
    /// Connections that were reset because the program's listener did not exist or could not be
    /// reached.
    pub refused: AtomicU64,
    /// Connections that one end has reset.
    pub reset: AtomicU64,
}

/// State of all cores.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) names: Arc<Names>,
    pub(crate) sources: Sources,
    pub(crate) counters: Arc<Counters>,
    /// Addresses whose last connection found no listener. Already logged.
    silent: Mutex<HashSet<SocketAddr>>,
}

impl Shared {
    pub(crate) fn new(config: Config, names: Names, sources: Sources) -> Self {
        Self { config, names: Arc::new(names), sources, counters: Arc::default(), silent: Mutex::default() }
    }

    /// Logs once that no program listens at an address, until one does.
    pub(crate) fn refused(&self, server: SocketAddr, error: &io::Error) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if silent.len() < 1024 && silent.insert(server) {
            tracing::warn!(%server, %error, "cannot reach a program at its port: clients get a reset");
        }
    }

    pub(crate) fn listens(&self, server: SocketAddr) {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if !silent.is_empty() {
            silent.remove(&server);
        }
    }
}
