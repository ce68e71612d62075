//! The proxy between the kernel's TCP on both sides: every byte is right, and every request gets
//! its response.

use anyhow::{Result, ensure};
use fs_tests::apps::redis;
use fs_tests::body::{self, Body};
use fs_tests::clients;
use fs_tests::lab::{BACKEND, BACKEND6, FRONT, FRONT6};
use fs_tests::loadgen::{self, Mode as LoadMode};
use fs_tests::proxy::{Mode, Proxy, ProxyOptions, REDIS_PORT};
use fs_tests::{Lab, Nginx, Ns, Stack};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const MODES: [Mode; 2] = [Mode::Http, Mode::Tcp];
/// A reload takes milliseconds.
const RELOAD_LIMIT: Duration = Duration::from_secs(60);

/// A lab with nginx behind a running proxy. Runs `body`. Afterwards the proxy must still be
/// healthy, and stop on request.
fn with_proxy(test: impl FnOnce(&Lab, &Proxy, &Nginx) -> Result<()>, bodies: &[&Body]) -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let listen = [format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")];
        let nginx = Nginx::start(lab, Ns::Backend, "nginx", &listen, bodies)?;
        let mut proxy = Proxy::start(lab, &ProxyOptions::new(Stack::under_test()?))?;
        let result = test(lab, &proxy, &nginx);
        if result.is_err() {
            // Without them the failure's own error is returned all the same.
            let all = proxy.metrics(lab).unwrap_or_default();
            for metric in all.iter().filter(|metric| metric.value != 0.0 && !metric.name.ends_with("_bucket")) {
                println!("{} {{{}}} {}", metric.name, metric.labels, metric.value);
            }
        }
        result?;
        proxy.stop()
    })
}

fn bodies(which: &[(&'static str, u64)]) -> Result<Vec<Body>> {
    which.iter().map(|one| body::body(*one)).collect()
}

#[test]
fn small_bodies_arrive_byte_for_byte_in_both_directions() -> Result<()> {
    let bodies = bodies(&[body::EMPTY, body::ONE, body::SMALL, body::TEN_KIB, body::MIB])?;
    with_proxy(
        |lab, proxy, nginx| {
            for mode in MODES {
                for base in [proxy.url(mode), proxy.url6(mode)] {
                    for body in &bodies {
                        clients::download(lab, &base, body)?;
                        clients::upload(lab, &base, body, nginx.uploads())?;
                    }
                }
            }
            Ok(())
        },
        &bodies.iter().collect::<Vec<_>>(),
    )
}

#[test]
fn large_bodies_arrive_byte_for_byte_in_both_directions() -> Result<()> {
    large_body(body::SIXTEEN_MIB)
}

#[test]
#[ignore = "long: make proof"]
fn gibibyte_arrives_byte_for_byte_in_both_directions() -> Result<()> {
    large_body(body::GIB)
}

fn large_body(body: (&'static str, u64)) -> Result<()> {
    let big = body::body(body)?;
    with_proxy(
        |lab, proxy, nginx| {
            for base in [proxy.url(Mode::Http), proxy.url6(Mode::Tcp), proxy.url(Mode::Tcp), proxy.url6(Mode::Http)] {
                clients::download(lab, &base, &big)?;
                clients::upload(lab, &base, &big, nginx.uploads())?;
            }
            Ok(())
        },
        &[&big],
    )
}

/// Both paths lose large packets. These are merged segments, also of forwarded frames.
/// Retransmissions arrive, because they are single segments.
#[test]
fn bodies_arrive_over_paths_that_drop_merged_packets() -> Result<()> {
    const RULES: &str = "table inet lossy { counter lost { } ; chain c { type filter hook prerouting priority -300 ; \
                         meta length > 1600 numgen inc mod 20 == 0 counter name lost drop ; } ; }";
    let big = body::body(body::SIXTEEN_MIB)?;
    let lossy = [Ns::Client, Ns::Backend];
    with_proxy(
        |lab, proxy, nginx| {
            for ns in lossy {
                lab.run(ns, "nft", &[RULES])?;
            }
            for base in [proxy.url(Mode::Http), proxy.url6(Mode::Tcp), proxy.url(Mode::Tcp), proxy.url6(Mode::Http)] {
                clients::download(lab, &base, &big)?;
                clients::upload(lab, &base, &big, nginx.uploads())?;
            }
            for ns in lossy {
                let counter = lab.run(ns, "nft", &["list", "counter", "inet", "lossy", "lost"])?;
                ensure!(!counter.contains("packets 0 "), "nothing was dropped: {counter}");
            }
            Ok(())
        },
        &[&big],
    )
}

#[test]
fn two_hundred_curls_at_once() -> Result<()> {
    curls_at_once(200)
}

#[test]
#[ignore = "long: make proof"]
fn thousand_curls_at_once() -> Result<()> {
    curls_at_once(1000)
}

fn curls_at_once(count: usize) -> Result<()> {
    let small = body::body(body::TEN_KIB)?;
    with_proxy(
        |lab, proxy, _| {
            for base in [proxy.url(Mode::Http), proxy.url(Mode::Tcp), proxy.url6(Mode::Http), proxy.url6(Mode::Tcp)] {
                clients::many(lab, count, &base, &small)?;
            }
            Ok(())
        },
        &[&small],
    )
}

/// 256 connections for a second or more, in each mode and family: each gets its responses.
fn load(mode: LoadMode) -> Result<()> {
    let small = body::body(body::SMALL)?;
    with_proxy(
        |lab, proxy, _| {
            for through in MODES {
                for base in [proxy.url(through), proxy.url6(through)] {
                    let result = loadgen::every_connection_ends(lab, &base, mode, &small)?;
                    println!("{base}: {:.0} requests/s, p99 {:.0} µs", result.requests_per_second, result.p99_us);
                }
            }
            Ok(())
        },
        &[&small],
    )
}

#[test]
fn each_request_on_kept_connections_gets_its_response() -> Result<()> {
    load(LoadMode::KeepAlive)
}

#[test]
fn each_connection_of_one_request_gets_its_response_and_its_end() -> Result<()> {
    load(LoadMode::Short)
}

/// SIGHUP ten times under load: each request gets its response, and downloads that run at the same time
/// are complete.
#[test]
fn reloads_cost_no_request_and_no_byte() -> Result<()> {
    let (small, big) = (body::body(body::SMALL)?, body::body(body::TEN_MIB)?);
    with_proxy(
        |lab, proxy, _| {
            for mode in MODES {
                let base = proxy.url(mode);
                let running = AtomicBool::new(true);
                // Each load continues until all reloads are done.
                let until_done = |load: &dyn Fn() -> Result<()>| -> Result<()> {
                    load()?;
                    while running.load(Ordering::SeqCst) {
                        load()?;
                    }
                    Ok(())
                };
                let load = |mode| loadgen::every_connection_ends(lab, &base, mode, &small).map(drop);
                std::thread::scope(|scope| {
                    let loads = [
                        scope.spawn(|| until_done(&|| clients::download(lab, &base, &big))),
                        scope.spawn(|| until_done(&|| load(LoadMode::KeepAlive))),
                        scope.spawn(|| until_done(&|| load(LoadMode::Short))),
                    ];
                    let reloaded = (0..10).try_for_each(|_| reload(proxy));
                    running.store(false, Ordering::SeqCst);
                    let loaded = loads.map(|load| load.join().expect("no panic"));
                    reloaded?;
                    loaded.into_iter().collect::<Result<()>>()
                })?;
            }
            Ok(())
        },
        &[&small, &big],
    )
}

/// Reloads the proxy's configuration, and waits until the proxy reports that it is in use.
fn reload(proxy: &Proxy) -> Result<()> {
    let done = || proxy.proc.log().matches("is in use;").count();
    let before = done();
    proxy.proc.signal("HUP")?;
    let start = Instant::now();
    while done() == before {
        ensure!(start.elapsed() < RELOAD_LIMIT, "no reload:\n{}", proxy.proc.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn redis_benchmark_works_through_the_tcp_proxy() -> Result<()> {
    with_proxy(
        |lab, _, _| {
            let _redis = redis(lab, Ns::Backend, &[BACKEND, BACKEND6])?;
            for host in [FRONT, FRONT6] {
                for (command, rate) in clients::redis_benchmark(lab, host, REDIS_PORT, 2_000)? {
                    println!("{host}: {command}: {rate:.0}/s");
                }
            }
            Ok(())
        },
        &[],
    )
}
