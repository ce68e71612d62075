//! The harness itself: it detects errors, and cleans up.

use anyhow::{Result, ensure};
use fs_tests::apps::redis;
use fs_tests::body::{self, Body};
use fs_tests::clients::{self, WrkOptions};
use fs_tests::lab::{FRONT, FRONT6};
use fs_tests::loadgen::{self, Mode as LoadMode};
use fs_tests::{Lab, Nginx, Ns};
use std::path::Path;

#[test]
fn clients_detect_errors() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let (small, mib) = (body::body(body::SMALL)?, body::body(body::MIB)?);
        let listen = [format!("{FRONT}:80"), format!("[{FRONT6}]:80")];
        let nginx = Nginx::start(lab, Ns::Host, "nginx", &listen, &[&small, &mib])?;
        for base in [format!("http://{FRONT}"), format!("http://[{FRONT6}]")] {
            for body in [&small, &mib] {
                clients::download(lab, &base, body)?;
                clients::upload(lab, &base, body, nginx.uploads())?;
            }
            clients::many(lab, 50, &base, &small)?;
            for close in [false, true] {
                clients::answered(1, || clients::wrk(lab, &format!("{base}/64"), &WrkOptions::new(1, close)))?;
            }
        }
        let base = format!("http://{FRONT}");
        let wrong = Body { sha256: mib.sha256.clone(), ..small.clone() };
        ensure!(clients::download(lab, &base, &wrong).is_err(), "a wrong digest went unnoticed");
        ensure!(clients::upload(lab, &base, &wrong, nginx.uploads()).is_err(), "a wrong upload went unnoticed");
        ensure!(clients::many(lab, 3, &base, &wrong).is_err(), "a wrong body of many went unnoticed");
        ensure!(clients::many(lab, 3, "http://10.77.1.1:9", &small).is_err(), "a refused curl went unnoticed");
        // On a busy machine a run may have no response.
        let missing = loop {
            let missing = clients::wrk(lab, &format!("{base}/missing"), &WrkOptions::new(1, false))?;
            if missing.requests > 0 {
                break missing;
            }
        };
        ensure!(missing.clean().is_err(), "status 404 went unnoticed: {missing:?}");
        for mode in [LoadMode::KeepAlive, LoadMode::Short] {
            loadgen::every_connection_ends(lab, &format!("{base}:80"), mode, &small)?;
            let longer = Body { len: mib.len, ..small.clone() };
            let result = loadgen::every_connection_ends(lab, &format!("{base}:80"), mode, &longer);
            ensure!(result.is_err(), "a body of another length went unnoticed: {result:?}");
        }
        let _redis = redis(lab, Ns::Host, &[FRONT])?;
        ensure!(clients::redis_benchmark(lab, FRONT, 6379, 1000)?.len() >= 4);
        ensure!(!lab.remains(&["front0"], &[80])?.is_empty(), "nginx's socket went unseen");
        ensure!(lab.remains(&["front0"], &[81])?.is_empty());
        Ok(())
    })
}

#[test]
fn lab_leaves_nothing() -> Result<()> {
    let Some(lab) = Lab::up(&["--queues", "3", "--mtu", "9000", "--offload", "off", "--sources", "2"])? else {
        return Ok(());
    };
    let (names, dir) = ([Ns::Client, Ns::Host, Ns::Backend].map(|ns| lab.ns(ns)), lab.dir().to_owned());
    lab.run(Ns::Client, "ping", &["-c1", "-W30", "-M", "do", "-s", "8900", "-I", "10.77.1.4", FRONT])?;
    lab.run(Ns::Client, "ping", &["-c1", "-W30", FRONT6])?;
    let queues = lab.run(Ns::Host, "sh", &["-c", "ls -d /sys/class/net/front0/queues/rx-* | wc -l"])?;
    ensure!(queues.trim() == "3", "{queues} receive queues instead of 3");
    // A program that ignores the end of the lab must not keep it alive.
    let mut forgotten = lab.command(Ns::Backend, "sleep").arg("1000").spawn()?;
    // Before, it may be in none of the lab's namespaces yet.
    while std::fs::read_to_string(format!("/proc/{}/comm", forgotten.id()))?.trim() != "sleep" {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    drop(lab);
    ensure!(!forgotten.wait()?.success(), "the program outlived the lab");
    for name in names {
        ensure!(!Path::new("/run/netns").join(&name).exists(), "namespace {name} is still there");
    }
    ensure!(!dir.exists(), "{} is still there", dir.display());
    Ok(())
}
