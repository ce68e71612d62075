//! [`fastsock::block_on`], as in a program's own tests: on kernel sockets, several at a time.

use fastsock::net::{TcpListener, TcpStream};
use fastsock::{LinkChoice, Runtime, block_on};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;

fn runtime() -> Runtime {
    Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap()
}

async fn bind() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// While another runtime has started after this one, and after it has ended.
#[test]
fn sockets_use_the_runtime_of_their_block_on() {
    let all = async {
        let (end, ends) = oneshot::channel::<()>();
        let (start, starts) = oneshot::channel();
        let other = std::thread::spawn(|| {
            let wait = async {
                start.send(()).unwrap();
                ends.await
            };
            block_on(runtime(), wait).unwrap().unwrap_err();
        });
        starts.await.unwrap();
        let mut listeners = vec![bind().await, tokio::spawn(bind()).await.unwrap()];
        drop(end);
        tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
        listeners.extend([bind().await, tokio::spawn(bind()).await.unwrap()]);
        for listener in listeners {
            let at = listener.local_addr().unwrap();
            let client = tokio::spawn(async move {
                let mut said = String::new();
                TcpStream::connect(at).await.unwrap().read_to_string(&mut said).await.unwrap();
                said
            });
            listener.accept().await.unwrap().0.write_all(b"hello").await.unwrap();
            assert_eq!(client.await.unwrap(), "hello");
        }
    };
    block_on(runtime(), async { tokio::time::timeout(Duration::from_secs(60), all).await.unwrap() }).unwrap();
}

/// The program ends the runtime itself, and has more to do.
#[test]
fn program_goes_on_after_its_own_shutdown() {
    let stack = runtime();
    let handle = stack.handle();
    let counted = block_on(stack, async move {
        drop(bind().await);
        handle.shutdown(Duration::from_secs(1));
        handle.ended().await;
        tokio::task::yield_now().await;
        handle.stats().len()
    });
    assert_eq!(counted.unwrap(), 1);
}

/// Standard error is a full disk, or a pipe that nobody reads.
#[test]
fn program_without_standard_error_runs_or_fails_as_usual() {
    const NAME: &str = "program_without_standard_error_runs_or_fails_as_usual";
    const CHILD: &str = "FASTSOCK_TEST_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return fastsock::__main(async {});
    }
    for (variable, value, code) in [("FASTSOCK_DEVICE", "fs-none0", 0), ("FASTSOCK_LINK", "no-such-link", 1)] {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(CHILD, "1").env(variable, value);
        command.stdout(std::process::Stdio::null());
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert_eq!(command.stderr(full).status().unwrap().code(), Some(code), "{variable}");
    }
}
