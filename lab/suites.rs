//! fastsock's sockets in place of tokio's, for tokio's own tests: `lab/suites` makes a crate `suite` of this.
//!
//! `SUITE_CARRIER=kernel`: a runtime without a device, on 127.0.0.1. `core`: two runtimes that a
//! link in memory connects; listeners are on the one, connects on the other.

use fastsock::net::{Background, use_runtime};
use fastsock::{Handle, LinkChoice, Runtime, Standalone};
use std::net::Ipv4Addr;
use std::sync::OnceLock;

pub mod net {
    pub use fastsock::net::*;

    /// Connects from the other end of the link.
    pub async fn connect<A: ToSocketAddrs>(to: A) -> std::io::Result<TcpStream> {
        match super::CLIENT.get() {
            Some(client) => TcpStream::connect_on(client, to).await,
            None => TcpStream::connect(to).await,
        }
    }
}

/// Where the tests listen.
pub fn here() -> &'static str {
    if CLIENT.get().is_some() { "10.0.0.1:0" } else { "127.0.0.1:0" }
}

static CLIENT: OnceLock<Handle> = OnceLock::new();

fn start(link: LinkChoice, address: Option<u8>) -> Handle {
    let mut builder = Runtime::builder().cores([0]).pin(false).link(link);
    if let Some(last) = address {
        builder = builder.device("memory").standalone(Standalone::new().addr(Ipv4Addr::new(10, 0, 0, last), 24));
    }
    let running = Background::start(builder.build().expect("a runtime")).expect("a thread");
    let handle = running.handle();
    // It runs until the process ends.
    std::mem::forget(running);
    handle
}

/// Starts the runtimes, before any test.
pub fn begin() {
    if std::env::var("SUITE_CARRIER").is_ok_and(|carrier| carrier == "core") {
        let (a, b) = fs_xdp::memory_pair(fs_core::Framing::Ethernet, 1500).expect("a link");
        let _first = CLIENT.set(start(LinkChoice::Memory(vec![Box::new(b)]), Some(2)));
        use_runtime(start(LinkChoice::Memory(vec![Box::new(a)]), Some(1)));
    } else {
        start(LinkChoice::Kernel, None);
    }
}

/// Begins before `main`: the harness of the tests has no hook.
#[macro_export]
macro_rules! begin {
    () => {
        #[used]
        #[unsafe(link_section = ".init_array")]
        static BEGIN: extern "C" fn() = {
            extern "C" fn begin() {
                $crate::begin();
            }
            begin
        };
    };
}
