//! Records of a program's own instruments: a recorder of crate `metrics`, a subscriber of
//! `tracing`.

mod common;
#[path = "common/lines.rs"]
mod lines;

use common::{both, server};
use fs_compat::{TcpListener, TcpStream};
use fs_rt::CoreRef;
use lines::Lines;
use metrics::{Counter, CounterFn, Gauge, GaugeFn, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Name and labels, and the last recorded value. A counter is stored as a negative value, to
/// distinguish it from a gauge.
#[derive(Clone, Default)]
struct Recorded(Arc<Mutex<BTreeMap<String, f64>>>);

struct One(Recorded, String);

impl CounterFn for One {
    fn increment(&self, _: u64) {
        unreachable!("cores publish what they have counted");
    }

    fn absolute(&self, value: u64) {
        self.0.0.lock().unwrap().insert(self.1.clone(), -(value as f64));
    }
}

impl GaugeFn for One {
    fn increment(&self, _: f64) {
        unreachable!("as above");
    }

    fn decrement(&self, _: f64) {
        unreachable!("as above");
    }

    fn set(&self, value: f64) {
        self.0.0.lock().unwrap().insert(self.1.clone(), value);
    }
}

impl Recorded {
    fn one(&self, key: &Key) -> Arc<One> {
        let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
        Arc::new(One(self.clone(), format!("{}{{{}}}", key.name(), labels.join(","))))
    }
}

impl Recorded {
    /// Returns true if everything is recorded that a connection with one request causes. (Counters
    /// are negative.)
    fn has_all(&self) -> bool {
        let recorded = self.0.lock().unwrap();
        let value = |name| recorded.get(name).copied().unwrap_or_default();
        value("fastsock_core_connections{core=0}") == 1.0
            && value("fastsock_link_tx_packets{core=0}") <= -3.0
            && value("fastsock_stack_rx_packets{core=0}") <= -2.0
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.one(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.one(key))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

async fn answer(port: u16) {
    let listener = TcpListener::bind(("0.0.0.0", port)).await.unwrap();
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut buffer = [0; 5];
        stream.read_exact(&mut buffer).await.unwrap();
        stream.write_all(&buffer).await.unwrap();
    }
}

async fn ask(port: u16) -> TcpStream {
    let mut stream = TcpStream::connect(server(port)).await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    stream.read_exact(&mut [0; 5]).await.unwrap();
    stream
}

#[test]
fn recorder_gets_the_cores_counters() {
    let recorded = Recorded::default();
    let of_client = recorded.clone();
    both(
        |_| answer(7),
        |_| async move {
            let _stream = ask(7).await;
            let handle = CoreRef::current().unwrap().handle();
            // Cores publish about ten times a second.
            let begun = std::time::Instant::now();
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                metrics::with_local_recorder(&of_client, || fs_rt::metrics::record(&handle));
                if of_client.has_all() {
                    break;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", of_client.0.lock().unwrap());
            }
        },
    );
    let recorded = recorded.0.lock().unwrap();
    assert!(recorded.keys().all(|name| name.starts_with("fastsock_")), "{recorded:?}");
}

/// The recording thread runs until the runtime ends, and not longer.
#[test]
fn recording_thread_ends_with_the_runtime() {
    let (handles, handle) = std::sync::mpsc::channel();
    both(
        |_| answer(8),
        move |_| async move {
            let handle = CoreRef::current().unwrap().handle();
            handles.send(fs_rt::metrics::every(handle, Duration::from_millis(20)).unwrap()).unwrap();
            ask(8).await;
        },
    );
    let thread = handle.recv().unwrap();
    thread.join().unwrap();
}

#[test]
fn subscriber_gets_events_of_cores_and_connections() {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG);
    subscriber.with_ansi(false).with_writer(lines.clone()).init();
    both(|_| answer(9), |_| async { drop(ask(9).await) });
    let said = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let has = |parts: &[&str]| said.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has(&["core{index=0", "core started"]), "{said}");
    assert!(has(&["core{index=0", "connection opened", "remote=10.9.0.1:9"]), "{said}");
    assert!(has(&["core{index=0", "connection opened", "local=10.9.0.1:9"]), "{said}");
    assert!(has(&["core{index=0", "connection closed", "remote=10.9.0.1:9"]), "{said}");
    assert!(has(&["core{index=0", "core ended"]), "{said}");
}
