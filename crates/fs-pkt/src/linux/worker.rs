//! A thread that makes system calls, one at a time.

use super::sys;
use crate::run::call::{Outcome, SysCall};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Worker {
    calls: Sender<SysCall>,
    outcomes: Receiver<(Instant, Outcome)>,
    /// The last call.
    pub(super) last: Option<SysCall>,
}

impl Worker {
    /// Starts the thread, which inherits the caller's namespace.
    pub(super) fn new() -> Result<Self, String> {
        let (calls, work) = channel::<SysCall>();
        let (results, outcomes) = channel();
        let body = move || {
            sys::be_prompt();
            while let Ok(call) = work.recv() {
                let outcome = sys::perform(&call);
                if results.send((Instant::now(), outcome)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("system calls".into()).spawn(body);
        thread.map_err(|e| format!("thread for system calls: {e}"))?;
        Ok(Self { calls, outcomes, last: None })
    }

    pub(super) fn begin(&mut self, call: SysCall) -> Result<(), String> {
        self.last = Some(call.clone());
        self.calls.send(call).map_err(|_| "the thread for system calls is gone".into())
    }

    /// Returns the call's end and result, if it ends within `wait`.
    pub(super) fn ended(&mut self, wait: Duration) -> Option<(Instant, Outcome)> {
        self.outcomes.recv_timeout(wait).ok()
    }
}
