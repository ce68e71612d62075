//! Error messages about a device, and a device without ARP, over veth.

#[path = "common/veth.rs"]
mod veth;

use fs_compat::TcpStream;
use fs_rt::Runtime;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;
use veth::{DEVICE, PEER, Wire, at};

/// Set in the process that a test starts to hold the device.
const HOLD: &str = "FS_TEST_HOLD";

fn refusal() -> String {
    Runtime::builder()
        .device(DEVICE)
        .cores([0])
        .pin(false)
        .frames(4096)
        .ephemeral_ports(0)
        .build()
        .unwrap_err()
        .to_string()
}

#[test]
fn error_names_the_device_holder_and_a_working_remedy() {
    if std::env::var_os(HOLD).is_some() {
        let _runtime = Wire::runtime();
        println!("held");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let Some(wire) = Wire::up("the device's holder") else { return };
    wire.ours.enter(|| {
        let held = Wire::runtime();
        let said = refusal();
        assert!(said.contains("of this process"), "{said}");
        assert!(said.contains("end the process's earlier runtime"), "{said}");
        drop(held);
        let mut other = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "error_names_the_device_holder_and_a_working_remedy", "--nocapture"])
            .env(HOLD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = std::io::BufReader::new(other.stdout.take().unwrap());
        assert!(std::io::BufRead::lines(out).map_while(Result::ok).any(|line| line.contains("held")));
        let said = refusal();
        let cure = format!("`kill {}`", other.id());
        assert!(said.contains(&format!("of process {} (", other.id())) && said.contains(&cure), "{said}");
        other.kill().unwrap();
        other.wait().unwrap();
        drop(Wire::runtime());
    });
}

#[test]
fn error_for_memlock_limit_names_remedies() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    use rustix::thread::CapabilitySet;
    let Some(wire) = Wire::up("RLIMIT_MEMLOCK") else { return };
    // The other tests of this file need the capability.
    setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), maximum: Some(8 << 20) }).unwrap();
    let build = || Runtime::builder().device(DEVICE).cores([0]).pin(false).frames(512).ephemeral_ports(0).build();
    wire.ours.enter(|| {
        // Drop all capabilities except the four that the README names.
        let keep = CapabilitySet::NET_ADMIN | CapabilitySet::NET_RAW | CapabilitySet::BPF | CapabilitySet::PERFMON;
        veth::netns_unsafe::drop_capabilities(CapabilitySet::all() - keep);
        let said = build().unwrap_err().to_string();
        assert!(said.contains("RLIMIT_MEMLOCK is too small") && said.contains("CAP_IPC_LOCK"), "{said}");
        setrlimit(Resource::Memlock, Rlimit { current: Some(8 << 20), maximum: Some(8 << 20) }).unwrap();
        drop(build().unwrap());
    });
}

#[test]
fn deleted_device_is_named() {
    let Some(wire) = Wire::up("a deleted device") else { return };
    let ended = wire.ours.enter(|| {
        let runtime = Wire::runtime();
        let (runs, told) = std::sync::mpsc::channel();
        let deleting = std::thread::spawn(move || {
            told.recv().unwrap();
            assert!(Command::new("ip").args(["link", "del", DEVICE]).status().unwrap().success());
        });
        let ended = runtime.run(move |_| {
            runs.send(()).unwrap();
            std::future::pending::<()>()
        });
        deleting.join().unwrap();
        ended
    });
    let said = ended.unwrap_err().to_string();
    assert!(said.contains(DEVICE) && said.contains("build the runtime again"), "{said}");
}

/// Both ends have one link address, which the kernel puts into every frame then.
#[test]
fn device_without_arp_reaches_its_peer() {
    let Some(wire) = Wire::up("a device without ARP") else { return };
    for (namespace, device) in [(&wire.ours, DEVICE), (&wire.peer, "fsc1")] {
        namespace.run(&format!("ip link set dev {device} address 02:00:00:00:00:89 arp off"));
    }
    let _server = wire.peer.enter(|| TcpListener::bind(at(PEER, 80)).unwrap());
    let run = wire.ours.enter(|| {
        Wire::runtime().run(|_| async {
            let connected = tokio::time::timeout(Duration::from_secs(60), TcpStream::connect(at(PEER, 80)));
            connected.await.expect("an end").expect("a connection");
        })
    });
    run.unwrap();
}
