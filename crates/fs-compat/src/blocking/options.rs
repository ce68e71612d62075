//! Options that the three types have in common.

use crate::socket2::Socket;
use std::io;
use std::time::Duration;

/// Declares methods that do what their namesake of [`Socket`] does.
macro_rules! delegate {
    ($type:ident { $($(#[$doc:meta])* fn $name:ident($($arg:ident: $kind:ty),*) -> $out:ty = $method:ident;)* }) => {
        impl $type {
            $($(#[$doc])*
            pub fn $name(&self $(, $arg: $kind)*) -> std::io::Result<$out> {
                self.socket.$method($($arg),*)
            })*
        }
    };
}
pub(super) use delegate;

/// Sets SO_RCVTIMEO or SO_SNDTIMEO as std does: zero is refused, because the kernel takes it as no
/// time-out.
pub(super) fn set_timeout(
    socket: &Socket,
    timeout: Option<Duration>,
    set: fn(&Socket, Option<Duration>) -> io::Result<()>,
) -> io::Result<()> {
    match timeout {
        Some(Duration::ZERO) => Err(io::Error::new(io::ErrorKind::InvalidInput, "cannot set a 0 duration timeout")),
        Some(time) => set(socket, Some(time.max(Duration::from_micros(1)))),
        None => set(socket, None),
    }
}
