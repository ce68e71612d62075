//! Every method of the sockets of a core and of any thread, over AF_XDP on the program's own device,
//! over a shared device (as an unprivileged user), and on kernel sockets, which need neither privileges
//! nor a device. `operations/carriers.txt` has all results, docs/CARRIERS.md those that differ.
//!
//! `WRITE_CARRIERS=1` writes both. A difference needs a reason in [`DIFFER`].

mod operations;
#[path = "shared/lab.rs"]
mod shared;

use fs_compat::local::{TcpListener, UdpSocket};
use fs_rt::{LinkChoice, Runtime};
use operations::Row;
use shared::{DEVICE, Lab, NetNs, ROLE, ours, peers};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

/// The peer's port, and our port to which it connects.
const PORT: u16 = 7007;
const KNOCKED: u16 = 7008;

const OWN: &str = "over AF_XDP";
const SHARED: &str = "shared device";
const KERNEL: &str = "kernel";
const CARRIERS: [&str; 3] = [OWN, SHARED, KERNEL];

/// The end of the type's name, the operation, and why the carriers differ.
const DIFFER: &[(&str, &str, &str)] = &[
    ("TcpStream", "carrier", "says which"),
    ("TcpStream", "poll_forward", "the kernel's received bytes are in no frame that a core could send"),
    ("local::TcpStream", "into_std", "a core's connection is no descriptor of the kernel"),
    ("Socket", "bind_device of the runtime's", "a runtime on kernel sockets has no device"),
];

/// Methods without a call, and why.
const NOT_CALLED: &[(&str, &str, &str)] = &[
    ("local::TcpListener", "kernel_socket", "for another process: `exchange.rs` of fs-proxy"),
    ("local::TcpListener", "leave", "needs a process that has the socket too: `exchange.rs` of fs-proxy"),
    ("local::TcpListener", "from_std", "takes a socket over for good: `exchange.rs` of fs-proxy"),
    ("local::TcpSocket", "bind_held", "needs a port that another process holds"),
    ("local::TcpStream", "recv_out_of_band", "urgent data needs a peer that sends it: `carriers.rs` of fs-compat"),
];

/// Functions of `operations` that call a type's methods: the end of the type's name, file,
/// functions.
const CALLED_IN: &[(&str, &str, &[&str])] = &[
    ("TcpStream", "both.rs", &["stream", "end"]),
    ("local::TcpStream", "core_only.rs", &["stream", "ends"]),
    ("TcpListener", "both.rs", &["listener"]),
    ("local::TcpListener", "core_only.rs", &["listener"]),
    ("local::TcpSocket", "core_only.rs", &["socket", "options"]),
    ("UdpSocket", "both.rs", &["datagrams", "datagram_options", "datagram_groups"]),
    ("local::UdpSocket", "core_only.rs", &["datagrams"]),
    ("net::UdpSocket", "mod.rs", &["all"]),
];

/// The role of a process: "peer", or "shared".
#[test]
fn program() {
    let Ok(role) = std::env::var(ROLE) else { return };
    match &*role {
        "peer" => {
            let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
            let serve = |_| async {
                let listener = TcpListener::bind(("0.0.0.0", PORT)).await.unwrap();
                let socket = UdpSocket::bind(("0.0.0.0", PORT)).await.unwrap();
                println!("ready");
                operations::serve(listener, socket, SocketAddr::new(ours(false), KNOCKED)).await;
            };
            runtime.run(serve).unwrap();
        }
        _ => println!("ready {}", serde_json::to_string(&calls_over_device()).unwrap()),
    }
}

fn calls_over_device() -> Vec<Row> {
    let runtime = Runtime::builder().device(DEVICE).cores([0]).pin(false).frames(4096).ephemeral_ports(64);
    let calls = |_| async {
        let knocked = SocketAddr::new(ours(false), KNOCKED);
        operations::all(SocketAddr::new(peers(false), PORT), knocked, DEVICE).await
    };
    runtime.build().unwrap_or_else(|error| panic!("{error}")).run(calls).unwrap().pop().unwrap()
}

fn calls_of_kernel() -> Vec<Row> {
    let runtime = Runtime::builder().link(LinkChoice::Kernel).cores([0]).pin(false).build().unwrap();
    let calls = |_| async {
        let host: IpAddr = Ipv4Addr::LOCALHOST.into();
        let knocked = std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap();
        let listener = TcpListener::bind((host, 0)).await.unwrap();
        let peer = listener.local_addr().unwrap();
        // The same port for both, as in the lab.
        let socket = UdpSocket::bind(peer).await.unwrap();
        tokio::task::spawn_local(operations::serve(listener, socket, knocked));
        operations::all(peer, knocked, DEVICE).await
    };
    runtime.run(calls).unwrap().pop().unwrap()
}

/// The results by carrier, type and operation.
type Table = BTreeMap<&'static str, BTreeMap<(String, String), String>>;

fn reason(of: &str, operation: &str) -> Option<&'static str> {
    DIFFER.iter().find(|(ends, name, _)| of.ends_with(ends) && *name == operation).map(|(.., why)| *why)
}

/// Formats the results of the operations that differ.
fn differences(order: &[(String, String)], table: &Table) -> String {
    let mut text = format!("| socket | operation | {} | why |\n|---|---|---|---|---|---|\n", CARRIERS.join(" | "));
    for key @ (of, operation) in order {
        // A reason without a difference fails the test.
        let Some(why) = reason(of, operation) else { continue };
        let said: Vec<_> = CARRIERS.iter().map(|carrier| format!("`{}`", table[carrier][key])).collect();
        writeln!(text, "| `{of}` | {operation} | {} | {why} |", said.join(" | ")).unwrap();
    }
    text
}

/// Formats all results, with operations in the order of their calls.
fn all_results(order: &[(String, String)], table: &Table) -> String {
    let mut text = String::new();
    for key @ (of, operation) in order {
        let said: BTreeSet<_> = CARRIERS.iter().map(|carrier| &table[carrier][key]).collect();
        write!(text, "{of} {operation}:").unwrap();
        for carrier in CARRIERS {
            match said.len() {
                1 if carrier == OWN => write!(text, " {}", table[carrier][key]).unwrap(),
                1 => {}
                _ => write!(text, " {carrier} {};", table[carrier][key]).unwrap(),
            }
        }
        text.push('\n');
    }
    text
}

#[test]
fn operations_return_the_same_on_each_carrier() {
    let lab = Lab::up("carrier_table");
    // If there may be one, in a namespace where nobody else has ports.
    let kernel = if lab.is_some() { NetNs::new().enter(calls_of_kernel) } else { calls_of_kernel() };
    let mut all = vec![(KERNEL, kernel)];
    if let Some(lab) = lab {
        let _peer = lab.program(&lab.peer, 65_534, "peer");
        all.push((OWN, lab.host.enter(calls_over_device)));
        let daemon = lab.daemon();
        let shared = lab.program(&lab.host, 65_534, "shared");
        all.push((SHARED, serde_json::from_str(&shared.last()).unwrap()));
        drop((shared, daemon));
        lab.wait_for_pairs(0);
        lab.down();
    }
    let order: Vec<_> = all[0].1.iter().map(|(of, operation, _)| (of.clone(), operation.clone())).collect();
    let once: BTreeSet<_> = order.iter().collect();
    assert!(order.len() == once.len() && order.len() > 200, "{} operations, {} names", order.len(), once.len());
    let table: Table = all
        .into_iter()
        .map(|(carrier, rows)| (carrier, rows.into_iter().map(|(of, name, said)| ((of, name), said)).collect()))
        .collect();
    let differs = |key: &(String, String)| table.values().any(|rows| rows.get(key) != table[KERNEL].get(key));
    let mut wrong = String::new();
    for key @ (of, operation) in &order {
        if differs(key) && reason(of, operation).is_none() {
            let said: Vec<_> = table.iter().map(|(carrier, rows)| format!("{carrier}: {:?}", rows.get(key))).collect();
            writeln!(wrong, "{of} {operation} differs without a reason: {}", said.join(", ")).unwrap();
        }
    }
    if table.len() < CARRIERS.len() {
        assert!(wrong.is_empty(), "\n{wrong}");
        return;
    }
    for (ends, name, _) in DIFFER {
        if !order.iter().any(|key| key.0.ends_with(ends) && key.1 == *name && differs(key)) {
            writeln!(wrong, "{ends} {name} does not differ any more").unwrap();
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CARRIERS.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (text, _) = page.split_once("| socket | operation |").expect("the table");
    let new = format!("{text}{}", differences(&order, &table));
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/operations/carriers.txt");
    for (path, was, new) in [
        (&path, page.clone(), new),
        (&results, std::fs::read_to_string(&results).unwrap_or_default(), all_results(&order, &table)),
    ] {
        if std::env::var_os("WRITE_CARRIERS").is_some() {
            std::fs::write(path, new).unwrap();
        } else if was != new {
            let path = path.display();
            writeln!(wrong, "{path} is out of date: WRITE_CARRIERS=1 cargo test -p fs-cli --test carrier_table")
                .unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// Returns the bodies of the functions of this name, up to their closing brace.
fn bodies(source: &str, name: &str) -> String {
    let mut bodies = String::new();
    let mut end = None;
    for line in source.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if line.contains(&format!("fn {name}(")) {
            end = Some(format!("{indent}}}"));
        }
        if end.is_some() {
            bodies += line;
            bodies.push('\n');
        }
        if end.as_deref() == Some(line) {
            end = None;
        }
    }
    assert!(!bodies.is_empty(), "no function {name}");
    bodies
}

/// `methods.txt` of fs-compat lists every method of each type; each is called above, in a function of
/// its type.
#[test]
fn every_method_is_called() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(here.join("../fs-compat/tests/api_table/methods.txt")).unwrap();
    let source = |name: &str| std::fs::read_to_string(here.join("tests/operations").join(name)).unwrap();
    let mut missing = Vec::new();
    let mut methods = 0;
    let mut types: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in page.lines() {
        let (of, method) = line.rsplit_once("::").expect("a type and a method");
        types.entry(of).or_default().push(method);
    }
    // The halves' methods call those of the stream.
    for (of, listed) in types.into_iter().filter(|(of, _)| !of.ends_with("Half")) {
        let mut calls = String::new();
        for (_, file, functions) in CALLED_IN.iter().filter(|(ends, ..)| of.ends_with(ends)) {
            functions.iter().for_each(|name| calls += &bodies(&source(file), name));
        }
        // A constructor names its type in any function.
        let (_, ty) = of.split_once("::").expect("a module and a type");
        let files: &[_] = if of.starts_with("local::") { &["both.rs", "core_only.rs"] } else { &["both.rs", "mod.rs"] };
        let named = files.iter().map(|file| source(file)).collect::<String>();
        for method in listed {
            methods += 1;
            let called = calls.contains(&format!(".{method}(")) || named.contains(&format!("{ty}::{method}("));
            match NOT_CALLED.iter().any(|(ty, name, _)| *ty == of && *name == method) {
                listed if listed == called => missing.push(format!("{of}::{method}")),
                _ => {}
            }
        }
    }
    assert!(methods > 250, "{methods} methods");
    assert!(missing.is_empty(), "not called, or called and listed as not called: {missing:#?}");
}
