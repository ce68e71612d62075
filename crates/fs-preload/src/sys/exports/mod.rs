//! The exported symbols.
//!
//! | module | calls |
//! |---|---|
//! | `send`, `receive` | bytes out and in |
//! | `message` | sendmsg, recvmsg and their like |
//! | `file` | sendfile, splice, asynchronous I/O, streams |
//! | `control` | fcntl, ioctl, setsockopt, getsockopt, shutdown |
//! | `number` | accept, connect, close, dup |
//! | `poll` | poll and select |
//! | `epoll` | epoll |
//! | `child` | fork, exec, posix_spawn |
//! | `confine` | prctl |
//! | `jump` | longjmp |
//! | `raw` | syscall |
//! | `variadic` | execl |

use libc::{c_int, ssize_t};

use crate::descriptor::{self, Found};
use crate::promotion;
use crate::slot::Direction;
use crate::socket::Socket;

/// Defines C symbols.
macro_rules! define {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty = $body:expr;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As the C function of this name.
            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "a symbol is named as in C")]
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
                // SAFETY: the caller's arguments are as C's function asks, and are passed on as they are.
                unsafe { $body }
            }
        )*
    };
}

mod child;
mod confine;
mod control;
mod epoll;
mod file;
mod jump;
mod message;
mod number;
mod poll;
mod raw;
mod receive;
mod send;
mod variadic;

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// A data call. `libc` makes the C library's call with the caller's arguments; `promoted` makes it
/// on a promoted socket, and returns nothing if the C library's call is right all the same. `bytes`
/// returns how many bytes of the stream a result stands for.
#[inline]
fn data_call<T: Copy>(
    fd: c_int,
    direction: Direction,
    libc: impl Fn() -> T,
    bytes: impl Fn(T) -> u64,
    promoted: impl Fn(&Socket) -> Option<T>,
) -> T {
    loop {
        match descriptor::find(fd) {
            Found::Plain => return libc(),
            Found::Watched(slot, visit) => {
                if promotion::advance(fd, slot, visit) {
                    slot.leave(visit);
                    continue;
                }
                let result = libc();
                let n = bytes(result);
                if n > 0 {
                    slot.count(direction, n);
                }
                slot.leave(visit);
                return result;
            }
            Found::Object(held) => {
                let Some(socket) = held.socket() else {
                    held.release();
                    return libc();
                };
                if !super::threads::is_single() {
                    // A call that is satisfied by the ring is a cancellation point, too.
                    // SAFETY: no precondition. A thread that ends here leaves a reference behind.
                    unsafe { pthread_testcancel() };
                }
                if !socket.is_current() {
                    let has_rest = socket.has_ring(fd);
                    if !has_rest {
                        descriptor::retire(fd, held);
                    }
                    // Pinned: the kernel carries all bytes, and they are no longer counted.
                    if !has_rest || direction == Direction::Send {
                        held.release();
                        return libc();
                    }
                }
                let result = jump::inside(|| promoted(socket));
                held.release();
                return result.unwrap_or_else(libc);
            }
        }
    }
}

/// Returns the number of bytes that a result of read(2) or a similar call stands for.
#[inline]
fn stream_bytes(n: ssize_t) -> u64 {
    u64::try_from(n).unwrap_or(0)
}
