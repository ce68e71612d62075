//! A program with a device of its own follows the kernel's routes: what the kernel sends by another
//! device, or not at all, does not leave by this one.

use anyhow::{Context, Result, ensure};
use fs_tests::apps::StackOptions;
use fs_tests::lab::FRONT;
use fs_tests::loadgen::{Load, Mode};
use fs_tests::servers::{self, ECHO_PORT};
use fs_tests::{Lab, Ns, Stack};

/// An address of the host that only the client's default route leads to.
const BEHIND: &str = "10.8.0.5";
const NETWORK: &str = "10.8.0.0/24";

/// A command that changes the kernel's routes, and the command that reverses it.
type Case = (&'static str, &'static [&'static [&'static str]], &'static [&'static [&'static str]]);

const CASES: [Case; 4] = [
    ("a route by another device", &[&["route", "add", NETWORK, "dev", "vpn0"]], &[&["route", "del", NETWORK]]),
    ("a blackhole", &[&["route", "add", "blackhole", NETWORK]], &[&["route", "del", "blackhole", NETWORK]]),
    (
        "a rule with a table of its own",
        &[
            &["route", "add", "default", "dev", "vpn0", "table", "77"],
            &["rule", "add", "to", NETWORK, "lookup", "77", "pref", "70"],
        ],
        &[&["rule", "del", "pref", "70"], &["route", "flush", "table", "77"]],
    ),
    (
        "a rule that prohibits it to the user",
        &[&["rule", "add", "to", NETWORK, "uidrange", "0-0", "prohibit", "pref", "70"]],
        &[&["rule", "del", "pref", "70"]],
    ),
];

#[test]
fn own_device_is_used_only_where_the_kernel_uses_it() -> Result<()> {
    let Some(lab) = Lab::up(&[])? else { return Ok(()) };
    lab.check(|lab| {
        let ip = |ns, words: &[&str]| lab.run(ns, "ip", words).map(drop);
        ip(Ns::Host, &["address", "add", &format!("{BEHIND}/32"), "dev", "lo"])?;
        ip(Ns::Client, &["route", "add", "default", "via", FRONT])?;
        ip(Ns::Client, &["link", "add", "vpn0", "type", "veth", "peer", "name", "vpn1"])?;
        ip(Ns::Client, &["link", "set", "vpn0", "up"])?;
        ip(Ns::Client, &["link", "set", "vpn1", "up"])?;
        ip(Ns::Client, &["address", "add", "10.7.0.1/24", "dev", "vpn0"])?;
        let mut server = servers::echo(lab, Ns::Host, BEHIND, &[], &StackOptions::new(Stack::Kernel))?;
        // Connections that the server's kernel has opened: `PassiveOpens`.
        let accepted = || -> Result<u64> {
            let text = lab.run(Ns::Host, "cat", &["/proc/net/snmp"])?;
            let line = text.lines().filter(|line| line.starts_with("Tcp: ")).nth(1).context("Tcp:")?;
            line.split(' ').nth(6).and_then(|value| value.parse().ok()).context("PassiveOpens")
        };
        let connect = |limit_s: &str| {
            let mut load = Load::new(Mode::PingPong, BEHIND, ECHO_PORT, StackOptions::new(Stack::Fastsock));
            load.more = ["--timeout", limit_s].map(String::from).to_vec();
            load.run(lab, Ns::Client)
        };
        for (name, told, taken_back) in CASES {
            let before = accepted()?;
            connect("60").with_context(|| format!("before {name}"))?;
            ensure!(accepted()? > before, "the server's kernel counts no connection");
            told.iter().try_for_each(|words| ip(Ns::Client, words))?;
            let before = accepted()?;
            let result = connect("1");
            ensure!(result.is_err(), "{name}: the connection left by client0");
            // A busy machine may be too slow for the answer.
            ensure!(accepted()? == before, "{name}: a SYN left by client0");
            taken_back.iter().try_for_each(|words| ip(Ns::Client, words))?;
        }
        connect("60").context("at the end")?;
        server.stop()
    })
}
