//! libfastsock.so: the BSD socket symbols for unmodified binaries (LD_PRELOAD).
//!
//! A call's way: the exported C symbol (`sys::exports`) looks the descriptor up in fs-socket's table. What is not
//! accelerated goes to the next definition of the symbol, the C library's (`sys::real`), with the caller's own
//! arguments: its errno, its cancellation points, its restart after signals stay what they are. What is accelerated
//! is translated (C arrays to slices, `Errno` to `errno`, `EPIPE` to a SIGPIPE) and answered by fs-socket.
//!
//! Rules of this crate:
//! 1. Everything here is the boundary to C: it is `unsafe` throughout and lives in `sys/`.
//! 2. No allocation, no lock and no call of Rust's std that makes a system call on a data path: such calls resolve to
//!    the symbols of this very library.
//! 3. Exported functions are `extern "C-unwind"` and hold nothing that has a destructor while they call the C
//!    library: a cancelled thread unwinds through them.
//! 4. Variadic C functions (`fcntl`, `ioctl`, `syscall`) are defined with the fixed number of arguments that they read:
//!    on x86-64 and aarch64 Linux variable arguments of integer class travel like fixed ones. `execl` and its kin,
//!    whose number of arguments is open, are entered through assembly that lays the registers out (`sys::variadic`).

#[cfg(not(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_pointer_width = "64"
)))]
compile_error!("libfastsock.so relies on the calling conventions of 64-bit x86-64 and aarch64 Linux");

mod sys;
