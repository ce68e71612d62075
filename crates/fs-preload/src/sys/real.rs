//! The C library's own functions behind the symbols that this library replaces.
//!
//! Each is resolved once with `dlsym(RTLD_NEXT)`: all of them when the library is loaded
//! ([`resolve_all`]), or at the first call if another library's constructor calls one before that.
//! dlsym is not async-signal-safe, which is why the table is filled early.

use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    FILE, aiocb, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, posix_spawn_file_actions_t,
    posix_spawnattr_t, sigevent, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

use super::errno::{Failure, set_errno};

/// The function and argument that a child of clone(2) begins with.
pub(crate) type Entry = Option<unsafe extern "C-unwind" fn(*mut c_void) -> c_int>;

/// One symbol of the C library.
struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    const fn new(name: &'static CStr) -> Self {
        Self { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the next definition of the symbol after this library's; null if there is none.
    #[inline]
    fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.resolve() } else { address }
    }

    #[cold]
    fn resolve(&self) -> *mut c_void {
        // SAFETY: the name is a C string; RTLD_NEXT looks from the library that contains this code.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

macro_rules! real {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) -> $ret:ty;)*) => {
        #[allow(non_upper_case_globals, reason = "a symbol is named as in C")]
        mod symbols {
            use super::Symbol;
            $(pub(super) static $name: Symbol = {
                const NAME: &str = concat!(stringify!($name), "\0");
                match core::ffi::CStr::from_bytes_with_nul(NAME.as_bytes()) {
                    Ok(name) => Symbol::new(name),
                    Err(_) => unreachable!(),
                }
            };)*
        }

        $(
            /// The C library's function of this name.
            ///
            /// # Safety
            /// As the C function.
            #[inline]
            #[allow(non_snake_case, reason = "a symbol is named as in C")]
            #[allow(dead_code, reason = "some are entered by their address only, and a test exports no symbols")]
            pub(crate) unsafe fn $name($($arg: $ty),*) -> $ret {
                type Function = unsafe extern "C-unwind" fn($($ty),*) -> $ret;
                let address = symbols::$name.address();
                if address.is_null() {
                    set_errno(libc::ENOSYS);
                    return <$ret as Failure>::FAILED;
                }
                // SAFETY: the symbol of that name has this signature in every C library of the
                // platform (variadic ones read these arguments from the same registers, see the
                // crate's rule 3); the caller answers for the arguments.
                unsafe { core::mem::transmute::<*mut c_void, Function>(address)($($arg),*) }
            }
        )*

        /// Addresses, for functions of an open number of arguments.
        pub(crate) mod address {
            $(
                /// Returns the address of the C library's function of this name.
                #[allow(non_snake_case, dead_code, reason = "a symbol is named as in C, and few are entered by their address")]
                pub(crate) fn $name() -> *mut core::ffi::c_void {
                    super::symbols::$name.address()
                }
            )*
        }

        /// Resolves every symbol, so that later calls are safe in signal handlers.
        pub(super) fn resolve_all() {
            $(symbols::$name.resolve();)*
        }
    };
}

real! {
    fn accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    fn accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    fn connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    fn shutdown(fd: c_int, how: c_int) -> c_int;
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    fn getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;

    fn send(fd: c_int, data: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    fn sendto(fd: c_int, data: *const c_void, n: size_t, flags: c_int, to: *const sockaddr, length: socklen_t) -> ssize_t;
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int;
    fn recv(fd: c_int, data: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    fn recvfrom(fd: c_int, data: *mut c_void, n: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> ssize_t;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    fn read(fd: c_int, data: *mut c_void, n: size_t) -> ssize_t;
    fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t;
    fn write(fd: c_int, data: *const c_void, n: size_t) -> ssize_t;
    fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t;
    fn preadv2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn pwritev2(fd: c_int, parts: *const iovec, n: c_int, offset: off_t, flags: c_int) -> ssize_t;
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, n: size_t) -> ssize_t;
    fn splice(input: c_int, in_offset: *mut i64, out: c_int, out_offset: *mut i64, n: size_t, flags: c_uint) -> ssize_t;
    fn __read_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t) -> ssize_t;
    fn __recv_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t, flags: c_int) -> ssize_t;
    fn __recvfrom_chk(fd: c_int, data: *mut c_void, n: size_t, room: size_t, flags: c_int, from: *mut sockaddr, length: *mut socklen_t) -> ssize_t;

    fn close(fd: c_int) -> c_int;
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fn closefrom(first: c_int) -> ();
    fn dup(fd: c_int) -> c_int;
    fn dup2(old: c_int, new: c_int) -> c_int;
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    fn ioctl(fd: c_int, request: usize, argument: usize) -> c_int;
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;

    fn poll(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int) -> c_int;
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout_ms: c_int, room: size_t) -> c_int;
    fn __ppoll_chk(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, room: size_t) -> c_int;
    fn select(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut libc::timeval) -> c_int;
    fn pselect(n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    fn epoll_create(size: c_int) -> c_int;
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn epoll_wait(set: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int) -> c_int;
    fn epoll_pwait(set: c_int, events: *mut epoll_event, n: c_int, timeout_ms: c_int, mask: *const sigset_t) -> c_int;
    fn epoll_pwait2(set: c_int, events: *mut epoll_event, n: c_int, timeout: *const timespec, mask: *const sigset_t) -> c_int;

    fn prctl(operation: c_int, a: core::ffi::c_ulong, b: core::ffi::c_ulong, c: core::ffi::c_ulong, d: core::ffi::c_ulong) -> c_int;
    fn _Fork() -> pid_t;
    fn __register_atfork(prepare: Option<unsafe extern "C" fn()>, parent: Option<unsafe extern "C" fn()>, child: Option<unsafe extern "C" fn()>, owner: *mut c_void) -> c_int;
    fn clone(entry: Entry, stack: *mut c_void, flags: c_int, argument: *mut c_void, parent: *mut pid_t, tls: *mut c_void, child: *mut pid_t) -> c_int;
    fn posix_spawn(pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    fn posix_spawnp(pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    fn posix_spawn_file_actions_adddup2(actions: *mut posix_spawn_file_actions_t, fd: c_int, new: c_int) -> c_int;
    fn pidfd_spawn(pidfd: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    fn pidfd_spawnp(pidfd: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t, attributes: *const posix_spawnattr_t, argv: *const *mut c_char, envp: *const *mut c_char) -> c_int;
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE;
    fn system(command: *const c_char) -> c_int;
    fn execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    fn execveat(directory: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int) -> c_int;

    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int;
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int;
    fn io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, size: size_t) -> c_int;
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int;
    fn io_uring_queue_exit(ring: *mut c_void) -> ();
    fn execl(path: *const c_char) -> c_int;
    fn execlp(path: *const c_char) -> c_int;
    fn execle(path: *const c_char) -> c_int;
    fn dprintf(fd: c_int) -> c_int;
    fn __dprintf_chk(fd: c_int) -> c_int;
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int;
    fn backtrace_symbols_fd(buffer: *const *mut c_void, n: c_int, fd: c_int) -> ();
    fn longjmp(place: *mut c_void, value: c_int) -> ();
    fn _longjmp(place: *mut c_void, value: c_int) -> ();
    fn siglongjmp(place: *mut c_void, value: c_int) -> ();
    fn __longjmp_chk(place: *mut c_void, value: c_int) -> ();

    fn aio_read(block: *mut aiocb) -> c_int;
    fn aio_write(block: *mut aiocb) -> c_int;
    fn lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int;
    fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
}
