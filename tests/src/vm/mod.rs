//! `cargo xtask vm`: other kernels and other cards, in QEMU.
//!
//! A guest boots one of Debian's kernels with one of QEMU's cards, and sees the machine's own
//! files, so it runs the programs of this tree as built. Its peer is this machine's kernel in a
//! network namespace. The guest runs the steps. It requests the peer's actions from its host
//! through a shared folder, so that a deaf card cannot make a run hang.

pub mod cards;
pub mod echo;
pub mod guest;
pub mod initramfs;
pub mod kernels;
pub mod machine;
pub mod packages;
pub mod peer;
pub mod table;

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Address of the guest.
pub const GUEST: &str = "10.78.0.2";
/// Address of its peer.
pub const PEER: &str = "10.78.0.1";
/// Port of the peer's echo server.
pub const PEER_PORT: u16 = 7100;
/// Ports of the guest's echo servers: on our sockets, and on the kernel's.
pub const OURS_PORT: u16 = 7000;
/// See [`OURS_PORT`].
pub const KERNELS_PORT: u16 = 7001;
/// VLAN of the card `vlan`.
pub const VLAN: &str = "5";

/// Limit for a guest, from the start of QEMU to its end.
pub const GUEST_LIMIT: Duration = Duration::from_secs(420);

/// Limit for its first step. On a busy machine a guest may stop before its kernel prints anything,
/// and is booted again.
pub const BOOT_LIMIT: Duration = Duration::from_secs(60);
/// Number of times that a guest is booted.
pub const BOOTS: usize = 3;

/// How much of the steps is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Extent {
    /// The program loads and attaches, and is gone after a kill.
    Attach,
    /// And 1 MiB both ways, 100 connections.
    Quick,
    /// Also 1,000 connections, outgoing ones, and a restart with traffic.
    Full,
    /// And 100 MiB.
    Long,
}

/// The guest's job.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// The card, of [`cards::CARDS`].
    pub card: String,
    /// The argument of `fastsock up --xdp`.
    pub mode: String,
    /// How much.
    pub extent: Extent,
    /// A shell script that runs instead of the steps, once the network is up.
    pub script: Option<String>,
    /// The folder of the tree's programs.
    pub programs: PathBuf,
}

/// The result of a step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// True if the step succeeded.
    pub ok: bool,
    /// The description.
    pub says: String,
}
