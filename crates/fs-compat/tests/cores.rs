//! Two cores that receive half of each other's packets.

mod common;

use common::{CLIENT, SERVER, ending_within, runtime, server};
use fs_compat::{TcpListener, TcpStream};
use fs_core::{Framing, IfaceId, RxFrame, TxFrame};
use fs_rt::{CoreStats, LinkChoice, Runtime, Standalone};
use fs_xdp::{Link, LinkCaps, LinkStats, UmemPool};
use fs_xdp::{MemoryLink, memory_pair};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A link to both cores of the other side. It distributes packets in turn, regardless of their
/// flow, or sends all to the first core. It must be polled.
struct Dealer {
    ends: [MemoryLink; 2],
    turn: usize,
    only_first: bool,
    one: Vec<TxFrame>,
}

impl Link for Dealer {
    fn caps(&self) -> &LinkCaps {
        self.ends[0].caps()
    }

    fn rx(&mut self, pool: &mut UmemPool, iface: IfaceId, out: &mut Vec<RxFrame>, max: usize) -> usize {
        self.ends.iter_mut().map(|end| end.rx(pool, iface, out, max)).sum()
    }

    fn tx(&mut self, pool: &mut UmemPool, frames: &mut Vec<TxFrame>) -> io::Result<usize> {
        let mut sent = 0;
        while !frames.is_empty() {
            self.turn += usize::from(!self.only_first);
            loop {
                let frame = frames.remove(0);
                let more = frame.frame.more();
                self.one.push(frame);
                if !more {
                    break;
                }
            }
            if self.ends[self.turn % 2].tx(pool, &mut self.one)? == 0 {
                // The queue is full, so the packet is lost, as in a NIC.
                self.one.drain(..).for_each(|tx| fs_core::FramePool::free(pool, tx.frame));
            }
            sent += 1;
        }
        Ok(sent)
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
        for end in self.ends {
            Box::new(end).close(pool);
        }
    }
}

/// A client of one core and a server of two. Bare IP, so there are no neighbours to resolve.
fn world() -> (Runtime, Runtime) {
    let (client, server) = links(false);
    (runtime(Standalone::new().addr(CLIENT, 24), client), runtime(Standalone::new().addr(SERVER, 24), server))
}

type Links = Vec<Box<dyn Link>>;

/// Returns the link of the client and those of the server. `only_first`: the server's first core
/// receives all packets.
fn links(only_first: bool) -> (Links, Links) {
    let (to_first, first) = memory_pair(Framing::Ip, 1500).unwrap();
    let (to_second, second) = memory_pair(Framing::Ip, 1500).unwrap();
    let dealer = Dealer { ends: [to_first, to_second], turn: 0, only_first, one: Vec::new() };
    (vec![Box::new(dealer)], vec![Box::new(first), Box::new(second)])
}

fn total(stats: &[CoreStats], counter: &str) -> u64 {
    let of = |core: &CoreStats| core.stack.counters().find(|(name, _)| *name == counter).map(|(_, n)| n);
    stats.iter().map(|core| of(core).unwrap_or_else(|| panic!("no counter {counter}"))).sum()
}

async fn echo(listener: TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::task::spawn_local(async move {
            let (mut reader, mut writer) = stream.split();
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
        });
    }
}

async fn ask(n: u32, bytes: usize) {
    let mut stream = TcpStream::connect(server(7)).await.unwrap();
    let question = vec![n as u8; bytes];
    stream.write_all(&question).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer == question, "{} bytes came back of {bytes}", answer.len());
}

#[test]
fn misdirected_packets_reach_their_core() {
    let (client, server) = world();
    let handle = server.handle();
    let serving =
        std::thread::spawn(move || server.run(|_| async { echo(TcpListener::bind("0.0.0.0:7").await.unwrap()).await }));
    let asked = client.run(|_| async {
        tokio::time::timeout(Duration::from_secs(60), async {
            for n in 0..100 {
                ask(n, 20_000).await;
            }
        })
        .await
        .expect("longer than 60 s");
    });
    handle.shutdown(Duration::from_millis(500));
    drop(serving.join().unwrap());
    asked.unwrap();
    let stats = handle.stats();
    assert_eq!(total(&stats, "accepted"), 100);
    assert!(stats.iter().all(|core| core.runtime.messages_sent > 0 && core.runtime.messages_received > 0), "{stats:?}");
    assert!(stats.iter().all(|core| core.runtime.mailbox_full == 0));
    // No client saw a reset: `ask` would have failed. (A reset in response to an ACK that was
    // overtaken by the end of its connection is allowed by RFC 9293 3.10.7.1, and meets TIME-WAIT.)
}

/// Messages from one side to the other.
#[derive(Default)]
struct Course {
    listening: AtomicUsize,
    asked: AtomicUsize,
    has_stopped: AtomicBool,
}

async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn core_stops_listening_without_resets() {
    let (client, server) = world();
    let handle = server.handle();
    let course = Arc::new(Course::default());
    let of_server = course.clone();
    let serving = std::thread::spawn(move || {
        server.run(move |core| {
            let course = of_server.clone();
            async move {
                let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
                course.listening.fetch_add(1, SeqCst);
                if core.index() == 0 {
                    return echo(listener).await;
                }
                // Stops in the middle of the load. Accepted connections continue.
                let accepting = tokio::task::spawn_local(echo(listener));
                until(|| course.asked.load(SeqCst) >= 100).await;
                accepting.abort();
                course.has_stopped.store(true, SeqCst);
            }
        })
    });
    let asked = client.run(move |_| {
        let course = course.clone();
        async move {
            tokio::time::timeout(Duration::from_secs(60), async {
                until(|| course.listening.load(SeqCst) == 2).await;
                let (mut n, mut after) = (0, 0);
                while after < 25 {
                    after += u32::from(course.has_stopped.load(SeqCst));
                    let batch = (0..16).map(|k| {
                        let course = course.clone();
                        tokio::task::spawn_local(async move {
                            ask(n + k, 300).await;
                            course.asked.fetch_add(1, SeqCst);
                        })
                    });
                    for task in batch.collect::<Vec<_>>() {
                        task.await.unwrap();
                    }
                    n += 16;
                }
                n
            })
            .await
            .expect("longer than 60 s")
        }
    });
    handle.shutdown(Duration::from_millis(500));
    drop(serving.join().unwrap());
    let asked = asked.unwrap()[0];
    assert_eq!(total(&handle.stats(), "accepted"), u64::from(asked));
}

#[test]
fn idle_core_receives_until_all_cores_have_sent_everything() {
    const BYTES: usize = 200_000;
    let (of_client, of_server) = links(true);
    let client = runtime(Standalone::new().addr(CLIENT, 24), of_client);
    let server = ending_within(Duration::from_secs(20), Standalone::new().addr(SERVER, 24), of_server);
    let written = Arc::new(AtomicBool::new(false));
    let has_written = written.clone();
    let serving = std::thread::spawn(move || {
        server.run(move |core| async move {
            // The connection is core 1's, and all its packets arrive at core 0, which is idle.
            if core.index() == 1 {
                let listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(&[7; BYTES]).await.unwrap();
                has_written.store(true, SeqCst);
            }
            // The run ends without a shutdown.
        })
    });
    let read = client.run(move |_| {
        let written = written.clone();
        async move {
            let mut stream = connect_until_it_listens().await;
            until(|| written.load(SeqCst)).await;
            // The end of the run begins.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let mut all = Vec::new();
            let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut all)).await;
            (all.len(), read.map(|end| end.map_err(|e| e.kind())))
        }
    });
    serving.join().unwrap().unwrap();
    assert_eq!(read.unwrap(), [(BYTES, Ok(Ok(BYTES)))]);
}

async fn connect_until_it_listens() -> TcpStream {
    loop {
        match TcpStream::connect(server(7)).await {
            Ok(stream) => return stream,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

#[test]
fn task_is_spawned_on_a_core_from_outside() {
    let (a, b) = memory_pair(Framing::Ip, 1500).unwrap();
    let runtime = Runtime::builder()
        .cores([0, 0])
        .pin(false)
        .link(LinkChoice::Memory(vec![Box::new(a), Box::new(b)]))
        .standalone(Standalone::new().addr(SERVER, 24))
        .frames(1024)
        .build()
        .unwrap();
    let handle = runtime.handle();
    let (sender, receiver) = std::sync::mpsc::channel();
    let (slept, sleeps) = std::sync::mpsc::channel();
    let outside = std::thread::spawn(move || {
        (0..2).for_each(|_| sleeps.recv().expect("a core sleeps"));
        // By now they have slept for long.
        std::thread::sleep(Duration::from_millis(200));
        for core in 0..2 {
            let sender = sender.clone();
            let task = move || async move {
                sender.send((core, fs_rt::CoreRef::current().map(|core| core.index()))).unwrap();
            };
            handle.spawn_on(core, task).unwrap();
        }
        assert!(handle.spawn_on(2, || async {}).is_err());
        let mut ran = [0; 2].map(|_| receiver.recv_timeout(Duration::from_secs(60)).expect("a task runs"));
        ran.sort();
        handle.shutdown(Duration::from_secs(20));
        (handle, ran)
    });
    let app = move |core: fs_rt::CoreCtx| {
        let slept = slept.clone();
        async move {
            until(|| core.stats().runtime.sleeps > 0).await;
            slept.send(()).unwrap();
            fs_rt::shutdown_signal().await;
        }
    };
    runtime.run(app).unwrap();
    let (handle, ran) = outside.join().unwrap();
    assert_eq!(ran, [(0, Some(0)), (1, Some(1))]);
    assert!(handle.spawn_on(0, || async {}).is_err());
    for core in handle.stats() {
        assert!(core.runtime.sleeps > 0, "{core:?}");
        assert!(core.runtime.turns < 100_000, "an idle core has to sleep: {core:?}");
    }
}
