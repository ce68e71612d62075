//! When the library is loaded.

use super::{real, stdio};

/// Run by the dynamic loader: after the C library's own set-up, before main.
extern "C" fn start() {
    real::resolve_all();
    fs_socket::start();
    stdio::prepare_standard_streams();
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
