//! The daemon as a service: its notifications to the service manager, and reloads.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon with a configuration in its own directory. Dropping it removes both.
struct Service {
    daemon: Child,
    directory: PathBuf,
    manager: UnixDatagram,
}

impl Service {
    fn start(test: &str, config: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("fastsock-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let manager = UnixDatagram::bind(directory.join("notify")).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        std::fs::write(directory.join("fastsock.toml"), config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        command.arg("up").arg("--config").arg(directory.join("fastsock.toml"));
        command.arg("--control").arg(directory.join("control.sock"));
        command.env_remove("LD_PRELOAD").env("NOTIFY_SOCKET", directory.join("notify"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { daemon: command.spawn().unwrap(), directory, manager }
    }

    /// Returns the next notification.
    fn told(&self) -> String {
        let mut buffer = [0; 4096];
        let len = loop {
            match self.manager.recv(&mut buffer) {
                // A receive with a time-out is not restarted after a signal (signal(7)).
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                received => break received.unwrap(),
            }
        };
        String::from_utf8(buffer[..len].to_vec()).unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.daemon.id().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _dead = self.daemon.kill().and_then(|()| self.daemon.wait());
        let _gone = std::fs::remove_dir_all(&self.directory);
    }
}

#[test]
fn manager_is_notified_of_start_reload_and_end() {
    let mut service = Service::start("service", "[limits]\npairs = 10\n");
    assert_eq!(service.told(), "READY=1\nSTATUS=serving\n");
    assert!(service.directory.join("control.sock").exists());
    let waits = |what: &str| format!("restart the daemon to apply changes of {what}\n");
    for (config, says) in [
        // Without the section of the start.
        ("[[policy]]\nring = false\n", waits("[limits]")),
        ("[limits]\npairs = 10\n", "STATUS=reloaded policies\n".to_owned()),
        // A shared device may be away: only `--check` and a start look for it.
        ("devices = ['fs-none0']\n[limits]\npairs = 10\n", waits("devices")),
        ("[limits]\n\narenas = 0\n", "kept the old configuration, because the new one is wrong: ".to_owned()),
    ] {
        std::fs::write(service.directory.join("fastsock.toml"), config).unwrap();
        service.signal("-HUP");
        let told = service.told();
        assert!(told.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{told}");
        let told = service.told();
        assert!(told.starts_with("READY=1\nSTATUS=") && told.contains(&says), "{told}");
    }
    service.signal("-TERM");
    assert!(service.told().starts_with("STOPPING=1\n"));
    assert!(service.daemon.wait().unwrap().success());
}

/// A daemon that root starts keeps no capability.
#[test]
fn daemon_drops_unneeded_capabilities() {
    let service = Service::start("rights", "");
    service.told();
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.daemon.id())).unwrap();
    let field = |name: &str| {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
        u64::from_str_radix(value, 16).unwrap()
    };
    assert_eq!((field("NoNewPrivs:"), field("CapInh:"), field("CapAmb:")), (1, 0, 0));
    // Dropping a capability from the bounding set needs CAP_SETPCAP.
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let own = own.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let can = u64::from_str_radix(own, 16).unwrap() & 1 << 8 != 0;
    for name in ["CapEff:", "CapPrm:"].into_iter().chain(can.then_some("CapBnd:")) {
        assert_eq!(field(name), 0, "{name} {status}");
    }
}

#[test]
fn configuration_is_checked_without_a_daemon() {
    let file = std::env::temp_dir().join(format!("fastsock-check-{}.toml", std::process::id()));
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fastsock"));
        let output = command.args(["up", "--check", "--config"]).arg(&file).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    // The packages' configuration is valid.
    assert_eq!(check(include_str!("../../../packaging/fastsock.toml")), (true, String::new()));
    // The same with all its example settings enabled.
    let is_setting = |line: &str| {
        line.starts_with('[')
            || line.split_once(" = ").is_some_and(|(key, _)| key.bytes().all(|c| c == b'_' || c.is_ascii_lowercase()))
    };
    let shown = include_str!("../../../packaging/fastsock.toml").lines();
    let shown = shown.map(|line| line.strip_prefix("# ").filter(|line| is_setting(line)).unwrap_or(line));
    let shown = shown.filter(|line| !line.starts_with("policy_dir")).collect::<Vec<_>>().join("\n");
    let shown = shown.replace("user = \"www-data\"", "user = 33");
    assert_eq!(check(&shown), (true, String::new()), "{shown}");
    let (good, says) = check("[[policy]]\nring = false\nports = 0\n");
    assert!(!good && says.contains("line 3: ") && says.contains(file.to_str().unwrap()), "{says}");
    std::fs::remove_file(&file).unwrap();
}
