//! Engines in memory, without threads, links or kernel: a server (or client) on fastsock, the same
//! on smoltcp, and the generator of their peers.

pub mod client;
pub mod ours;
pub mod smol;

/// Packets per turn of a server, as in a link's receive batch.
pub const BATCH: usize = 32;
/// Bytes of a response.
pub const RESPONSE: usize = 64;

/// Work of a server; each method returns the time of the server alone.
pub trait Server {
    /// Performs `n` requests with responses on random open connections.
    fn transactions(&mut self, n: u64, request: usize) -> std::time::Duration;
    /// Performs `n` short connections, which receive SYN, ACK, request, FIN and ACK.
    fn short(&mut self, n: u64) -> std::time::Duration;
}
