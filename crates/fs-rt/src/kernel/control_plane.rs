//! The control thread as the cores see it: whom they ask.

use super::routes::Ways;
use crate::sys::EventFd;
use fs_core::IfaceId;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The control plane's end that the runtime holds. Without a thread (standalone addressing) there is nobody to ask.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    pub(crate) line: Option<Arc<Line>>,
    /// `None`: what connects has asked itself, or has no kernel to ask.
    pub(crate) ways: Option<Arc<Ways>>,
}

#[derive(Debug)]
pub(crate) struct Line {
    questions: Mutex<Vec<(IfaceId, IpAddr)>>,
    pub(crate) bell: EventFd,
    over: AtomicBool,
}

impl Line {
    /// The runtime has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Exchanges what was asked for `empty`. Both buffers stay in use: memory given back would belong to the arena of the core that
    /// asked, whose lock that core takes whenever it allocates.
    pub(crate) fn swap(&self, empty: &mut Vec<(IfaceId, IpAddr)>) {
        debug_assert!(empty.is_empty(), "questions would be asked twice");
        std::mem::swap(&mut *self.questions.lock().unwrap_or_else(PoisonError::into_inner), empty);
    }
}

impl ControlPlane {
    /// For standalone addressing.
    pub(crate) fn none() -> Self {
        Self { line: None, ways: None }
    }

    /// Starts with [`crate::control::start`].
    pub(crate) fn new(ways: Option<Ways>) -> io::Result<Self> {
        let line = Line { questions: Mutex::default(), bell: EventFd::new()?, over: AtomicBool::new(false) };
        Ok(Self { line: Some(Arc::new(line)), ways: ways.map(Arc::new) })
    }

    /// Asks for a neighbour's MAC address; the answer comes to the inboxes.
    pub(crate) fn neighbour_needed(&self, iface: IfaceId, addr: IpAddr) {
        let Some(line) = &self.line else {
            debug_assert!(false, "a standalone stack asked the kernel for {addr}");
            return;
        };
        line.questions.lock().unwrap_or_else(PoisonError::into_inner).push((iface, addr));
        line.bell.ring();
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        if let Some(line) = &self.line {
            line.over.store(true, Ordering::Release);
            line.bell.ring();
        }
    }
}
