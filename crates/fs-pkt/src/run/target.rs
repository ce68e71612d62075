//! Hosts that scripts run on.

use super::call::{Outcome, SysCall};
use std::net::IpAddr;

/// A host under test. Times are microseconds since the script's start.
pub trait Target {
    /// Returns the current time.
    fn now(&mut self) -> i64;

    /// Lets time pass until `at`; returns at once if that has passed.
    fn wait_until(&mut self, at: i64);

    /// Delivers a packet to the host.
    fn inject(&mut self, packet: &[u8]) -> Result<(), String>;

    /// Returns the next packet that the host has sent, with its time. Waits for it until `deadline`
    /// (`None`: as long as an event can happen).
    fn sniff(&mut self, deadline: Option<i64>) -> Result<Option<(i64, Vec<u8>)>, String>;

    /// Makes a call that should return at once. One that does not is waited for.
    fn call(&mut self, call: SysCall) -> Result<Outcome, String>;

    /// Begins a call that may block. One at a time.
    fn begin(&mut self, call: SysCall) -> Result<(), String>;

    /// Returns the result of the begun call and its time, waiting until `deadline`.
    fn ended(&mut self, deadline: i64) -> Option<(i64, Outcome)>;

    /// Returns the Fast Open cookie that the host issues to a peer, if scripts cannot know it: the
    /// script's is replaced by it.
    fn cookie(&mut self, local: IpAddr, remote: IpAddr) -> Option<Vec<u8>>;

    /// Converts a wall clock time, in seconds and nanoseconds, to the script's; `None` if there is
    /// no such clock.
    fn wall_time(&mut self, seconds: i64, nanos: i64) -> Option<i64>;

    /// Runs a shell command.
    fn command(&mut self, line: &str) -> Result<(), String>;

    /// Returns TCP_INFO of a socket under the names in code blocks.
    fn tcp_info(&mut self, fd: i32) -> Result<Vec<(&'static str, i64)>, String>;
}
