//! [`TcpListener`].

use super::shared::{Waiting, lock};
use super::tcp_stream::TcpStream;
use super::{cores, task};
use crate::local;
use crate::local::tcp_stream::ttl_in_range;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::ToSocketAddrs;
use tokio::sync::{Semaphore, watch};

/// Connections that wait here to be accepted. As many more wait in each core's own queue; beyond
/// that, SYNs are dropped.
const BACKLOG: usize = 1024;

/// As [`BACKLOG`], if the kernel carries all connections. Each of them has a descriptor, and the
/// kernel's queue has room for 1,024 more. Too high: a program that accepts slowly runs out of
/// descriptors. Too low: the cores wait more often for the program.
const BACKLOG_OF_KERNEL: usize = 64;

/// Pause after an error of the kernel's accept that a later accept may not meet. Too low: a core
/// without free descriptors does little else. Too high: clients wait longer after descriptors are
/// free again.
const PAUSE: Duration = Duration::from_millis(10);

/// A TCP listener for any thread, on all cores of a runtime; see `tokio::net::TcpListener`.
/// Connections stay on the core where their packets arrive.
///
/// Dropping it closes it and resets connections that are not accepted yet.
///
/// ```no_run
/// use fastsock::net::TcpListener;
/// use tokio::io::AsyncWriteExt;
///
/// # async fn with_a_runtime() -> std::io::Result<()> {
/// let listener = TcpListener::bind("0.0.0.0:7777").await?;
/// loop {
///     let (mut stream, _peer) = listener.accept().await?;
///     tokio::spawn(async move { stream.write_all(b"hello").await });
/// }
/// # }
/// ```
pub struct TcpListener {
    queue: Arc<Queue>,
    local: SocketAddr,
    /// The cores' listeners end when this is dropped.
    _open: watch::Sender<()>,
}

struct Queue {
    accepted: Mutex<VecDeque<(TcpStream, SocketAddr)>>,
    /// Free places in `accepted`.
    room: Semaphore,
    waiting: Waiting,
    /// The number of cores that listen.
    cores: AtomicUsize,
    /// 0: the runtime's default.
    ttl: AtomicU8,
}

impl std::fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TcpListener({})", self.local)
    }
}

/// A core that listens. Dropping it counts the core out.
struct Listening(Arc<Queue>);

impl Drop for Listening {
    fn drop(&mut self) {
        if self.0.cores.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.waiting.wake();
        }
    }
}

impl Queue {
    /// Runs on a core until the listener is dropped or the runtime shuts down.
    async fn fill(self: Arc<Self>, listener: local::TcpListener, mut open: watch::Receiver<()>) {
        let listening = Listening(self);
        let queue = &listening.0;
        let mut is_failing = false;
        loop {
            let next = async {
                let room = queue.room.acquire().await.map_err(io::Error::other)?;
                let (stream, peer) = listener.accept().await?;
                room.forget();
                io::Result::Ok((stream, peer))
            };
            let accepted = tokio::select! {
                accepted = next => accepted,
                // Nothing is ever sent. It completes when the listener is dropped.
                _ = open.changed() => return,
            };
            let (stream, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(over) if over.kind() == io::ErrorKind::InvalidInput => return,
                // An error of the kernel's accept: a connection died in its queue, or no descriptor
                // is free.
                Err(error) => {
                    // Once, until a connection is accepted.
                    if !std::mem::replace(&mut is_failing, true) {
                        tracing::warn!(%error, at = ?listener.local_addr().ok(), "cannot accept connections");
                    }
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => continue,
                        _ = open.changed() => return,
                    }
                }
            };
            is_failing = false;
            let ttl = queue.ttl.load(Ordering::Relaxed);
            if ttl != 0 {
                // An error means that the connection is over already, and the handle will report it
                // too.
                let _ = stream.set_ttl(ttl.into());
            }
            match task::serve(stream) {
                Ok((shared, task)) => {
                    tokio::task::spawn_local(task);
                    lock(&queue.accepted).push_back((TcpStream::new(shared), peer));
                    queue.waiting.wake();
                }
                // Reset before it was served.
                Err(_) => queue.room.add_permits(1),
            }
        }
    }

    fn take(&self) -> Option<io::Result<(TcpStream, SocketAddr)>> {
        // Checked before the queue, so that the queue then contains all connections that arrived
        // before the end.
        let over = self.cores.load(Ordering::Acquire) == 0;
        match lock(&self.accepted).pop_front() {
            Some(accepted) => {
                self.room.add_permits(1);
                Some(Ok(accepted))
            }
            None => over.then(|| Err(fs_rt::shut_down())),
        }
    }
}

impl TcpListener {
    /// Listens at the first address that is available, on every core of the runtime that [`super`]
    /// describes. Like tokio's, it can bind a port that only connections in TIME-WAIT use.
    ///
    /// # Errors
    /// The errors of [`local::TcpListener::bind`]; `NotConnected` if there is no runtime, or it has ended.
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<TcpListener> {
        TcpListener::bind_on(&super::background::runtime()?, addr).await
    }

    /// Like [`TcpListener::bind`], on every core of `runtime`. Waits for a runtime that is not
    /// running yet.
    pub async fn bind_on<A: ToSocketAddrs>(runtime: &fs_rt::Handle, addr: A) -> io::Result<TcpListener> {
        cores::bind(runtime, addr, async |at| {
            let queue = Arc::new(Queue {
                accepted: Mutex::default(),
                room: Semaphore::new(if runtime.is_kernel_only() { BACKLOG_OF_KERNEL } else { BACKLOG }),
                waiting: Waiting::default(),
                cores: AtomicUsize::new(runtime.cores()),
                ttl: AtomicU8::new(0),
            });
            let (open, is_open) = watch::channel(());
            let mut local = at;
            for core in 0..runtime.cores() {
                let (queue, is_open) = (queue.clone(), is_open.clone());
                // The first core chooses the port if `addr` has none.
                local = cores::ask(runtime, core, move |answer| async move {
                    let listener = match local::TcpListener::bind(local).await {
                        Ok(listener) => listener,
                        Err(error) => return drop(answer.send(Err(error))),
                    };
                    if answer.send(listener.local_addr()).is_ok() {
                        queue.fill(listener, is_open).await;
                    }
                })
                .await??;
            }
            Ok(TcpListener { queue, local, _open: open })
        })
        .await
    }

    /// Waits for the next connection and returns it with its peer. The only error is
    /// `InvalidInput`, after the runtime has shut down. While the kernel's accept fails, for example
    /// because the process may open no more descriptors, it waits, and a warning is logged.
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        self.queue.waiting.until(|| self.queue.take()).await
    }

    /// Like [`TcpListener::accept`]. Only the last task that polled is woken.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        self.queue.waiting.poll(cx, || self.queue.take())
    }

    /// Returns the local address.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.local)
    }

    /// IP_TTL or IPV6_UNICAST_HOPS of new connections.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(match self.queue.ttl.load(Ordering::Relaxed) {
            0 => 64,
            ttl => ttl.into(),
        })
    }

    /// Sets IP_TTL or IPV6_UNICAST_HOPS (1 to 255) of connections that arrive from now on.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.queue.ttl.store(ttl_in_range(ttl)?, Ordering::Relaxed);
        Ok(())
    }
}

/// When the listener is gone and no core adds to the queue any more.
impl Drop for Queue {
    fn drop(&mut self) {
        // As the kernel does with connections that were not accepted.
        for (stream, _) in lock(&self.accepted).drain(..) {
            let _ = stream.set_zero_linger();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_rt::{LinkChoice, Runtime};
    use tokio::io::AsyncReadExt;

    /// A core adds a connection while the listener is dropped.
    #[test]
    fn connections_left_in_the_queue_are_reset() {
        let runtime = Runtime::builder().cores([0]).pin(false).link(LinkChoice::Kernel).build().unwrap();
        let left = runtime.run(|_| async {
            let listener = local::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (stream, peer) = listener.accept().await.unwrap();
            let (shared, task) = task::serve(stream).unwrap();
            tokio::task::spawn_local(task);
            let queue = Queue {
                accepted: Mutex::new([(TcpStream::new(shared), peer)].into()),
                room: Semaphore::new(0),
                waiting: Waiting::default(),
                cores: AtomicUsize::new(1),
                ttl: AtomicU8::new(0),
            };
            drop(queue);
            client.read(&mut [0]).await.map_err(|error| error.kind())
        });
        assert_eq!(left.unwrap(), [Err(io::ErrorKind::ConnectionReset)]);
    }
}
