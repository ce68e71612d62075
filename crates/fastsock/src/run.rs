//! Starts the runtime in one line.

use fs_compat::net::{__use_on_this_thread, Background};
use fs_rt::{Handle, Runtime};
use std::future::Future;
use std::io::{self, Write};
use std::time::Duration;

/// Maximum duration of the end of connections, after the program's own future has ended.
const END: Duration = Duration::from_secs(1);

/// Runs `main` on a multi-threaded tokio runtime, next to the cores of the runtime that the
/// environment describes. Sockets of [`crate::net`] use these cores, and `tokio::spawn` works as
/// usual.
///
/// | variable | |
/// |---|---|
/// | `FASTSOCK_DEVICE` | the devices, separated by commas |
/// | `FASTSOCK_LINK` | `kernel`: kernel sockets only, regardless of devices |
///
/// Without a device, or without the rights for it, the sockets are the kernel's
/// ([`crate::Builder::or_kernel`]), and a warning says what is missing. [`block_on`] does the same
/// with a runtime that the program has built.
///
/// ```no_run
/// use fastsock::net::TcpStream;
/// use tokio::io::AsyncReadExt;
///
/// fn main() -> std::io::Result<()> {
///     fastsock::run(async {
///         let mut said = String::new();
///         TcpStream::connect("192.0.2.1:7777").await?.read_to_string(&mut said).await?;
///         println!("{said}");
///         Ok(())
///     })?
/// }
/// ```
///
/// # Errors
/// If settings contradict each other, or threads cannot be started. If all devices are lost while it
/// runs: `main` is then dropped, because none of its sockets works any more.
pub fn run<F: Future>(main: F) -> io::Result<F::Output> {
    let runtime = Runtime::builder().devices_of_environment().or_kernel().build();
    block_on(runtime.map_err(io::Error::other)?, main)
}

/// Like [`run`], with the cores of `runtime`.
///
/// ```
/// use fastsock::net::{TcpListener, TcpStream};
/// use fastsock::{LinkChoice, Runtime};
///
/// // As in a program's own tests: neither rights nor a device.
/// let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build()?;
/// let peer = fastsock::block_on(runtime, async {
///     let listener = TcpListener::bind("127.0.0.1:0").await?;
///     let at = listener.local_addr()?;
///     let client = tokio::spawn(TcpStream::connect(at));
///     let (_stream, peer) = listener.accept().await?;
///     client.await.map_err(std::io::Error::other)??;
///     std::io::Result::Ok(peer)
/// })??;
/// assert!(peer.ip().is_loopback());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As [`run`].
pub fn block_on<F: Future>(runtime: Runtime, main: F) -> io::Result<F::Output> {
    let stack = Background::start(runtime)?;
    let handle = stack.handle();
    let _here = OnThisThread(__use_on_this_thread(Some(handle.clone())));
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_start(move || drop(__use_on_this_thread(Some(handle.clone()))))
        .build()?;
    let output = tokio.block_on(async {
        tokio::select! {
            biased;
            output = main => Ok(output),
            () = failure(stack.handle()) => Err(io::Error::other("the runtime has failed")),
        }
    });
    // Drops tasks that still run and their sockets, as `#[tokio::main]` does.
    drop(tokio);
    stack.shutdown(END).map_err(io::Error::other)?;
    output
}

/// Completes when an error has ended the runtime. A shutdown by the program itself is none: the
/// program may have more to do.
async fn failure(runtime: Handle) {
    runtime.ended().await;
    if !runtime.has_failed() {
        std::future::pending().await
    }
}

/// Sockets of the calling thread use the runtime of `block_on`. Contains the former runtime.
struct OnThisThread(Option<Handle>);

impl Drop for OnThisThread {
    fn drop(&mut self) {
        __use_on_this_thread(self.0.take());
    }
}

/// The expansion of `#[fastsock::main]`.
#[doc(hidden)]
pub fn __main<F: Future>(main: F) -> F::Output {
    run(main).unwrap_or_else(|error| {
        // `eprintln` would panic if standard error cannot be written.
        let _unheard = writeln!(io::stderr(), "fastsock: {error}");
        std::process::exit(1)
    })
}
