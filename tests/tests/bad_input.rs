//! Bad input gets a clear error, a status that is not 0, and leaves nothing half set up.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::{Program, READY_LIMIT};
use fs_tests::body;
use fs_tests::clients;
use fs_tests::lab::{BACKEND, BACKEND6, FRONT, FRONT6};
use fs_tests::proxy::{DEAD_PORT, DEVICES, HTTP_PORT, Mode, Proxy, ProxyOptions, SILENT_PORT, TCP_PORT};
use fs_tests::{Lab, Nginx, Ns, Stack};
use std::process::Command;
use std::time::Duration;

/// Limit for a program that cannot start to report it.
const REFUSAL_LIMIT: Duration = Duration::from_secs(60);

/// Runs `command` and checks that it fails soon, with every one of `words` in its output (in any
/// case), without a panic, and leaving nothing behind.
fn refuses(lab: &Lab, name: &str, command: &mut Command, words: &[&str]) -> Result<()> {
    let mut proc = lab.spawn(name, command)?;
    let status = proc.wait_end(REFUSAL_LIMIT).with_context(|| format!("{name}: it had to refuse"))?;
    let said = proc.log();
    ensure!(status.code().is_some_and(|code| code != 0), "{name}: {status}, wanted a failure; it said:\n{said}");
    ensure!(!said.contains("panicked"), "{name}: panicked:\n{said}");
    for word in words {
        ensure!(said.to_lowercase().contains(&word.to_lowercase()), "{name}: no {word:?} in:\n{said}");
    }
    println!("{name}: {}", said.lines().last().unwrap_or_default());
    Ok(())
}

fn nothing_left(lab: &Lab) -> Result<()> {
    let left = lab.remains(&DEVICES, &[HTTP_PORT, TCP_PORT])?;
    ensure!(left.is_empty(), "left behind: {left}");
    Ok(())
}

/// Returns a command that starts the proxy with `options`, through `wrapper`.
fn proxy(lab: &Lab, options: &ProxyOptions, wrapper: &[&str]) -> Result<Command> {
    let program = Program::Proxy.path()?;
    let mut words = wrapper.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    words.push(program.display().to_string());
    let mut command = lab.command(Ns::Host, &words[0]);
    command.args(&words[1..]).arg("--config").arg(Proxy::write_config(lab, options, "")?).args(options.arguments());
    Ok(command)
}

/// The cases below are about our own stack.
fn fastsock() -> ProxyOptions {
    ProxyOptions::new(Stack::Fastsock)
}

#[test]
fn no_such_device() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let options = ProxyOptions { devices: vec!["front0".into(), "nosuch0".into()], ..fastsock() };
        refuses(lab, "no-such-device", &mut proxy(lab, &options, &[])?, &["nosuch0"])?;
        nothing_left(lab)
    })
}

#[test]
fn missing_capability_is_named() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        // Each capability is needed, so the error must name each one that alone is missing.
        // CAP_SYS_ADMIN replaces some of them.
        for (drop, name) in [("net_admin", "CAP_NET_ADMIN"), ("net_raw", "CAP_NET_RAW")] {
            let wrapper = ["setpriv", &format!("--bounding-set=-{drop},-sys_admin")];
            refuses(lab, &format!("without-{drop}"), &mut proxy(lab, &fastsock(), &wrapper)?, &[name])?;
            nothing_left(lab)?;
        }
        let wrapper = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
        refuses(lab, "without-any", &mut proxy(lab, &fastsock(), &wrapper)?, &["CAP_NET_ADMIN", "CAP_BPF"])?;
        nothing_left(lab)
    })
}

#[test]
fn queue_in_use() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let small = body::body(body::SMALL)?;
        let _nginx =
            Nginx::start(lab, Ns::Backend, "nginx", &[format!("{BACKEND}:80"), format!("[{BACKEND6}]:80")], &[&small])?;
        let mut first = Proxy::start(lab, &fastsock())?;
        // Its metrics, and the same ports, would be in the way first.
        let mut second = proxy(lab, &ProxyOptions { metrics: false, ..fastsock() }, &[])?;
        let file = lab.dir().join("proxy.toml");
        let text = std::fs::read_to_string(&file)?;
        let others = text.replace(&format!("{FRONT}:"), &format!("{FRONT}:1"));
        std::fs::write(&file, others.replace(&format!("[{FRONT6}]:"), &format!("[{FRONT6}]:1")))?;
        refuses(lab, "queue-taken", &mut second, &["front0"])?;
        // The first one must not have noticed.
        clients::download(lab, &first.url(Mode::Http), &small)?;
        clients::download(lab, &first.url6(Mode::Tcp), &small)?;
        first.stop()?;
        nothing_left(lab)
    })
}

#[test]
fn port_in_use() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let small = body::body(body::SMALL)?;
        let mut kernel = Nginx::start(lab, Ns::Host, "kernel", &[format!("{FRONT}:{TCP_PORT}")], &[&small])?;
        for stack in [Stack::Fastsock, Stack::Kernel] {
            let name = format!("port-in-use-{}", stack.name());
            let mut command = proxy(lab, &ProxyOptions::new(stack), &[])?;
            // "address already in use", "port 8081 is in use": both name the number and the
            // trouble.
            refuses(lab, &name, &mut command, &["in use", &TCP_PORT.to_string()])?;
            clients::download(lab, &format!("http://{FRONT}:{TCP_PORT}"), &small)?;
        }
        kernel.proc.terminate(READY_LIMIT)?;
        nothing_left(lab)
    })
}

#[test]
fn unknown_key_is_named_with_its_line() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let options = ProxyOptions::new(Stack::Kernel);
        let path = Proxy::write_config(lab, &options, "frobnicate = 1\n")?;
        let line = std::fs::read_to_string(&path)?.lines().position(|line| line.starts_with("frobnicate"));
        let line = line.context("frobnicate")? + 1;
        let mut command = Program::Proxy.command(lab, Ns::Host)?;
        command.arg("--config").arg(&path).args(options.arguments());
        refuses(lab, "unknown-key", &mut command, &["frobnicate", &format!("line {line}")])?;
        nothing_left(lab)
    })
}

#[test]
fn backend_that_is_down_gives_502_and_a_log_line() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let mut proxy = Proxy::start(lab, &ProxyOptions::new(Stack::under_test()?))?;
        let asked = |port: u16| -> Result<()> {
            let got = clients::get(lab, &format!("http://{FRONT}:{port}/64"))?;
            let wanted = if port == DEAD_PORT { 502..=502 } else { 502..=504 };
            ensure!(wanted.contains(&got.status), "port {port}: status {}, wanted {wanted:?}", got.status);
            Ok(())
        };
        // A backend that refuses connections.
        asked(DEAD_PORT)?;
        // A backend whose address no host has: the response comes after the time-out.
        asked(SILENT_PORT)?;
        let log = proxy.proc.log();
        ensure!(log.contains(&format!("{BACKEND}:9")), "the log does not name the backend:\n{log}");
        proxy.stop()
    })
}

#[test]
fn too_little_locked_memory() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        // CAP_IPC_LOCK overrides the limit.
        let wrapper = ["prlimit", "--memlock=65536:65536", "setpriv", "--bounding-set=-ipc_lock,-sys_resource"];
        refuses(lab, "memlock", &mut proxy(lab, &fastsock(), &wrapper)?, &["MEMLOCK"])?;
        nothing_left(lab)
    })
}
