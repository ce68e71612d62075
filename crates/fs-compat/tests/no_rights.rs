//! A runtime without rights and without a device, as in a user's own tests.

use fs_compat::net;
use fs_rt::{Carrier, LinkChoice, Runtime, Why};
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const INNER: &str = "FASTSOCK_TEST_INNER";

/// Runs `test` of this file again, in a process that sees `variable`. Returns true in that process.
fn is_inner(test: &str, variable: (&str, &str)) -> bool {
    if std::env::var_os(INNER).is_some() {
        return true;
    }
    let program = std::env::current_exe().unwrap();
    let answer = Command::new(program)
        .args([test, "--exact", "--nocapture"])
        .env(INNER, "1")
        .env(variable.0, variable.1)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&answer.stderr).into_owned() + &String::from_utf8_lossy(&answer.stdout);
    assert!(answer.status.success(), "{said}");
    false
}

fn answers(runtime: Runtime) {
    let said = runtime.run(|_| async {
        let listener = fs_compat::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (client, served) = tokio::join!(fs_compat::TcpStream::connect(at), listener.accept());
        assert_eq!(client.unwrap().carrier(), Carrier::Kernel(Why::NoDevice));
        served.unwrap().0.write_all(b"hello").await.unwrap();
    });
    assert!(said.is_ok(), "{said:?}");
}

#[test]
fn environment_selects_the_kernel() {
    if is_inner("environment_selects_the_kernel", ("FASTSOCK_LINK", "kernel")) {
        answers(Runtime::builder().device("no-such-device0").pin(false).build().unwrap());
    }
}

/// Not only the last one that polled is woken for connections that come at once.
#[test]
fn several_tasks_accept_from_one_listener() {
    let runtime = Runtime::builder().link(LinkChoice::Kernel).pin(false).build().unwrap();
    let run = runtime.run(|_| async {
        let listener = std::rc::Rc::new(fs_compat::TcpListener::bind("127.0.0.1:0").await.unwrap());
        let at = listener.local_addr().unwrap();
        let accept = |_| {
            let listener = listener.clone();
            fs_rt::spawn_local(async move { listener.accept().await.unwrap().1 })
        };
        let mut tasks: Vec<_> = (0..4).map(accept).collect();
        for _ in 0..10 {
            fs_rt::turn().await;
        }
        // The last one that waits goes away, and has been the only one that tokio knows.
        tasks.pop().unwrap().abort();
        let clients: Vec<_> = (0..3).map(|_| std::net::TcpStream::connect(at).unwrap()).collect();
        let mut accepted = Vec::new();
        for task in tasks {
            let peer = tokio::time::timeout(Duration::from_secs(60), task).await.expect("a task waits for ever");
            accepted.push(peer.unwrap());
        }
        let mut peers: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
        accepted.sort();
        peers.sort();
        assert_eq!(accepted, peers);
    });
    run.unwrap();
}

#[test]
fn unknown_value_in_environment_is_an_error() {
    if is_inner("unknown_value_in_environment_is_an_error", ("FASTSOCK_LINK", "kernal")) {
        let error = Runtime::builder().device("no-such-device0").build().unwrap_err().to_string();
        assert!(error.contains("FASTSOCK_LINK=kernal") && error.contains("\"kernel\""), "{error}");
    }
}

#[test]
fn missing_device_is_an_error_without_or_kernel() {
    let error = Runtime::builder().device("no-such-device0").build().unwrap_err().to_string();
    assert!(error.contains("no-such-device0"), "{error}");
    answers(Runtime::builder().device("no-such-device0").pin(false).or_kernel().build().unwrap());
    answers(Runtime::builder().pin(false).or_kernel().build().unwrap());
    // A mistake in the configuration is still an error.
    let error = Runtime::builder().device("no-such-device0").cores([4711]).or_kernel().build().unwrap_err();
    assert!(error.to_string().contains("4711"), "{error}");
}

#[test]
fn warning_names_cause_and_remedy() {
    let test = "warning_names_cause_and_remedy";
    if std::env::var_os(INNER).is_some() {
        return drop(Runtime::builder().device("no-such-device0").or_kernel().build().unwrap());
    }
    let program = std::env::current_exe().unwrap();
    let answer = Command::new(program).args([test, "--exact", "--nocapture"]).env(INNER, "1").output().unwrap();
    let said = String::from_utf8_lossy(&answer.stderr);
    let lines: Vec<_> = said.lines().filter(|line| line.contains("no-such-device0")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    assert!(lines[0].contains("kernel sockets") && lines[0].contains("ip link"), "{said}");
}

#[test]
fn sockets_of_any_thread() {
    let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0, 0]).pin(false).build().unwrap();
    let stack = net::Background::start(runtime).unwrap();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let listener = net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let serve = tokio::spawn(async move {
            for _ in 0..64 {
                let (mut stream, _) = listener.accept().await.unwrap();
                tokio::spawn(async move {
                    let (mut reader, mut writer) = stream.split();
                    tokio::io::copy(&mut reader, &mut writer).await.unwrap();
                    writer.shutdown().await.unwrap();
                });
            }
        });
        let clients: Vec<_> = (0..64u8)
            .map(|n| {
                tokio::spawn(async move {
                    let mut stream = net::TcpStream::connect(at).await.unwrap();
                    assert_eq!(stream.carrier(), Carrier::Kernel(Why::NoDevice));
                    let body = vec![n; 200_000];
                    let (mut reader, mut writer) = stream.split();
                    let mut echo = Vec::new();
                    let write = async {
                        writer.write_all(&body).await.unwrap();
                        writer.shutdown().await.unwrap();
                    };
                    let (_, read) = tokio::join!(write, reader.read_to_end(&mut echo));
                    read.unwrap();
                    assert!(echo == body, "{n}: {} bytes", echo.len());
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        serve.await.unwrap();
        let (one, two) =
            (net::UdpSocket::bind("127.0.0.1:0").await.unwrap(), net::UdpSocket::bind("127.0.0.1:0").await.unwrap());
        one.send_to(b"datagram", two.local_addr().unwrap()).await.unwrap();
        let mut buf = [0; 16];
        let (n, from) = two.recv_from(&mut buf).await.unwrap();
        assert_eq!((&buf[..n], from), (&b"datagram"[..], one.local_addr().unwrap()));
    });
    stack.shutdown(Duration::from_secs(60)).unwrap();
}
