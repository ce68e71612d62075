//! The match service, as the daemon hosts it: a thread with a socket of its own beside the control socket.

use anyhow::Context;
use fs_pairs::{Handle, Service, beside};
use std::io;
use std::path::Path;
use std::thread::JoinHandle;

/// The service's thread. Dropping it ends the service: promoted connections go on.
#[derive(Debug)]
pub(crate) struct Pairs {
    handle: Handle,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Pairs {
    pub(crate) fn start(control: &Path) -> anyhow::Result<Self> {
        let path = beside(control);
        let service = Service::bind(&path);
        let service = service.with_context(|| format!("cannot make the match service's socket {}", path.display()))?;
        let handle = service.handle();
        let thread = std::thread::Builder::new().name("fastsock-pairs".into()).spawn(move || service.run());
        Ok(Self { handle, thread: Some(thread.context("cannot start the match service's thread")?) })
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        self.handle.stop();
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => complain(&error),
            Some(Err(_panic)) => complain(&io::Error::other("it panicked: this is a bug in fastsock")),
        }
    }
}

fn complain(error: &io::Error) {
    eprintln!("fastsock: the match service ended early: {error}");
}
