//! Other programs on the same interface continue to work, and nothing of ours outlives our process.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::READY_LIMIT;
use fs_tests::body::{self, Body};
use fs_tests::clients;
use fs_tests::lab::{BACKEND, BACKEND6, FRONT, FRONT6};
use fs_tests::loadgen::{self, Mode as LoadMode};
use fs_tests::proxy::{DEVICES, HTTP_PORT, Mode, Proxy, ProxyOptions, TCP_PORT};
use fs_tests::{Lab, Nginx, Ns, Stack};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Deaths. The kernel frees queues and programs in the background, so each death finds it elsewhere.
const ROUNDS: usize = 3;

fn backend(lab: &Lab) -> Result<Nginx> {
    let small = body::body(body::SMALL)?;
    Nginx::start(lab, Ns::Backend, "nginx", &[format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")], &[&small])
}

#[test]
fn ping_and_a_kernel_server_work_next_to_the_proxy() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let _nginx = backend(lab)?;
        let mut proxy = Proxy::start(lab, &ProxyOptions::new(Stack::under_test()?))?;
        // Started after the proxy: the kernel must still be able to listen, and to be reached.
        let small = body::body(body::SMALL)?;
        let listen = [format!("{FRONT}:8888"), format!("[{FRONT6}]:8888")];
        let _kernel = Nginx::start(lab, Ns::Host, "neighbour", &listen, &[&small])?;
        let loading = AtomicBool::new(true);
        std::thread::scope(|scope| {
            let load = scope.spawn(|| -> Result<()> {
                loop {
                    loadgen::every_connection_ends(lab, &proxy.url(Mode::Http), LoadMode::KeepAlive, &small)?;
                    if !loading.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                }
            });
            let works = work_under_load(lab, &small);
            loading.store(false, Ordering::SeqCst);
            load.join().map_err(|_| anyhow::anyhow!("the load's thread panicked"))??;
            works
        })?;
        proxy.stop()
    })
}

/// Pings the proxy's host, downloads from its kernel's server, and connects from its kernel to the backend.
fn work_under_load(lab: &Lab, small: &Body) -> Result<()> {
    for host in [FRONT, FRONT6] {
        // On a busy machine a full ring of veth drops a packet at times.
        let pings = || lab.run(Ns::Client, "ping", &["-c", "20", "-i", "0.02", "-W", "30", host]);
        let mut said = String::new();
        for _ in 0..5 {
            said = pings()?;
            if said.contains(" 0% packet loss") {
                break;
            }
        }
        ensure!(said.contains(" 0% packet loss"), "ping {host} under load: {said}");
    }
    for base in [format!("http://{FRONT}:8888"), format!("http://[{FRONT6}]:8888")] {
        for _ in 0..20 {
            clients::download(lab, &base, small)?;
        }
    }
    let answer = lab.run(Ns::Host, "curl", &["-sS", "--max-time", "60", &format!("http://{BACKEND}/hello")])?;
    ensure!(answer == "hello", "curl from the host's kernel got {answer:?}");
    Ok(())
}

#[test]
fn killed_process_leaves_nothing_and_a_new_start_works() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let stack = Stack::under_test()?;
        let _nginx = backend(lab)?;
        let small = body::body(body::SMALL)?;
        for round in 0..ROUNDS {
            let mut proxy = Proxy::start(lab, &ProxyOptions::new(stack))?;
            clients::download(lab, &proxy.url(Mode::Http), &small)?;
            clients::download(lab, &proxy.url6(Mode::Tcp), &small)?;
            if stack == Stack::Fastsock {
                for device in DEVICES {
                    let programs = lab.xdp_programs(Ns::Host, device)?;
                    ensure!(!programs.is_empty(), "no XDP program on {device} while the proxy runs");
                }
            }
            let killed = Instant::now();
            proxy.proc.signal("KILL")?;
            let mut seen = String::new();
            let (left, took) = loop {
                // The time of the request counts, not how long a busy machine took to respond.
                let asked = killed.elapsed();
                let left = lab.remains(&DEVICES, &[HTTP_PORT, TCP_PORT])?;
                if left.is_empty() || asked > READY_LIMIT {
                    break (left, asked);
                }
                if left != seen {
                    println!("  {asked:?} after kill -9: {left}");
                    seen = left;
                }
            };
            ensure!(left.is_empty(), "{took:?} after kill -9: {left}");
            println!("round {round}: nothing left {took:?} after kill -9");
            proxy.proc.kill()?;
            // The ports are the kernel's again.
            let mut other = Nginx::start(lab, Ns::Host, "other", &[format!("{FRONT}:{HTTP_PORT}")], &[&small])
                .context("a kernel server on the proxy's port after kill -9")?;
            clients::download(lab, &format!("http://{FRONT}:{HTTP_PORT}"), &small)?;
            other.proc.terminate(READY_LIMIT)?;
        }
        Ok(())
    })
}
