//! The wire: cores with the device, and what the control thread needs of them.

mod arena;
mod bells;
mod connect;
mod cores;
mod former;
mod options;
mod relay;
mod tap;

pub use cores::WireError;
pub(crate) use cores::{Cores, Options};
pub(crate) use options::ListenerOptions;

use crate::server::ArenaMemory;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A listener as the cores need it.
#[derive(Clone, Debug)]
pub(crate) struct WireListener {
    pub(crate) listener: u32,
    pub(crate) at: SocketAddr,
    pub(crate) v6_only: bool,
    pub(crate) backlog: u32,
    pub(crate) options: ListenerOptions,
}

/// The cores of a runtime with the device. Calls return at once.
pub(crate) trait Wire: Send + Sync {
    /// How many.
    fn cores(&self) -> u16;
    /// The device's index and name.
    fn device(&self) -> (u32, &str);
    /// A core serves this arena as its side B: a process opens connections to the world in it.
    fn outgoing(&self, core: u16, arena: u32, memory: ArenaMemory);
    /// A core listens, and opens in this arena (side A) what it accepts. When it cannot, it sends
    /// [`crate::server::Command::ListenFailed`].
    fn listen(&self, core: u16, listener: WireListener, arena: u32, memory: ArenaMemory);
    /// The application has changed the listener's backlog or options; connections that come from now on have them.
    fn change(&self, listener: WireListener);
    /// The cores listen there no more; new connections are the kernel's, whatever is open.
    fn unlisten(&self, listener: u32);
    /// The arena is over.
    fn arena_gone(&self, arena: u32);
    /// New connections to where the cores listen are the kernel's from here on; those that there are go on.
    fn leave(&self);
    /// Connections of the cores, as of a moment ago; closed ones that have bytes to send are among them.
    fn connections(&self) -> u64;
    /// Ends the cores once their last connection has, or after this time.
    fn shut_down(&self, most: std::time::Duration);
    /// Each frame that the device receives for the cores, and that they send, is copied to this socket as a
    /// [`fs_shm::control::CaptureRecord`], until it ends.
    fn tap(&self, to: Arc<OwnedFd>) -> std::io::Result<()>;
    /// Name, label, whether it can go down, value.
    fn counters(&self) -> Vec<(String, String, bool, u64)>;
}
