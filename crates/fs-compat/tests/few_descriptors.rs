//! A program on kernel sockets whose limit of descriptors is low. This test has its own process,
//! which has no free descriptor for a while.

#[path = "common/lines.rs"]
mod lines;

use fs_compat::net::{Background, TcpListener};
use fs_rt::{LinkChoice, Runtime};
use lines::Lines;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::fs::File;
use std::time::Duration;

/// The usual limit.
const USUAL: u64 = 1024;

fn limit(descriptors: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(descriptors), maximum }).unwrap();
}

#[tokio::test]
async fn listener_without_descriptors_warns_once() {
    let lines = Lines::default();
    tracing_subscriber::fmt().with_ansi(false).with_writer(lines.clone()).init();
    let warnings = || {
        let said = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        said.lines().filter(|line| line.contains("cannot accept")).map(str::to_owned).collect::<Vec<_>>()
    };
    limit(USUAL);
    let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
    let raised = getrlimit(Resource::Nofile);
    assert!(raised.current != Some(USUAL) || raised.maximum == Some(USUAL), "{raised:?}");

    let stack = Background::start(runtime).unwrap();
    let listener = TcpListener::bind_on(&stack.handle(), "127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().into();
    let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    limit(USUAL - 16);
    let _taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    client.connect(&at).unwrap();
    let done = async {
        while warnings().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The core tries again, and does not repeat it.
        tokio::time::sleep(Duration::from_millis(50)).await;
        // All at once: the first connection of a core needs three.
        limit(USUAL);
        listener.accept().await.unwrap();
    };
    tokio::time::timeout(Duration::from_secs(60), done).await.expect("a warning, and the connection");
    let warnings = warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("Too many open files"), "{warnings:?}");
}
