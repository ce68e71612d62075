//! The same program of socket calls on the kernel and on libfastsock.so: what it observes is equal.

// runner: beside others

use anyhow::{Result, ensure};
use fs_tests::unmodified::daemon::{Daemon, Reach};
use fs_tests::unmodified::semantics::{Case, Semantics, difference};
use fs_tests::{Lab, Ns};

/// Cases that may differ, and why.
const ACCEPTED: &[(&str, &str)] =
    &[("signal_sigio", "SIGIO (O_ASYNC with F_SETOWN) is not sent for accelerated sockets")];

/// Compares cases on the kernel with the same under preload; the error names each that differs.
fn compare(lab: &Lab, program: &Semantics, daemon: &Daemon, cases: &[&Case]) -> Result<()> {
    let mut differing = Vec::new();
    let mut accepted = 0;
    for case in cases {
        let kernel = program.on_kernel(lab, Ns::Host, case)?;
        let ours = program.run(lab, case, daemon.command(lab, program.program()))?;
        let why = ACCEPTED.iter().find_map(|(name, why)| (*name == case.name).then_some(why));
        match (difference(&kernel, &ours), why) {
            (None, None) => {}
            (Some(_), Some(why)) => {
                println!("{}: differs, accepted: {why}", case.name);
                accepted += 1;
            }
            (Some(how), None) => {
                println!("{}: differs:\n{how}", case.name);
                differing.push(case.name.as_str());
            }
            (None, Some(_)) => {
                println!("{}: is equal, and must leave ACCEPTED", case.name);
                differing.push(case.name.as_str());
            }
        }
    }
    println!("{} cases, {} equal, {accepted} accepted", cases.len(), cases.len() - differing.len() - accepted);
    ensure!(differing.is_empty(), "{} of {} cases differ: {}", differing.len(), cases.len(), differing.join(" "));
    Ok(())
}

/// What differs between two runs on the kernel says nothing about us.
#[test]
fn the_kernel_answers_the_same_twice() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let program = Semantics::build()?;
        for case in program.cases() {
            let (once, twice) = (program.on_kernel(lab, Ns::Host, case)?, program.on_kernel(lab, Ns::Host, case)?);
            let how = difference(&once, &twice);
            ensure!(how.is_none(), "{} is not the same twice on the kernel:\n{}", case.name, how.unwrap_or_default());
            let died = once.iter().find(|line| ["DIED", "ENDED", "STILL RAN"].iter().any(|end| line.starts_with(end)));
            ensure!(died.is_none(), "{} on the kernel: {died:?}", case.name);
        }
        Ok(())
    })
}

#[test]
fn preloaded_calls_answer_as_the_kernel_does() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let program = Semantics::build()?;
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        compare(lab, &program, &daemon, &program.cases())?;
        let counters = daemon.counters(lab)?;
        ensure!(counters.value("local_bytes") > 0, "no byte went through the library: {counters:?}");
        daemon.stop()
    })
}

/// An allocator of the program's own holds its locks from its handler before a fork to those after it: ours run in between.
#[test]
fn forks_with_an_allocator_that_holds_its_locks() -> Result<()> {
    const JEMALLOC: &str = "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2";
    if !std::path::Path::new(JEMALLOC).exists() {
        println!("skipped: no {JEMALLOC} (lab/install test)");
        return Ok(());
    }
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let program = Semantics::build()?;
        let mut daemon = Daemon::start(lab, Ns::Host, Reach::OnlyLocal)?;
        let [preload, _] = daemon.environment();
        let cases: Vec<&Case> = program.cases().into_iter().filter(|case| case.name.starts_with("atfork_")).collect();
        ensure!(cases.len() >= 3, "the cases have other names");
        for case in cases {
            let mut command = daemon.command(lab, "env");
            // Without a cache of each thread's every allocation takes a lock.
            command
                .args([&format!("{preload} {JEMALLOC}"), "MALLOC_CONF=tcache:false,narenas:1"])
                .arg(program.program());
            let ours = program.run(lab, case, command)?;
            let how = difference(&program.on_kernel(lab, Ns::Host, case)?, &ours);
            ensure!(how.is_none(), "{}: {}", case.name, how.unwrap_or_default());
        }
        daemon.stop()
    })
}

/// With the loopback device down nothing can have gone over the kernel without showing.
#[test]
fn preloaded_calls_need_no_loopback_device() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let program = Semantics::build()?;
        // The addresses of a device that is down are not local any more; the sockets' numbers are bound all the same. There is no way
        // to ::1 then, on the kernel as here: cases of IPv6 need the device.
        for setting in ["net.ipv4.ip_nonlocal_bind=1", "net.ipv6.ip_nonlocal_bind=1"] {
            lab.run(Ns::Backend, "sysctl", &["-qw", setting])?;
        }
        lab.run(Ns::Backend, "ip", &["link", "set", "lo", "down"])?;
        let mut daemon = Daemon::start(lab, Ns::Backend, Reach::OnlyLocal)?;
        let cases: Vec<&Case> = program.cases().into_iter().filter(|case| !case.needs_lo).collect();
        compare(lab, &program, &daemon, &cases)?;
        daemon.stop()
    })
}
