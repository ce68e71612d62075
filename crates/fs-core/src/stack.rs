//! One core's stack.

use crate::config::{Interface, Route, StackConfig};
use crate::error::Error;
use crate::frame::{Frame, FramePool, IfaceId, RxFrame, TxFrame};
use crate::socket::event::*;
use crate::socket::options::*;
use crate::stats::Stats;
use crate::time::Instant;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

/// Bytes taken from a connection without a copy: give the frame back with `Stack::pool_mut().free`.
#[derive(Debug)]
pub enum Received {
    /// Some bytes, in their frame.
    Frame(Frame),
    /// The peer has finished.
    EndOfStream,
}

/// What goes with a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpMeta {
    /// Bytes in the datagram (more than were copied if the buffer was too small).
    pub len: usize,
    /// Its sender.
    pub from: SocketAddr,
    /// The address of ours that it was sent to.
    pub to: SocketAddr,
}

/// One core's TCP/IP engine. See the crate's documentation for the way in and out.
///
/// The order of calls in a runtime's turn: `set_now` → `deliver` (messages of other cores) → `rx_batch` →
/// `tick` → `drain_events` (tasks run, making socket calls) → `tx_batch` → `drain_outbound`.
#[derive(Debug)]
pub struct Stack<P: FramePool> {
    config: StackConfig,
    pool: P,
    now: Instant,
    stats: Stats,
}

#[allow(unused_variables, clippy::todo, clippy::should_implement_trait, missing_docs)]
impl<P: FramePool> Stack<P> {
    pub fn new(config: StackConfig, pool: P) -> Self { Self { config, pool, now: Instant::ZERO, stats: Stats::default() } }
    pub fn pool(&self) -> &P { &self.pool }
    pub fn pool_mut(&mut self) -> &mut P { &mut self.pool }
    pub fn config(&self) -> &StackConfig { &self.config }
    pub fn stats(&self) -> &Stats { &self.stats }
    pub fn now(&self) -> Instant { self.now }

    // ---- the world: interfaces, addresses, routes, neighbours (control path)
    pub fn add_interface(&mut self, interface: Interface) -> IfaceId { todo!() }
    pub fn interface_mut(&mut self, iface: IfaceId) -> &mut Interface { todo!() }
    pub fn set_routes(&mut self, routes: Vec<Route>) { todo!() }
    /// `mac: None` says that the neighbour does not answer (waiting packets fail with HostUnreachable).
    pub fn set_neighbour(&mut self, iface: IfaceId, addr: IpAddr, mac: Option<[u8; 6]>) { todo!() }
    pub fn remove_neighbour(&mut self, iface: IfaceId, addr: IpAddr) { todo!() }
    /// Restricts ephemeral ports of flows to those that `f(key) == true` (e.g. Toeplitz puts replies on our queue).
    pub fn set_port_filter(&mut self, f: Option<alloc::boxed::Box<dyn Fn(&crate::flow::FlowKey) -> bool + Send>>) { todo!() }

    // ---- one turn
    /// Time never goes back: an earlier `now` is ignored.
    pub fn set_now(&mut self, now: Instant) { todo!() }
    /// Takes all frames out of `frames` (continuations follow their head).
    pub fn rx_batch(&mut self, frames: &mut Vec<RxFrame>) { todo!() }
    /// Takes a message of another core.
    pub fn deliver(&mut self, message: CoreMessage) { todo!() }
    /// Runs what is due at `now`.
    pub fn tick(&mut self) { todo!() }
    /// Earliest time at which `tick` has something to do.
    pub fn next_deadline(&self) -> Option<Instant> { todo!() }
    /// Moves all events out, oldest first.
    pub fn drain_events(&mut self, into: &mut Vec<Event>) { todo!() }
    /// Moves all messages to other cores out.
    pub fn drain_outbound(&mut self, into: &mut Vec<Outbound>) { todo!() }
    /// Builds up to `budget` packets for `iface` and pushes them (chains contiguous) to `out`.
    /// Control first, then ACKs, then data with a byte quota round robin. Returns packets pushed.
    pub fn tx_batch(&mut self, iface: IfaceId, budget: usize, out: &mut Vec<TxFrame>) -> usize { todo!() }
    /// True when `tx_batch` would build something for `iface` now.
    pub fn tx_pending(&self, iface: IfaceId) -> bool { todo!() }

    // ---- TCP
    pub fn tcp_listen(&mut self, listen: Listen) -> Result<ListenerId, Error> { todo!() }
    /// Connections that wait to be accepted are handed to other cores that listen there, else reset.
    pub fn tcp_close_listener(&mut self, listener: ListenerId) { todo!() }
    /// WouldBlock when none waits.
    pub fn tcp_accept(&mut self, listener: ListenerId) -> Result<(TcpId, SocketAddr), Error> { todo!() }
    pub fn tcp_listener_addr(&self, listener: ListenerId) -> Result<SocketAddr, Error> { todo!() }
    /// Starts a connect; `Ready::WRITE` (or an error from `tcp_take_error`) says how it ended.
    pub fn tcp_connect(&mut self, connect: Connect) -> Result<TcpId, Error> { todo!() }
    /// `Ok(0)` is end of stream (or an empty buffer).
    pub fn tcp_recv(&mut self, id: TcpId, buf: &mut [u8]) -> Result<usize, Error> { todo!() }
    pub fn tcp_peek(&mut self, id: TcpId, buf: &mut [u8]) -> Result<usize, Error> { todo!() }
    /// Takes the next received bytes in their frame; no copy.
    pub fn tcp_recv_frame(&mut self, id: TcpId) -> Result<Received, Error> { todo!() }
    /// Copies as much as fits into the send queue. Never waits.
    pub fn tcp_send(&mut self, id: TcpId, buf: &[u8]) -> Result<usize, Error> { todo!() }
    /// Queues a frame's bytes (from the stack's own pool, at least HEADROOM in front); no copy. On error the frame comes back.
    pub fn tcp_send_frame(&mut self, id: TcpId, frame: Frame) -> Result<(), (Error, Frame)> { todo!() }
    pub fn tcp_shutdown(&mut self, id: TcpId, how: Shutdown) -> Result<(), Error> { todo!() }
    /// Ends the application's use of the connection: as `close(2)` (RST if unread data is left: RFC 2525 2.17). The id is stale afterwards.
    pub fn tcp_close(&mut self, id: TcpId) { todo!() }
    /// RST now. The id is stale afterwards.
    pub fn tcp_abort(&mut self, id: TcpId) { todo!() }
    pub fn tcp_options(&self, id: TcpId) -> Result<TcpOptions, Error> { todo!() }
    pub fn tcp_set_options(&mut self, id: TcpId, options: TcpOptions) -> Result<(), Error> { todo!() }
    pub fn tcp_state(&self, id: TcpId) -> Result<TcpState, Error> { todo!() }
    /// What is ready now (level).
    pub fn tcp_ready(&self, id: TcpId) -> Result<Ready, Error> { todo!() }
    /// SO_ERROR: takes the pending error.
    pub fn tcp_take_error(&mut self, id: TcpId) -> Result<Option<Error>, Error> { todo!() }
    pub fn tcp_local(&self, id: TcpId) -> Result<SocketAddr, Error> { todo!() }
    pub fn tcp_remote(&self, id: TcpId) -> Result<SocketAddr, Error> { todo!() }
    /// Bytes readable now / bytes queued and not yet acknowledged (FIONREAD / SIOCOUTQ).
    pub fn tcp_queued(&self, id: TcpId) -> Result<(u32, u32), Error> { todo!() }
    /// Connections alive (TCBs, without TIME-WAIT and SYN cache).
    pub fn tcp_connections(&self) -> usize { todo!() }
    /// TIME-WAIT records alive.
    pub fn tcp_time_waits(&self) -> usize { todo!() }

    // ---- UDP
    /// Port 0 lets the stack choose.
    pub fn udp_bind(&mut self, at: SocketAddr) -> Result<UdpId, Error> { todo!() }
    pub fn udp_connect(&mut self, id: UdpId, remote: SocketAddr) -> Result<(), Error> { todo!() }
    pub fn udp_send(&mut self, id: UdpId, buf: &[u8], to: Option<SocketAddr>) -> Result<usize, Error> { todo!() }
    pub fn udp_recv(&mut self, id: UdpId, buf: &mut [u8], peek: bool) -> Result<UdpMeta, Error> { todo!() }
    pub fn udp_ready(&self, id: UdpId) -> Result<Ready, Error> { todo!() }
    pub fn udp_set_ttl(&mut self, id: UdpId, ttl: Option<u8>) -> Result<(), Error> { todo!() }
    pub fn udp_ttl(&self, id: UdpId) -> Result<u8, Error> { todo!() }
    pub fn udp_local(&self, id: UdpId) -> Result<SocketAddr, Error> { todo!() }
    pub fn udp_remote(&self, id: UdpId) -> Result<Option<SocketAddr>, Error> { todo!() }
    pub fn udp_take_error(&mut self, id: UdpId) -> Result<Option<Error>, Error> { todo!() }
    pub fn udp_close(&mut self, id: UdpId) { todo!() }

    // ---- ports (the runtime reserves them in the kernel and in the XDP map)
    /// Calls back for every local (protocol, port) that came into or went out of use since the last call.
    /// Passive ports only; active ports are covered by the ephemeral range that the runtime reserves as a whole.
    pub fn listening_ports(&self) -> Vec<(crate::flow::Protocol, u16)> { todo!() }
}
