//! Every accepted MTU works: jumbo frames, and the largest that veth supports, with the peers' TSO
//! unchanged.

use anyhow::{Context, Result};
use fs_tests::body;
use fs_tests::clients;
use fs_tests::lab::{BACKEND, BACKEND6};
use fs_tests::proxy::{Mode, Proxy, ProxyOptions};
use fs_tests::{Lab, Nginx, Ns, Stack};

fn carries(mtu: &str, offload: &str) -> Result<()> {
    let Some(lab) = Lab::up(&["--mtu", mtu, "--offload", offload])? else { return Ok(()) };
    lab.check(|lab| {
        let bodies = [body::SMALL, body::TEN_KIB, body::MIB, body::TEN_MIB].map(body::body);
        let bodies = bodies.into_iter().collect::<Result<Vec<_>>>()?;
        let listen = [format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")];
        let nginx = Nginx::start(lab, Ns::Backend, "nginx", &listen, &bodies.iter().collect::<Vec<_>>())?;
        let mut proxy = Proxy::start(lab, &ProxyOptions::new(Stack::under_test()?))?;
        for base in [proxy.url(Mode::Tcp), proxy.url6(Mode::Http)] {
            for body in &bodies {
                clients::download(lab, &base, body).with_context(|| format!("MTU {mtu}"))?;
                clients::upload(lab, &base, body, nginx.uploads()).with_context(|| format!("MTU {mtu}"))?;
            }
        }
        proxy.stop()
    })
}

#[test]
fn jumbo_frames() -> Result<()> {
    carries("9000", "on")
}

#[test]
fn jumbo_frames_without_offloads() -> Result<()> {
    carries("9000", "off")
}

#[test]
fn the_smallest_for_ipv6() -> Result<()> {
    carries("1280", "on")
}

#[test]
fn the_largest() -> Result<()> {
    carries("65535", "on")
}
