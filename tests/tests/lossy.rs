//! Transfers over a wire that loses, swaps and doubles packets both ways, with independent peers:
//! the kernel and gVisor. Every connection carries its bytes there and back at the same time, so
//! each stack sends and receives over losses; SHA-256 sums are compared by the active side.

use anyhow::Result;
use fs_tests::apps::{Program, StackOptions};
use fs_tests::lab::{FRONT, FRONT6};
use fs_tests::servers::{ECHO_PORT, devices};
use fs_tests::wire::{self, GVISOR, GVISOR6, Gvisor, at};
use fs_tests::{Lab, Ns, Proc, Stack};

const BYTES: u64 = 3 << 20;
const WIRE: [&str; 12] =
    ["--rate", "300", "--delay", "1", "--loss", "0.02", "--reorder", "0.02", "--duplicate", "0.01", "--seed", "3"];

/// A lab with this wire between client and backend.
fn lab() -> Result<Option<Lab>> {
    Lab::up(&["--queues", "1", "--offload", "off", "--wire"])
}

fn echo(lab: &Lab, ns: Ns, host: &str, stack: Stack) -> Result<Proc> {
    let mut command = Program::Echo.command(lab, ns)?;
    command.args(["--listen", &at(host, ECHO_PORT)]).args(StackOptions::new(stack).arguments(&[devices(ns)]));
    let mut server = lab.spawn("server", &mut command)?;
    wire::ready(&mut server)?;
    Ok(server)
}

/// The client sends to an echo server and wants everything back.
fn exchange(lab: &Lab, host: &str, stack: Stack) -> Result<()> {
    let mut command = Program::Exchange.command(lab, Ns::Client)?;
    command.args([&at(host, ECHO_PORT), "--bytes", &BYTES.to_string(), "--limit", "200"]);
    command.args(StackOptions::new(stack).arguments(&[devices(Ns::Client)]));
    wire::finish(lab, "exchange", &mut command, BYTES)
}

/// Checks that the relay has lost packets.
fn was_lossy(relay: &Proc) {
    let log = relay.log();
    let last = log.lines().last().unwrap_or_default();
    // Before its first counters the relay says "ready".
    let has = |what: &str| last.contains(what) && !last.contains(&format!(" 0{what}"));
    assert!(has(" lost") && has(" swapped"), "the wire was good: {last}");
}

fn with_kernel(active: Stack, passive: Stack) -> Result<()> {
    let Some(lab) = lab()? else { return Ok(()) };
    lab.check(|lab| {
        let relay = wire::relay(lab, &WIRE)?;
        for host in [FRONT, FRONT6] {
            let mut server = echo(lab, Ns::Backend, host, passive)?;
            exchange(lab, host, active)?;
            server.kill()?;
        }
        was_lossy(&relay);
        Ok(())
    })
}

#[test]
fn the_kernel_connects() -> Result<()> {
    with_kernel(Stack::Kernel, Stack::under_test()?)
}

#[test]
fn the_kernel_listens() -> Result<()> {
    with_kernel(Stack::under_test()?, Stack::Kernel)
}

#[test]
#[ignore = "needs Go and gVisor's modules: make proof"]
fn gvisor_connects() -> Result<()> {
    let Some(gvisor) = Gvisor::build()? else { return Ok(()) };
    let Some(lab) = lab()? else { return Ok(()) };
    lab.check(|lab| {
        let relay = wire::relay(lab, &WIRE)?;
        // The client's addresses belong to its end of the wire, so our server is there.
        for host in ["10.77.1.2", "fd77:1::2"] {
            let mut server = echo(lab, Ns::Client, host, Stack::under_test()?)?;
            let to = at(host, ECHO_PORT);
            let mut command = gvisor.command(lab, &["-connect", &to, "-bytes", &BYTES.to_string()]);
            wire::finish(lab, "gvisor", &mut command, BYTES)?;
            server.kill()?;
        }
        was_lossy(&relay);
        Ok(())
    })
}

#[test]
#[ignore = "needs Go and gVisor's modules: make proof"]
fn gvisor_listens() -> Result<()> {
    let Some(gvisor) = Gvisor::build()? else { return Ok(()) };
    let Some(lab) = lab()? else { return Ok(()) };
    lab.check(|lab| {
        let relay = wire::relay(lab, &WIRE)?;
        let mut peer = lab.spawn("gvisor", &mut gvisor.command(lab, &["-listen", &ECHO_PORT.to_string()]))?;
        wire::ready(&mut peer)?;
        for host in [GVISOR, GVISOR6] {
            exchange(lab, host, Stack::under_test()?)?;
        }
        was_lossy(&relay);
        Ok(())
    })
}
