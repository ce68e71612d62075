//! [`fastsock::block_on`] when the runtime loses its only device.

mod common;

use common::{SERVER, runtime};
use fs_compat::net::TcpListener;
use fs_core::Framing;
use fs_rt::Standalone;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(line)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Also if the program waits for something else, such as axum's server, which ignores errors of accept.
#[test]
fn block_on_returns_and_logs_the_loss_of_all_devices() {
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::ERROR);
    lines.with_ansi(false).with_writer(move || writer.clone()).init();
    let (ours, theirs) = fs_xdp::memory_pair(Framing::Ethernet, 1500).unwrap();
    let stack = runtime(Standalone::new().addr(SERVER, 24), vec![Box::new(ours)]);
    let serve = async {
        let _listener = TcpListener::bind("0.0.0.0:7").await.unwrap();
        drop(theirs);
        let server = std::future::pending::<()>();
        tokio::time::timeout(Duration::from_secs(30), server).await.expect("block_on goes on");
    };
    let error = fastsock::block_on(stack, serve).unwrap_err().to_string();
    assert!(error.contains("the device is gone"), "{error}");
    let said = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(said.contains("ERROR") && said.contains("the runtime ends"), "{said}");
}
