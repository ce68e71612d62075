//! A runtime starts while another one has the device, and takes it afterwards. In namespaces; needs
//! root.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::TcpListener;
use fs_rt::{Builder, Carrier, LinkChoice, Runtime, XdpMode};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use veth::{DEVICE, OURS, Wire, at};

const LIMIT: Duration = Duration::from_secs(60);

/// Tells each client of a port what carries its connection, until `over`.
fn serve(builder: Builder, port: u16, over: &Arc<AtomicBool>) -> Vec<u64> {
    let told = over.clone();
    let app = move |core: fs_rt::CoreCtx| async move {
        let listener = TcpListener::bind(at(OURS, port)).await.unwrap();
        fs_rt::spawn_local(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let carrier = if stream.carrier() == Carrier::Core { "core" } else { "kernel" };
                // The client may be gone.
                let _ = stream.write_all(carrier.as_bytes()).await;
            }
        });
        while !told.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        core.stats().links.iter().map(|(_, link)| link.rx_packets).collect()
    };
    builder.build().unwrap().run(app).unwrap().remove(0)
}

/// Connects as a kernel client, once the server listens.
fn carrier(wire: &Wire, port: u16) -> String {
    let until = Instant::now() + LIMIT;
    loop {
        match wire.peer.enter(|| std::net::TcpStream::connect_timeout(&at(OURS, port), LIMIT)) {
            Ok(mut stream) => {
                let mut said = String::new();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                stream.read_to_string(&mut said).unwrap();
                return said;
            }
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The others of the device's queues stay the kernel's.
#[test]
fn named_queues_are_taken_when_they_are_free() {
    let Some(wire) = Wire::with_queues("named queues, later", 2) else { return };
    // In generic mode veth delivers nothing by the device's last queue.
    let link = || LinkChoice::Xdp { mode: XdpMode::Native };
    let builder = || Runtime::builder().device(DEVICE).queues([1]).cores([0]).pin(false).frames(4096).link(link());
    let (first_over, second_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    std::thread::scope(|scope| {
        let ours = &wire.ours;
        let (first_told, second_told) = (first_over.clone(), second_over.clone());
        let first = scope.spawn(move || ours.enter(|| serve(builder().ephemeral_ports(64), 7777, &first_told)));
        let until_carrier = |port: u16, wanted: &str| {
            let until = Instant::now() + LIMIT;
            while carrier(&wire, port) != wanted {
                assert!(Instant::now() < until, "no connection is carried by the {wanted}");
            }
        };
        until_carrier(7777, "core");
        let late = move || builder().late_devices(true).ephemeral_ports(64);
        let second = scope.spawn(move || ours.enter(|| serve(late(), 7778, &second_told)));
        // The queue is the first one's.
        assert!((0..50).all(|_| carrier(&wire, 7778) == "kernel"));
        first_over.store(true, Ordering::Relaxed);
        assert_eq!(first.join().unwrap().len(), 1);
        until_carrier(7778, "core");
        until_carrier(7778, "kernel");
        second_over.store(true, Ordering::Relaxed);
        let received = second.join().unwrap();
        assert!(received.len() == 1 && received[0] > 0, "{received:?}");
    });
}
