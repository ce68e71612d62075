//! [`Background`]: the cores beside a program that has a runtime of its own.

use fs_rt::{CoreRef, Handle, RunError, Runtime};
use std::io;
use std::sync::{PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

static RUNTIME: RwLock<Option<Handle>> = RwLock::new(None);

/// The runtime of sockets that are made on threads which are no cores, and without the name of one.
pub fn use_runtime(runtime: Handle) {
    *RUNTIME.write().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
}

pub(super) fn runtime() -> io::Result<Handle> {
    let own = CoreRef::current().map(|core| core.handle());
    own.or_else(|| RUNTIME.read().unwrap_or_else(PoisonError::into_inner).clone()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotConnected,
            "no fastsock runtime in this process: start one with fs_compat::send::Background::start, or name it \
             (connect_on, bind_on)",
        )
    })
}

/// Runs the cores of a runtime on threads of their own until it is dropped, for programs that have another runtime, such as
/// that of `#[tokio::main]`.
///
/// Dropping it shuts the runtime down, and waits up to a second for connections to end.
///
/// ```no_run
/// use fs_compat::send::{Background, TcpStream};
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let stack = Background::start(fs_rt::Runtime::builder().device("eth0").cores([0]).build()?)?;
///     let stream = TcpStream::connect("192.0.2.1:80").await?;
///     drop(stream);
///     // What the cores have met on the way is told here; a drop would not say it.
///     tokio::task::spawn_blocking(|| stack.shutdown(std::time::Duration::from_secs(1))).await??;
///     Ok(())
/// }
/// ```
#[must_use = "the runtime ends when this is dropped"]
#[derive(Debug)]
pub struct Background {
    handle: Handle,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Background {
    /// Starts `runtime`, and makes it the one of sockets that do not name theirs ([`use_runtime`]).
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(runtime: Runtime) -> io::Result<Background> {
        let handle = runtime.handle();
        let run = move || runtime.run(|_| fs_rt::shutdown_signal()).map(drop);
        let thread = std::thread::Builder::new().name("fastsock".into()).spawn(run)?;
        use_runtime(handle.clone());
        Ok(Background { handle, thread: Some(thread) })
    }

    /// The runtime's handle: counters, shutdown, and `shutdown_begun` for a graceful end of what serves on it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Shuts the runtime down, waits up to `deadline` for its connections to end, and says what it has ended with before, if it
    /// has. Blocks the calling thread.
    pub fn shutdown(mut self, deadline: Duration) -> Result<(), RunError> {
        self.end(deadline)
    }

    fn end(&mut self, deadline: Duration) -> Result<(), RunError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.handle.shutdown(deadline);
        // What panics on a core is caught there, and is an error.
        thread.join().unwrap_or(Ok(()))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Who wants to know has called `shutdown`.
        let _ = self.end(Duration::from_secs(1));
    }
}
