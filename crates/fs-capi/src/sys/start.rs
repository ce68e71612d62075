//! When the library is loaded.

use core::sync::atomic::AtomicU8;

use super::{atfork, real, stdio};

/// Run by the dynamic loader: after the C library's own set-up, before main.
extern "C" fn start() {
    real::resolve_all();
    tell_threads();
    atfork::register();
    fs_socket::start();
    stdio::prepare_standard_streams();
}

/// Where the C library says whether this process has one thread (glibc 2.32 and newer).
fn tell_threads() {
    // SAFETY: the name is a C string.
    let flag = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__libc_single_threaded".as_ptr()) };
    if !flag.is_null() {
        // SAFETY: a char variable of the C library, which stays; it is changed by threads of this process only, and as one
        // byte.
        fs_socket::tell_threads(unsafe { AtomicU8::from_ptr(flag.cast()) });
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
