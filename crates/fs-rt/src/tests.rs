//! Tests of building and ending runtimes.

mod sleep;

use crate::kernel::WorldChange;
use crate::ports::cooling::CooledQuestions;
use crate::shared::Message;
use crate::sys::EventFd;
use crate::{BuildError, CoreRef, LinkChoice, RunError, Runtime, Source, SpawnError, Standalone};
use fs_core::{
    Connect, Frame, FramePool, Framing, IfaceId, Protocol, RxChecksum, RxFrame, TcpOptions, TcpState, TxFrame,
};
use fs_xdp::{Link, LinkCaps, LinkStats, Umem, UmemConfig, UmemPool};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

const ADDR: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1));

/// Creates a runtime of one core, and its link's other end.
fn runtime() -> (Runtime, Box<dyn Link>) {
    runtime_on(&[])
}

/// Like [`runtime`], with the name of the first of these devices for the link.
fn runtime_on(devices: &[&str]) -> (Runtime, Box<dyn Link>) {
    let (ours, theirs) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let builder = Runtime::builder().cores([0]).pin(false).frames(256);
    let builder = devices.iter().fold(builder, |builder, device| builder.device(*device));
    let builder = builder.link(LinkChoice::Memory(vec![Box::new(ours)])).standalone(Standalone::new().addr(ADDR, 24));
    (builder.build().unwrap(), Box::new(theirs))
}

#[test]
fn inbox_and_reader_exchange_two_buffers() {
    let inbox = crate::mailbox::Inbox::new().unwrap();
    let mut arrived = Vec::new();
    let mut buffers = std::collections::BTreeSet::new();
    for round in 0..10 {
        inbox.send(round);
        assert!(inbox.is_pending());
        inbox.swap(&mut arrived);
        assert!(!inbox.is_pending());
        assert_eq!(arrived, [round]);
        buffers.insert(arrived.as_ptr() as usize);
        arrived.clear();
    }
    assert_eq!(buffers.len(), 2);
}

/// In a container with a quota of CPUs, fewer than the process's CPUs.
#[test]
fn kernel_sockets_have_as_many_cores_as_tokio_has_workers() {
    let runtime = Runtime::builder().link(LinkChoice::Kernel).build().unwrap();
    assert_eq!(runtime.handle().cores(), std::thread::available_parallelism().unwrap().get());
}

#[test]
fn invalid_settings_name_cause_and_remedy() {
    let error = Runtime::builder().cores([0]).build().unwrap_err();
    assert!(matches!(error, BuildError::NoDevice), "{error}");
    let error = Runtime::builder().device("lo").build().unwrap_err();
    assert!(matches!(error, BuildError::Loopback { .. }), "cores are chosen: {error}");
    let error = Runtime::builder().device("nosuch0").cores([0]).build().unwrap_err();
    assert!(matches!(&error, BuildError::NoSuchDevice { device } if device == "nosuch0"), "{error}");
    let error = Runtime::builder().device("lo").cores([4711]).build().unwrap_err();
    assert!(matches!(error, BuildError::NoSuchCpu { cpu: 4711, .. }), "{error}");
    let error = Runtime::builder().device("lo").cores([0]).link(LinkChoice::Packet).build().unwrap_err();
    assert!(error.to_string().contains(".standalone("), "{error}");
    for link in [LinkChoice::XdpAuto, LinkChoice::Packet] {
        let mut builder = Runtime::builder().device("lo").cores([0]);
        if matches!(link, LinkChoice::Packet) {
            builder = builder.standalone(Standalone::new().addr(ADDR, 24));
        }
        let error = builder.link(link).build().unwrap_err();
        assert!(matches!(&error, BuildError::Loopback { device } if device == "lo"), "{error}");
        assert!(error.to_string().contains("ip route get"), "{error}");
    }
    let own = Standalone::new().addr(ADDR, 24);
    let error = Runtime::builder().device("lo").cores([0]).standalone(own).build().unwrap_err();
    assert!(error.to_string().contains("AF_XDP uses the host's addresses"), "{error}");
    let error = Runtime::builder().device("lo").cores([0]).frame_size(1000).build().unwrap_err();
    assert!(error.to_string().contains("2048 or 4096"), "{error}");
    let veth = || Runtime::builder().device("nosuch0").cores([0]);
    for (builder, cure) in [
        (veth().cores([0, 0]), "name each CPU once"),
        (veth().frames(10), "raise .frames(…)"),
        (veth().ephemeral_ports(70_000), "lower .ephemeral_ports(…)"),
        (veth().cores([0, 1, 2]).ephemeral_ports(3), ".ephemeral_ports(4) is the minimum"),
        (veth().ephemeral_ports_from(60_000), ".ephemeral_ports_from(…)"),
        (veth().ephemeral_ports_from(0), ".ephemeral_ports_from(…)"),
        (veth().queues([]), "omit it to take all"),
        (veth().queues([3, 2, 3]), "queue 3 is named twice"),
        (veth().queues([1]).ask_for_routes(false), "remove .ask_for_routes(false)"),
        (veth().queues([1]).link(LinkChoice::Tap).standalone(Standalone::new().addr(ADDR, 24)), "remove .queues(…)"),
    ] {
        let error = builder.build().unwrap_err();
        assert!(matches!(error, BuildError::Config(_)) && error.to_string().contains(cure), "{error}");
    }
}

/// `fn main() -> Result<(), Box<dyn Error>>` prints the error by `Debug`.
#[test]
fn error_returned_by_main_names_its_remedy() {
    let error = Runtime::builder().device("nosuch0").cores([0]).build().unwrap_err();
    let error: Box<dyn std::error::Error> = error.into();
    assert!(format!("{error:?}").contains("`ip link` lists"), "{error:?}");
    let (runtime, _peer) = runtime();
    let error = runtime.run(|_| async { panic!("on purpose") }).unwrap_err();
    assert_eq!(format!("{error:?}"), "core 0 panicked: on purpose");
}

#[test]
fn spawn_on_missing_core_is_refused() {
    let (runtime, _peer) = runtime();
    let handle = runtime.handle();
    let error = handle.spawn_on(7, || async {}).unwrap_err();
    assert_eq!(error, SpawnError::NoSuchCore { core: 7, cores: 1 });
    assert!(error.to_string().contains("the runtime has 1"), "{error}");
    runtime.run(|_| async {}).unwrap();
    assert_eq!(handle.spawn_on(0, || async {}), Err(SpawnError::Ended));
}

/// A task that waits for a core would wait for ever.
#[test]
fn runtime_dropped_without_a_run_has_ended() {
    let (runtime, _peer) = runtime();
    let handle = runtime.handle();
    drop(runtime);
    assert!(handle.has_ended());
    assert_eq!(handle.spawn_on(0, || async {}), Err(SpawnError::Ended));
}

#[test]
fn run_returns_the_results_of_the_futures() {
    let (runtime, _peer) = runtime();
    let answer = runtime.run(|core| async move {
        tokio::time::sleep(Duration::from_millis(5)).await;
        crate::turn().await;
        (core.index(), core.cores())
    });
    assert_eq!(answer.unwrap(), [(0, 1)]);
}

#[test]
fn panic_ends_the_run_with_its_message() {
    let (runtime, _peer) = runtime();
    let error = runtime.run(|_| async { panic!("on purpose") }).unwrap_err();
    assert!(matches!(&error, RunError::Panicked { core: 0, message } if message == "on purpose"), "{error}");
}

#[test]
fn ignored_shutdown_ends_at_its_deadline() {
    let (runtime, _peer) = runtime();
    let handle = runtime.handle();
    handle.shutdown(Duration::from_secs(60));
    // A second request can only shorten the deadline.
    handle.shutdown(Duration::from_millis(100));
    handle.shutdown(Duration::from_secs(60));
    assert!(handle.is_shutting_down());
    let started = Instant::now();
    let error = runtime.run(|_| std::future::pending::<()>()).unwrap_err();
    assert!(matches!(error, RunError::Deadline { core: 0 }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

/// Connects over a dead link and returns the error of the run.
fn dead_link_on(devices: &[&str]) -> RunError {
    let (runtime, peer) = runtime_on(devices);
    drop(peer);
    let error = runtime.run(|_| async {
        let core = crate::CoreRef::current().unwrap();
        let remote = "10.9.0.2:1".parse().unwrap();
        let connect = fs_core::Connect { remote, local: None, options: Default::default() };
        core.stack(|stack| stack.tcp_connect(connect)).unwrap();
        std::future::pending::<()>().await
    });
    error.unwrap_err()
}

/// Packets of the dead queue would be lost. If the device were gone, the run would continue with
/// the others.
#[test]
fn dead_queue_of_a_present_device_ends_the_run() {
    let error = dead_link_on(&["lo", "nosuch0"]);
    assert!(matches!(&error, RunError::Link { interface: 0, device, .. } if device == "lo"), "{error}");
}

#[test]
fn dead_link_ends_the_run() {
    let error = dead_link_on(&[]);
    assert!(matches!(&error, RunError::Link { interface: 0, device, .. } if device == "link 0"), "{error}");
}

/// Work for a core from another thread.
#[derive(Default)]
struct Work {
    given: AtomicUsize,
    asleep: AtomicBool,
}

struct Shelf {
    work: Arc<Work>,
    taken: Cell<usize>,
    task: RefCell<Option<Waker>>,
}

impl Source for Shelf {
    fn poll(&self) -> usize {
        let new = self.work.given.load(SeqCst) - self.taken.get();
        if new > 0 {
            self.taken.update(|taken| taken + new);
            self.task.take().into_iter().for_each(Waker::wake);
        }
        new
    }

    fn prepare_sleep(&self) -> bool {
        self.work.asleep.store(true, SeqCst);
        self.work.given.load(SeqCst) == self.taken.get()
    }

    fn awake(&self) {
        self.work.asleep.store(false, SeqCst);
    }
}

#[test]
fn source_is_polled_in_each_turn_and_wakes_a_sleeping_core() {
    const ROUNDS: usize = 20;
    let (runtime, _peer) = runtime();
    let (work, doorbell) = (Arc::new(Work::default()), EventFd::new().unwrap());
    let for_core = (work.clone(), doorbell.as_fd().try_clone_to_owned().unwrap());
    let giver = std::thread::spawn(move || {
        for round in 0..2 * ROUNDS {
            // Alternately to a sleeping core and to one that may be awake.
            while round % 2 == 0 && !work.asleep.load(SeqCst) {
                std::thread::yield_now();
            }
            work.given.fetch_add(1, SeqCst);
            if work.asleep.swap(false, SeqCst) {
                doorbell.notify();
            }
        }
    });
    let started = Instant::now();
    let for_core = Arc::new(Mutex::new(Some(for_core)));
    runtime
        .run(move |_| async move {
            let (work, doorbell) = for_core.lock().unwrap().take().unwrap();
            let source = Rc::new(Shelf { work, taken: 0.into(), task: RefCell::default() });
            CoreRef::require().unwrap().add_source(source.clone(), doorbell).unwrap();
            poll_fn(|cx| {
                source.task.replace(Some(cx.waker().clone()));
                if source.taken.get() == 2 * ROUNDS { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        })
        .unwrap();
    giver.join().unwrap();
    // Without the doorbell, the core would find the work at its check of the link, up to a second
    // later each time.
    assert!(started.elapsed() < Duration::from_secs(ROUNDS as u64 / 2));
}

/// The queues carry what the device did when they were opened.
#[test]
fn raised_mtu_is_limited_to_that_of_the_queues() {
    let (runtime, _peer) = runtime();
    let seen = runtime.run(|_| async {
        let core = CoreRef::require().unwrap();
        let mut seen = Vec::new();
        for mtu in [1280, 9000] {
            let change = WorldChange::Device { iface: IfaceId(0), mac: [2; 6], mtu };
            core.0.shared.inboxes[0].send(Message::World(change));
            for _ in 0..2 {
                crate::turn().await;
            }
            seen.push(core.inspect(|stack| stack.interface(IfaceId(0)).unwrap().mtu));
        }
        seen
    });
    assert_eq!(seen.unwrap(), [[1280, 1500]]);
}

/// A link whose kernel takes packets only when it is called for the 20th time.
struct Reluctant {
    link: Box<dyn Link>,
    unsent: Vec<TxFrame>,
    calls: usize,
}

impl Link for Reluctant {
    fn caps(&self) -> &LinkCaps {
        self.link.caps()
    }

    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize {
        self.link.rx(pool, iface, out, max)
    }

    fn tx(&mut self, _: &mut UmemPool, frames: &mut Vec<TxFrame>) -> std::io::Result<usize> {
        let sent = frames.len();
        self.unsent.append(frames);
        Ok(sent)
    }

    fn reap(&mut self, pool: &mut UmemPool) -> bool {
        self.calls += usize::from(!self.unsent.is_empty());
        if self.calls >= 20 {
            self.link.tx(pool, &mut self.unsent).unwrap();
        }
        !self.unsent.is_empty()
    }

    fn has_unsent(&mut self) -> bool {
        !self.unsent.is_empty()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.wake_fd()
    }

    fn prepare_sleep(&mut self, pool: &mut UmemPool) -> bool {
        self.reap(pool);
        self.link.prepare_sleep(pool)
    }

    fn stats(&self) -> LinkStats {
        self.link.stats()
    }

    fn close(self: Box<Self>, pool: &mut UmemPool) {
        self.unsent.into_iter().for_each(|tx| pool.free(tx.frame));
        self.link.close(pool);
    }
}

/// Without another packet to send, with a core that polls and one that sleeps.
#[test]
fn packets_that_the_kernel_has_not_taken_are_offered_again() {
    for busy_poll in [true, false] {
        let (ours, mut peer) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
        let link = Box::new(Reluctant { link: Box::new(ours), unsent: Vec::new(), calls: 0 });
        let builder = Runtime::builder().cores([0]).pin(false).frames(256).link(LinkChoice::Memory(vec![link]));
        let builder = builder.standalone(Standalone::new().addr(ADDR, 24)).busy_poll(busy_poll);
        let runtime = builder.build().unwrap();
        let handle = runtime.handle();
        let core = std::thread::spawn(move || {
            runtime.run(|_| async {
                let core = CoreRef::require().unwrap();
                let id = core.stack(|stack| stack.udp_bind(SocketAddr::new(ADDR, 7))).unwrap();
                let to = "10.9.0.2:7".parse().unwrap();
                core.stack(|stack| stack.udp_send(id, b"late", Some(to))).unwrap();
                crate::shutdown_signal().await;
            })
        });
        let umem = Umem::new(UmemConfig { chunks: 64, chunk_size: 2048 }).unwrap();
        let mut pool = umem.pool(64).unwrap();
        let (began, mut arrived) = (Instant::now(), Vec::new());
        while arrived.is_empty() && began.elapsed() < Duration::from_secs(10) {
            peer.rx(&mut pool, IfaceId(0), &mut arrived, 1);
            std::thread::yield_now();
        }
        assert_eq!(arrived.len(), 1, "busy_poll: {busy_poll}");
        arrived.drain(..).for_each(|rx| pool.free(rx.frame));
        handle.shutdown(Duration::from_secs(1));
        core.join().unwrap().unwrap();
    }
}

/// A queue whose device has `lent` to write to.
struct Lending {
    caps: LinkCaps,
    lent: Vec<Frame>,
}

impl Link for Lending {
    fn caps(&self) -> &LinkCaps {
        &self.caps
    }

    fn rx(&mut self, _: &mut UmemPool, _: IfaceId, _: &mut Vec<RxFrame>, _: usize) -> usize {
        0
    }

    fn tx(&mut self, _: &mut UmemPool, _: &mut Vec<TxFrame>) -> std::io::Result<usize> {
        Ok(0)
    }

    fn reap(&mut self, _: &mut UmemPool) -> bool {
        false
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn prepare_sleep(&mut self, _: &mut UmemPool) -> bool {
        true
    }

    fn stats(&self) -> LinkStats {
        LinkStats::default()
    }

    fn close(self: Box<Self>, pool: &mut UmemPool) {
        self.lent.into_iter().for_each(|frame| pool.free(frame));
    }
}

/// With zero copy the device writes to a closed queue's frames until the kernel has taken them back from
/// its driver.
#[test]
fn frames_of_a_closed_queue_are_kept_until_it_is_closed_again() {
    let (runtime, _peer) = runtime();
    let seen = runtime.run(|_| async {
        let core = CoreRef::require().unwrap();
        let caps = core.0.io.borrow().ports[0].link.caps().clone();
        let lent = core.stack(|stack| (0..40).map_while(|_| stack.pool_mut().alloc()).collect());
        core.0.io.borrow_mut().add(Box::new(Lending { caps, lent }), IfaceId(0), Some(1));
        let state = || (core.0.io.borrow().queues(), core.stack(|stack| stack.pool_mut().in_use()));
        let mut seen = vec![state()];
        for _ in 0..2 {
            core.0.shared.close_queue(IfaceId(0), 1);
            for _ in 0..2 {
                crate::turn().await;
            }
            seen.push(state());
        }
        (seen, core.0.io.borrow().ports.len())
    });
    let (seen, ports) = seen.unwrap().remove(0);
    let before = seen[0].1;
    assert_eq!((seen, ports), (vec![(2, before), (1, before), (1, before - 40)], 1));
}

/// Returns the Internet checksum (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The socket is closed, and the peer is slow.
#[test]
fn port_is_not_freed_while_its_connection_still_sends() {
    let (runtime, _peer) = runtime();
    let seen = runtime.run(|_| async {
        let core = CoreRef::require().unwrap();
        let lease = || core.lease(Protocol::Tcp, SocketAddr::new(ADDR, 0), false).unwrap();
        let first = lease();
        let (port, remote) = (first.addr(), "10.9.0.2:80".parse().unwrap());
        let connect = Connect { remote, local: Some(port), options: TcpOptions::default() };
        let arrive = |seq: u8, flags: u8| {
            core.stack(|stack| {
                let mut frame = stack.pool_mut().alloc().unwrap();
                frame.grow_back(40);
                let segment = stack.pool_mut().bytes_mut(&mut frame);
                segment.fill(0);
                segment[..10].copy_from_slice(&[0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6]);
                segment[12..20].copy_from_slice(&[10, 9, 0, 2, 10, 9, 0, 1]);
                segment[20..22].copy_from_slice(&80_u16.to_be_bytes());
                segment[22..24].copy_from_slice(&port.port().to_be_bytes());
                // 20 bytes of header, and the window.
                (segment[27], segment[32], segment[33], segment[34]) = (seq, 0x50, flags, 1);
                let sum = checksum(&segment[..20]);
                segment[10..12].copy_from_slice(&sum.to_be_bytes());
                stack.rx_batch(&mut vec![RxFrame { frame, iface: IfaceId(0), checksum: RxChecksum::Verified }]);
            });
        };
        let id = core.stack(|stack| stack.tcp_connect(connect)).unwrap();
        // The peer connects at the same time, so the closed socket still has a FIN to send.
        arrive(0, 2);
        assert_eq!(core.stack(|stack| stack.tcp_state(id)), Ok(TcpState::SynReceived));
        core.stack(|stack| stack.tcp_close(id));
        drop((first.for_connection(), first));
        let mut ports = Vec::new();
        let (mut questions, mut now) = (CooledQuestions::default(), Instant::now());
        for _ in 0..2 {
            now += Duration::from_secs(400);
            core.0.shared.free_ports(&mut questions, now);
            for _ in 0..2 {
                crate::turn().await;
            }
            core.0.shared.free_ports(&mut questions, now);
            ports.push(lease().addr() == port);
            // A reset ends it.
            arrive(1, 4);
        }
        ports
    });
    assert_eq!(seen.unwrap(), [[false, true]], "the port is free again");
}

/// The messages behind it in the inbox are carried out.
#[test]
fn panic_of_a_spawned_closure_ends_its_task() {
    let (runtime, _peer) = runtime();
    let seen = runtime.run(|_| async {
        let core = CoreRef::require().unwrap();
        core.handle().spawn_on(0, || -> std::future::Ready<()> { panic!("on purpose") }).unwrap();
        core.0.shared.inboxes[0].send(Message::World(WorldChange::Device {
            iface: IfaceId(0),
            mac: [2; 6],
            mtu: 1280,
        }));
        // As a task's connect does.
        let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| core.0.read_inbox()));
        crate::turn().await;
        (read.is_ok(), core.inspect(|stack| stack.interface(IfaceId(0)).unwrap().mtu))
    });
    assert_eq!(seen.unwrap(), [(true, 1280)]);
}

#[test]
fn longest_durations_are_endless() {
    let (ours, _theirs) = fs_xdp::memory_pair(Framing::Ip, 1500).unwrap();
    let tcp = fs_core::TcpConfig { time_wait: Duration::MAX, ..Default::default() };
    let builder = Runtime::builder().cores([0]).pin(false).frames(256).spin(Duration::MAX).drain(Duration::MAX);
    let builder = builder.link(LinkChoice::Memory(vec![Box::new(ours)])).standalone(Standalone::new().addr(ADDR, 24));
    let seen = builder.tcp(tcp).build().unwrap().run(|_| async {
        let core = CoreRef::require().unwrap();
        let lease = core.lease(Protocol::Tcp, SocketAddr::new(ADDR, 7), false).unwrap();
        drop((lease.for_connection(), lease));
        core.0.shared.free_ports(&mut CooledQuestions::default(), Instant::now() + Duration::from_secs(1 << 20));
        core.handle().shutdown(Duration::MAX);
        crate::shutdown_signal().await;
    });
    assert_eq!(seen.unwrap(), [()]);
}
