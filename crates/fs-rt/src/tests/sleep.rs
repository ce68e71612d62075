//! Tests of cores that sleep and are woken.

use super::{ADDR, runtime};
use crate::sys::EventFd;
use crate::{CoreRef, LinkChoice, Runtime, Source, Standalone};
use fs_core::{Connect, FramePool, Framing, IfaceId, Listen, TcpOptions, TxFrame};
use fs_xdp::{Umem, UmemConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn idle_core_sleeps_until_a_deadline() {
    let (runtime, _peer) = runtime();
    let handle = runtime.handle();
    // On a busy machine the time may pass before the first sleep.
    let app = |core: crate::CoreCtx| async move {
        until(|| core.stats().runtime.sleeps > 0).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    runtime.run(app).unwrap();
    let stats = handle.stats().pop().unwrap().runtime;
    assert!(stats.sleeps < 20, "{stats:?}");
}

/// The limit is the process's, so the test runs itself again in one of its own.
#[test]
fn core_sleeps_after_descriptors_were_short() {
    const ALONE: &str = "FS_RT_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "tests::sleep::core_sleeps_after_descriptors_were_short", "--nocapture"]);
        assert!(alone.env(ALONE, "1").status().unwrap().success());
        return;
    }
    let (runtime, _peer) = runtime();
    let sleeps = runtime.run(|_| async {
        let core = CoreRef::require().unwrap();
        let sleeps = || core.0.snapshot().runtime.sleeps;
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        core.0.links_changed.set(true);
        let before = sleeps();
        until(|| sleeps() > before + 20).await;
        setrlimit(Resource::Nofile, limit).unwrap();
        tokio::time::sleep(Duration::from_millis(10)).await;
        let before = sleeps();
        tokio::time::sleep(Duration::from_millis(500)).await;
        sleeps() - before
    });
    let sleeps = sleeps.unwrap()[0];
    assert!(sleeps < 20, "{sleeps} sleeps of a core that its link wakes");
}

/// State of a core that another thread sees.
#[derive(Default)]
struct Seen {
    looks: AtomicUsize,
    /// There is work for the core.
    busy: AtomicBool,
    /// Number of times that the core has been busy for long.
    rounds: AtomicUsize,
    /// The last of these rounds in which the sender has seen it look.
    answered: AtomicUsize,
}

impl Source for Arc<Seen> {
    fn poll(&self) -> usize {
        self.looks.fetch_add(1, SeqCst);
        self.busy.load(SeqCst).into()
    }

    fn prepare_sleep(&self) -> bool {
        !self.busy.load(SeqCst)
    }

    fn awake(&self) {}
}

/// Repeats: the core is busy for a while and then idle. Returns whether a packet wakes it soon each
/// time, before its check once per second.
fn packets_wake_soon(rounds: usize) -> bool {
    const SOON: Duration = Duration::from_millis(300);
    let (runtime, mut peer) = runtime();
    let (seen, doorbell) = (Arc::new(Seen::default()), EventFd::new().unwrap());
    let for_core = seen.clone();
    let sender = std::thread::spawn(move || {
        let umem = Umem::new(UmemConfig { chunks: 64, chunk_size: 2048 }).unwrap();
        let mut pool = umem.pool(64).unwrap();
        let mut soon = true;
        for round in 1..=rounds {
            while seen.rounds.load(SeqCst) < round {
                std::thread::yield_now();
            }
            // By then it sleeps and has published its counters.
            std::thread::sleep(Duration::from_millis(300));
            let mut frame = pool.alloc().unwrap();
            frame.grow_back(40);
            let (before, sent) = (seen.looks.load(SeqCst), Instant::now());
            peer.tx(&mut pool, &mut vec![TxFrame { frame, checksum: None }]).unwrap();
            while seen.looks.load(SeqCst) == before {
                assert!(sent.elapsed() < Duration::from_secs(60), "the core never looks");
                std::thread::yield_now();
            }
            soon &= sent.elapsed() < SOON;
            seen.answered.store(round, SeqCst);
        }
        (peer, soon)
    });
    let for_core = Arc::new(Mutex::new(Some((for_core, doorbell.as_fd().try_clone_to_owned().unwrap(), doorbell))));
    runtime
        .run(move |_| async move {
            let (seen, doorbell, notifier) = for_core.lock().unwrap().take().unwrap();
            CoreRef::require().unwrap().add_source(Rc::new(seen.clone()), doorbell).unwrap();
            for round in 1..=rounds {
                seen.busy.store(true, SeqCst);
                notifier.notify();
                tokio::time::sleep(Duration::from_millis(5)).await;
                seen.busy.store(false, SeqCst);
                seen.rounds.store(round, SeqCst);
                // The sender may be late.
                while seen.answered.load(SeqCst) < round {
                    tokio::time::sleep(Duration::from_millis(800)).await;
                }
            }
        })
        .unwrap();
    sender.join().unwrap().1
}

/// On a busy machine a thread may wait for its turn, so one undisturbed run is enough.
#[test]
fn packet_wakes_a_core_that_was_busy_for_long() {
    assert!((0..5).any(|_| packets_wake_soon(3)), "not woken in one of three rounds, five times");
}

/// Waits for a condition.
async fn until(mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not come");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// An ACK waits for a frame, and there is none. The core still sleeps, and sends it when there is
/// one.
#[test]
fn core_without_frames_sleeps() {
    let (ours, theirs) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let of = |link, last| {
        let builder = Runtime::builder().cores([0]).pin(false).frames(256).link(LinkChoice::Memory(vec![link]));
        builder.standalone(Standalone::new().addr([10, 9, 0, last], 24)).build().unwrap()
    };
    let (server, client) = (of(Box::new(ours), 1), of(Box::new(theirs), 2));
    let at = SocketAddr::new(ADDR, 80);
    // Steps: it listens; it has taken the frames; the other end has its ACK.
    static STEPS: AtomicUsize = AtomicUsize::new(0);
    let client = std::thread::spawn(move || {
        client.run(move |_| async move {
            let core = CoreRef::require().unwrap();
            until(|| STEPS.load(SeqCst) == 1).await;
            let options = TcpOptions::default();
            let id = core.stack(|stack| stack.tcp_connect(Connect { remote: at, local: None, options })).unwrap();
            until(|| STEPS.load(SeqCst) == 2).await;
            core.stack(|stack| stack.tcp_send(id, b"hello")).unwrap();
            until(|| core.inspect(|stack| stack.tcp_queued(id)).is_ok_and(|(_, unacked)| unacked == 0)).await;
            STEPS.store(3, SeqCst);
        })
    });
    server
        .run(move |_| async move {
            let core = CoreRef::require().unwrap();
            let listen = Listen { at, backlog: 1, v6_only: false, fast_open: 0, options: TcpOptions::default() };
            let listener = core.stack(|stack| stack.tcp_listen(listen)).unwrap();
            STEPS.store(1, SeqCst);
            until(|| core.stack(|stack| stack.tcp_accept(listener)).is_ok()).await;
            // All but one, which the received packet takes.
            let mut held: Vec<_> = core.stack(|stack| std::iter::from_fn(|| stack.pool_mut().alloc()).collect());
            let last = held.pop().unwrap();
            core.stack(|stack| stack.pool_mut().free(last));
            STEPS.store(2, SeqCst);
            until(|| core.inspect(|stack| stack.tx_starved(IfaceId(0)))).await;
            // Not the published count, which an idle core leaves as it is.
            let sleeps = || core.0.snapshot().runtime.sleeps;
            let before = sleeps();
            until(|| sleeps() > before + 20).await;
            core.stack(|stack| held.into_iter().for_each(|frame| stack.pool_mut().free(frame)));
            until(|| STEPS.load(SeqCst) == 3).await;
        })
        .unwrap();
    // The other end may be gone before it has ended.
    let _ended = client.join().unwrap();
}

/// Its messages wait for a core that takes none. They arrive when it does.
#[test]
fn core_sleeps_next_to_one_that_takes_no_messages() {
    let (first, _peer) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let (second, _other) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let links = LinkChoice::Memory(vec![Box::new(first), Box::new(second)]);
    let builder = Runtime::builder().cores([0, 0]).pin(false).frames(256).link(links);
    let runtime = builder.standalone(Standalone::new().addr(ADDR, 24)).build().unwrap();
    let slept = Arc::new(AtomicBool::new(false));
    let seen = runtime.run(move |context| async move {
        let core = CoreRef::require().unwrap();
        if context.index() == 1 {
            let began = Instant::now();
            // For longer than the other core waits.
            while !slept.load(SeqCst) && began.elapsed() < Duration::from_secs(70) {
                std::thread::sleep(Duration::from_millis(1));
            }
            return 0;
        }
        // More than there is room for between two cores.
        let at = SocketAddr::new(ADDR, 80);
        let listen = Listen { at, backlog: 1, v6_only: false, fast_open: 0, options: TcpOptions::default() };
        for _ in 0..1000 {
            let id = core.stack(|stack| stack.tcp_listen(listen)).unwrap();
            core.stack(|stack| stack.tcp_close_listener(id));
        }
        until(|| core.0.io.borrow().has_waiting_mail()).await;
        let sleeps = || core.0.snapshot().runtime.sleeps;
        let before = sleeps();
        until(|| sleeps() > before + 20).await;
        slept.store(true, SeqCst);
        until(|| !core.0.io.borrow().has_waiting_mail()).await;
        sleeps() - before
    });
    assert!(seen.unwrap()[0] > 20);
}
