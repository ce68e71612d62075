//! [`Background`]: cores next to a program's own runtime.

use fs_rt::{CoreRef, Handle, RunError, Runtime};
use std::cell::RefCell;
use std::io;
use std::sync::{PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

static RUNTIME: RwLock<Option<Handle>> = RwLock::new(None);

thread_local! {
    /// The runtime of a thread that `fastsock::block_on` uses.
    static OF_THREAD: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

/// Sets the runtime for sockets that are made without naming a runtime, on threads that are neither
/// cores nor threads of `fastsock::run` and `fastsock::block_on`.
pub fn use_runtime(runtime: Handle) {
    *RUNTIME.write().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
}

/// Sets the runtime for sockets that the calling thread makes without naming a runtime. Returns the
/// previous one. For `fastsock::block_on`: a process may have several of these at a time, such as its
/// tests.
#[doc(hidden)]
pub fn __use_on_this_thread(runtime: Option<Handle>) -> Option<Handle> {
    OF_THREAD.replace(runtime)
}

pub(super) fn runtime() -> io::Result<Handle> {
    let own = CoreRef::current().map(|core| core.handle());
    let own = own.or_else(|| OF_THREAD.with_borrow(Clone::clone));
    own.or_else(|| RUNTIME.read().unwrap_or_else(PoisonError::into_inner).clone()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::NotConnected,
            "no fastsock runtime in this process: start one with fastsock::net::Background::start, or name it \
             (connect_on, bind_on)",
        )
    })
}

/// Runs the cores of a runtime on their own threads until it is dropped. For programs that have
/// another runtime, such as that of `#[tokio::main]`.
///
/// Dropping it shuts the runtime down, and waits up to a second for connections to end.
///
/// ```no_run
/// use fastsock::net::{Background, TcpStream};
///
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let stack = Background::start(fastsock::Runtime::builder().device("eth0").cores([0]).build()?)?;
///     let stream = TcpStream::connect("192.0.2.1:80").await?;
///     drop(stream);
///     // Returns the cores' error. A drop would not report it.
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
    /// Starts `runtime`, and makes it the default for sockets that do not name one
    /// ([`use_runtime`]).
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(runtime: Runtime) -> io::Result<Background> {
        let handle = runtime.handle();
        let run = move || runtime.run(|_| fs_rt::shutdown_signal()).map(drop);
        let thread = std::thread::Builder::new().name("fastsock".into()).spawn(run)?;
        use_runtime(handle.clone());
        Ok(Background { handle, thread: Some(thread) })
    }

    /// Returns the runtime's handle: counters, shutdown, and `shutdown_begun` for a graceful end of
    /// servers on it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Shuts the runtime down and waits up to `deadline` for its connections to end. Returns the
    /// error if the runtime had ended before. Blocks the calling thread.
    pub fn shutdown(mut self, deadline: Duration) -> Result<(), RunError> {
        self.end(deadline)
    }

    fn end(&mut self, deadline: Duration) -> Result<(), RunError> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        self.handle.shutdown(deadline);
        // A panic on a core is caught there and reported as an error.
        let ended = thread.join().unwrap_or(Ok(()));
        // No socket can use it any more.
        RUNTIME.write().unwrap_or_else(PoisonError::into_inner).take_if(|runtime| runtime.has_ended());
        ended
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // A caller that wants the result calls `shutdown`.
        let _ = self.end(Duration::from_secs(1));
    }
}
