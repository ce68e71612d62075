//! The cores' interface to the control thread.

use super::routes::RouteLookup;
use crate::sys::EventFd;
use fs_core::IfaceId;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The runtime's end of the control plane. In standalone addressing there is no thread behind it.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    pub(crate) line: Option<Arc<Line>>,
    /// `None`: the program has asked the kernel itself, or there is no kernel to ask.
    pub(crate) routes: Option<Arc<RouteLookup>>,
}

#[derive(Debug)]
pub(crate) struct Line {
    questions: Mutex<Vec<(IfaceId, IpAddr)>>,
    pub(crate) doorbell: EventFd,
    over: AtomicBool,
}

impl Line {
    /// Returns true after the runtime has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Exchanges the questions for `empty`. Both buffers stay in use: freeing one would take the
    /// lock of the malloc arena of the core that allocated it, and that core takes the lock for
    /// each allocation.
    pub(crate) fn swap(&self, empty: &mut Vec<(IfaceId, IpAddr)>) {
        debug_assert!(empty.is_empty(), "questions would be asked twice");
        std::mem::swap(&mut *self.questions.lock().unwrap_or_else(PoisonError::into_inner), empty);
    }
}

impl ControlPlane {
    /// For standalone addressing.
    pub(crate) fn none() -> Self {
        Self { line: None, routes: None }
    }

    /// Starts with [`crate::control::start`].
    pub(crate) fn new(routes: Option<RouteLookup>) -> io::Result<Self> {
        let line = Line { questions: Mutex::default(), doorbell: EventFd::new()?, over: AtomicBool::new(false) };
        Ok(Self { line: Some(Arc::new(line)), routes: routes.map(Arc::new) })
    }

    /// Asks for a neighbour's MAC address. The answer arrives in the inboxes.
    pub(crate) fn neighbour_needed(&self, iface: IfaceId, addr: IpAddr) {
        let Some(line) = &self.line else {
            debug_assert!(false, "a standalone stack asked the kernel for {addr}");
            return;
        };
        line.questions.lock().unwrap_or_else(PoisonError::into_inner).push((iface, addr));
        line.doorbell.notify();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        if let Some(line) = &self.line {
            line.over.store(true, Ordering::Release);
            line.doorbell.notify();
        }
    }
}
