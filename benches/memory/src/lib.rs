//! Engines in memory, without threads, links or kernel: a server (or client) on fastsock, the same on smoltcp, and
//! the generator that is the rest of the world.

pub mod client;
pub mod ours;
pub mod smol;

/// Packets per turn of a server, as a link's receive batch has.
pub const BATCH: usize = 32;
/// Bytes of a response.
pub const RESPONSE: usize = 64;

/// What one server can be made to do; each returns the time spent in the server alone.
pub trait Server {
    /// `n` request-response pairs on open connections picked at random.
    fn transactions(&mut self, n: u64, request: usize) -> std::time::Duration;
    /// `n` short connections: SYN, ACK, request, FIN, ACK in.
    fn short(&mut self, n: u64) -> std::time::Duration;
}
