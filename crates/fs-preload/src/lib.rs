//! libfastsock.so (LD_PRELOAD): connections of unmodified programs get rings in shared memory.
//!
//! Every descriptor of the application is a real kernel socket. The library counts the data calls
//! on a new TCP socket, offers it to the match service after a few calls (`process::calls_before_offer`,
//! `slot::ONE_WAY`), and from then on the socket may have an [`fs_carrier::pair::Pair`]. Each exported function asks one
//! question first: is this descriptor promoted? If it is not, the C library's function is called
//! with the caller's own arguments. `docs/PRELOAD.md` has the table of what each call does with a
//! promoted descriptor.
//!
//! | module | what it is |
//! |---|---|
//! | `slot` | what is known of one descriptor number |
//! | `table` | slots by number |
//! | `object` | what promoted numbers stand for, and references to it |
//! | `process` | its forks, when it offers sockets, and how it waits |
//! | `child` | the first moment of a child of fork(2) |
//! | `promotion` | offers, answers, and the moment of promotion |
//! | `socket` | a promoted socket: send and receive for each kind of call |
//! | `set` | an epoll set |
//! | `wait` | poll(2) and select(2) |
//! | `confined` | whether the process has confined itself (seccomp) |
//! | `descriptor` | close, dup, exec: the life of numbers |
//! | `report` | counters for tests and for the operator |
//! | `sys` | the boundary to C: exported symbols, the C library's functions, memory of the application |
//!
//! Rules of this crate:
//! 1. A call that goes to the C library while the thread may be cancelled holds nothing that has a destructor.
//! 2. No memory of malloc(3): a data call may run in a signal handler (`sys::heap`).
//! 3. Variadic C functions (`fcntl`, `ioctl`, `syscall`) are defined with the number of arguments
//!    that they read: on x86-64 and aarch64 Linux, variable arguments of integer class travel like
//!    fixed ones.

#![cfg_attr(test, allow(dead_code, reason = "the exported symbols are left out of a test"))]

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
)))]
compile_error!("libfastsock.so relies on the calling conventions of 64-bit x86-64 and aarch64 Linux");

mod child;
mod confined;
mod descriptor;
#[path = "object_unsafe.rs"]
mod object;
mod process;
mod promotion;
mod report;
mod set;
mod slot;
mod socket;
mod sys;
#[path = "table_unsafe.rs"]
mod table;
mod wait;
mod young;
