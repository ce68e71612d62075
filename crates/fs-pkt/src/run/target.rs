//! What a script runs on.

use super::call::{Outcome, SysCall};
use std::net::IpAddr;

/// A host under test. Times are microseconds since the script's start.
pub trait Target {
    /// Now.
    fn now(&mut self) -> i64;

    /// Lets time pass until `at`; at once if that is over.
    fn wait_until(&mut self, at: i64);

    /// A packet arrives at the host.
    fn inject(&mut self, packet: &[u8]) -> Result<(), String>;

    /// The next packet that the host has sent and that was not yet taken, with its time; waits for it until
    /// `deadline` (`None`: as long as something can happen).
    fn sniff(&mut self, deadline: Option<i64>) -> Result<Option<(i64, Vec<u8>)>, String>;

    /// A call that is to return at once. One that does not is waited for.
    fn call(&mut self, call: SysCall) -> Result<Outcome, String>;

    /// Begins a call that may take time. One at a time.
    fn begin(&mut self, call: SysCall) -> Result<(), String>;

    /// The end of the call that was begun, waiting for it until `deadline`, with its time.
    fn ended(&mut self, deadline: i64) -> Option<(i64, Outcome)>;

    /// The Fast Open cookie that the host gives to a peer, if scripts cannot know it: theirs stands for it.
    fn cookie(&mut self, local: IpAddr, remote: IpAddr) -> Option<Vec<u8>>;

    /// A time of the wall clock, in seconds and nanoseconds, as the script's; `None` where there is no such clock.
    fn wall_time(&mut self, seconds: i64, nanos: i64) -> Option<i64>;

    /// A shell command.
    fn command(&mut self, line: &str) -> Result<(), String>;

    /// TCP_INFO of a socket under the names that code blocks use.
    fn tcp_info(&mut self, fd: i32) -> Result<Vec<(&'static str, i64)>, String>;
}
