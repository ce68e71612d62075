//! The predecessor's side: starts the successor, and passes the sockets.

use super::message::{END, Passed, SERVING, VARIABLE, receive, send, weight};
use crate::stats::OtherWeight;
use anyhow::{Context, bail, ensure};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum time until the successor serves. Too short: a slow start (a certificate on a
/// network disk) is given up. Too long: a successor that hangs blocks further signals.
const PATIENCE: Duration = Duration::from_secs(30);

/// The successor that is being started. It must not outlive a process that is told to end, because
/// nobody knows its process id yet.
#[derive(Clone, Default)]
pub(crate) struct Starting(Arc<Mutex<Start>>);

#[derive(Default)]
struct Start {
    child: Option<Child>,
    /// This process ends: it starts no other one.
    is_over: bool,
}

impl Starting {
    fn lock(&self) -> MutexGuard<'_, Start> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends SIGTERM to a successor that this process does not know to serve yet. None is started
    /// afterwards.
    pub(crate) fn end(&self) {
        let mut start = self.lock();
        start.is_over = true;
        if let Some(child) = start.child.take() {
            // An error means that it has ended already.
            let _ = kill_process(Pid::from_child(&child), Signal::TERM);
        }
    }

    /// Starts the program that this process was started from, with the same arguments, and passes
    /// `sockets` and `weights` to it. Returns its process id once it serves.
    ///
    /// # Errors
    /// If it cannot be started, or ends or hangs before it serves, or this process ends. It is then
    /// stopped.
    pub(crate) fn give(&self, sockets: &[Passed], weights: &[OtherWeight]) -> anyhow::Result<u32> {
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&ours, direction, Some(PATIENCE))?;
        }
        // The name, not /proc/self/exe: that is the old file after an upgrade.
        let mut arguments = std::env::args_os();
        let program = arguments.next().context("no name of this program")?;
        let mut command = Command::new(&program);
        command.args(arguments).env(VARIABLE, "stdin").stdin(Stdio::from(theirs));
        let mut start = self.lock();
        ensure!(!start.is_over, "this process ends");
        start.child = Some(command.spawn().with_context(|| format!("cannot start {}", program.display()))?);
        drop(start);
        // The command has the only other descriptor of the other end.
        drop(command);
        let passed = pass(&ours, sockets, weights);
        let mut child = self.lock().child.take().context("this process ends")?;
        if passed.is_err() {
            stop(&mut child);
        }
        passed.map(|()| child.id())
    }
}

fn pass(to: &OwnedFd, sockets: &[Passed], weights: &[OtherWeight]) -> anyhow::Result<()> {
    for Passed { role, socket } in sockets {
        send(to, &role.to_string(), Some(std::os::fd::AsFd::as_fd(socket))).context("the new process has ended")?;
    }
    // A program from before these messages refuses them, and this process goes on.
    for other in weights {
        send(to, &weight(other), None).context("the new process has ended")?;
    }
    send(to, END, None).context("the new process has ended")?;
    match receive(to) {
        Ok((text, _)) if text == SERVING => Ok(()),
        Ok((text, _)) if text.is_empty() => bail!("the new process has ended: its own messages say why"),
        Ok((text, _)) => bail!("the new process said {text:?}"),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            bail!("the new process does not serve after {PATIENCE:?}")
        }
        Err(error) => Err(error).context("the new process has ended"),
    }
}

fn stop(child: &mut Child) {
    // An error means that it has ended already.
    let _ = child.kill();
    let _ = child.wait();
}
