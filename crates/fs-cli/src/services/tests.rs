use super::*;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const LIBRARY: &str = "/usr/lib/fastsock/libfastsock.so";

/// A root directory with a `systemctl` that shows the units in `units` and records its other calls
/// in `calls`. A restart fails for a unit in `broken`.
struct Root {
    host: Host,
}

impl Root {
    fn new(test: &str) -> Self {
        let root = std::env::temp_dir().join(format!("fastsock-services-{test}-{}", std::process::id()));
        for folder in ["units", "broken", "run/systemd/system", "proc"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let systemctl = root.join("systemctl");
        let script = format!(
            "#!/bin/sh\ncd {}\nfor unit; do :; done\ncase $1 in\nshow)\n  [ -e units/$unit ] || echo LoadState=not-found\n  \
             sed '/^ExecPaths=/d;/^Environment=/d' units/$unit 2>/dev/null\n  \
             echo ExecPaths=$(sed -n 's/^ExecPaths=//p' units/$unit etc/systemd/system/$unit.d/*.conf 2>/dev/null)\n  \
             echo Environment=$(sed -n 's/^Environment=//p' units/$unit etc/systemd/system/$unit.d/*.conf 2>/dev/null)\n  \
             exit 0;;\nesac\n\
             echo \"$1 $unit\" >>calls\n[ ! -e broken/$unit ]\n",
            root.display()
        );
        std::fs::write(&systemctl, script).unwrap();
        std::fs::set_permissions(&systemctl, std::fs::Permissions::from_mode(0o755)).unwrap();
        Self { host: Host { root, systemctl } }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.host.path(path)
    }

    fn unit(&self, name: &str, properties: &str) {
        let text = format!(
            "Id={name}\nLoadState=loaded\nActiveState=active\nControlGroup=/system.slice/{name}\n{properties}\n"
        );
        std::fs::write(self.path("units").join(name), text).unwrap();
    }

    fn process(&self, pid: u32, unit: &str, maps: &str) {
        let folder = self.path("proc").join(pid.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("comm"), "some\n").unwrap();
        std::fs::write(folder.join("maps"), maps).unwrap();
        std::fs::write(folder.join("cgroup"), format!("0::/system.slice/{unit}\n")).unwrap();
        let control = self.path("control.sock");
        std::fs::write(folder.join("environ"), format!("A=1\0FASTSOCK_CONTROL={}\0", control.display())).unwrap();
        let _again = std::os::unix::fs::symlink("/", folder.join("root"));
    }

    fn enable(&self, service: &str, now: bool) -> anyhow::Result<String> {
        Ok(self.enabled(service, now)?.iter().map(|done| done.said.as_str()).collect::<Vec<_>>().join("\n"))
    }

    fn enabled(&self, service: &str, now: bool) -> anyhow::Result<Vec<Enabled>> {
        let units = self.host.units(service)?;
        units.iter().map(|unit| self.host.enable(unit, Path::new(LIBRARY), now)).collect()
    }

    fn drop_in(&self, unit: &str) -> Option<String> {
        std::fs::read_to_string(self.path(&format!("etc/systemd/system/{unit}.d/50-fastsock.conf"))).ok()
    }

    fn calls(&self) -> String {
        let calls = std::fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _none = std::fs::remove_file(self.path("calls"));
        calls.replace('\n', "; ")
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.host.root);
    }
}

/// Returns the line that makes a unit load the library.
fn line() -> String {
    format!("Environment=\"LD_PRELOAD={LIBRARY}\"\n")
}

#[test]
fn units_get_what_they_need() {
    let root = Root::new("needs");
    let with = |more: &str| {
        let head = "[Unit]\nAfter=fastsock.service\n[Service]\n";
        format!("{head}{}{more}", line())
    };
    let some = ["recvmsg", "sched_yield", "sendmsg"];
    let others: Vec<_> = super::drop_in::CALLS.into_iter().filter(|call| !some.contains(call)).collect();
    let allows = format!("SystemCallFilter={} uname", others.join(" "));
    let cases = [
        ("nginx", "ExecStart={ path=/bin/sh ; argv[]=/bin/sh -c x ; ignore_errors=no ; pid=0 }", with("")),
        // Debian's redis-server.
        ("redis-server", "NoExecPaths=/\nExecPaths=/usr/bin/redis-server /usr/lib /lib", with("")),
        ("narrow", "NoExecPaths=/\nExecPaths=/usr/bin/narrow", with("ExecPaths=-/usr/lib/fastsock\n")),
        (
            "rooted",
            "RootDirectory=/srv",
            with("BindReadOnlyPaths=-/usr/lib/fastsock\nBindReadOnlyPaths=-/run/fastsock\n"),
        ),
        ("hidden", "InaccessiblePaths=-/run /srv", with("BindReadOnlyPaths=-/run/fastsock\n")),
        ("temporary", "TemporaryFileSystem=/run:ro", with("BindReadOnlyPaths=-/run/fastsock\n")),
        ("inet", "RestrictAddressFamilies=AF_INET AF_INET6", with("RestrictAddressFamilies=AF_UNIX\n")),
        ("unix", "RestrictAddressFamilies=AF_INET AF_UNIX", with("")),
        ("denied", "RestrictAddressFamilies=~AF_UNIX AF_PACKET", with("RestrictAddressFamilies=AF_UNIX\n")),
        ("denies", "SystemCallFilter=~reboot sched_yield:EPERM", with("SystemCallFilter=sched_yield\n")),
        ("allows", allows.as_str(), with("SystemCallFilter=recvmsg sched_yield sendmsg\n")),
        (
            "preloads",
            "Environment=A=1 \"LD_PRELOAD=/usr/$LIB/libjemalloc.so.2\"",
            with("").replace("libfastsock.so\"", "libfastsock.so:/usr/$LIB/libjemalloc.so.2\""),
        ),
    ];
    for (name, properties, expected) in cases {
        root.unit(&format!("{name}.service"), properties);
        let said = root.enable(name, false).unwrap();
        assert!(said.contains(&format!("`systemctl restart {name}`")), "{said}");
        let drop_in = root.drop_in(&format!("{name}.service")).unwrap();
        let (mark, rest) = drop_in.split_once('\n').unwrap();
        assert_eq!(rest, expected, "{name}");
        assert!(mark.contains(&format!("fastsock disable {name}.service")), "{mark}");
        // Enabling twice is the same as once.
        root.enable(name, false).unwrap();
        assert_eq!(root.drop_in(&format!("{name}.service")).unwrap(), drop_in, "{name}");
    }
    assert_eq!(root.host.enabled().len(), 12);
    for unit in root.host.enabled() {
        root.host.disable(&unit, false).unwrap();
    }
    assert_eq!(std::fs::read_dir(root.path("etc/systemd/system")).unwrap().count(), 0);
}

#[test]
fn units_that_gain_nothing_are_refused() {
    let root = Root::new("refused");
    std::fs::create_dir_all(root.path("etc/default")).unwrap();
    std::fs::write(root.path("etc/default/f"), "LD_PRELOAD=/x.so\n").unwrap();
    let own = std::env::temp_dir().join(format!("fastsock-services-static-{}", std::process::id()));
    // A 32-bit program.
    std::fs::write(&own, [&b"\x7fELF\x01\x01\x01"[..], &[0; 64]].concat()).unwrap();
    let go = format!("ExecStart={{ path={0} ; argv[]={0} ; pid=0 }}", own.display());
    for (properties, expected) in [
        ("PrivateNetwork=yes", "network namespace of its own"),
        ("NetworkNamespacePath=/run/netns/x", "network namespace of its own"),
        ("EnvironmentFiles=/etc/default/f (ignore_errors=yes)", "/etc/default/f sets LD_PRELOAD"),
        (&go, "would gain nothing"),
    ] {
        root.unit("some.service", properties);
        let error = format!("{:#}", root.enable("some", true).unwrap_err());
        assert!(error.contains(expected), "{properties}: {error}");
        assert_eq!(root.drop_in("some.service"), None);
    }
    std::fs::remove_file(own).unwrap();
    let error = root.enable("none", false).unwrap_err().to_string();
    assert!(error.contains("there is no service none"), "{error}");
    root.unit("some.socket", "");
    assert!(root.enable("some.socket", false).unwrap_err().to_string().contains("is not a service"));
    assert_eq!(root.calls(), "");
}

/// A service that does not restart, and one whose file somebody else has written, keep no other service enabled.
#[test]
fn all_are_disabled_though_some_fail() {
    let root = Root::new("each");
    let names = ["a", "b", "c"].map(|name| format!("{name}.service"));
    for name in &names {
        root.unit(name, "");
        root.enable(name, false).unwrap();
    }
    std::fs::write(root.path("broken/a.service"), "").unwrap();
    let (mut said, units) = (Vec::new(), root.host.enabled());
    let code = root.host.disable_each(&units, true, &mut said).unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::FAILURE));
    assert_eq!(root.host.enabled(), Vec::<String>::new());
    assert_eq!(String::from_utf8(said).unwrap().matches("disabled").count(), 2);
    std::fs::remove_file(root.path("broken/a.service")).unwrap();
    let enabled = ["a", "b"].map(|unit| root.enable(unit, false).map(|_| format!("{unit}.service")).unwrap());
    let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = root.host.disable_each(&enabled, false, &mut full).unwrap_err();
    assert!(error.to_string().contains("cannot write"), "{error:#}");
    assert_eq!(root.host.enabled(), Vec::<String>::new());
}

/// If a service does not start with the library, or starts without it, the change is undone.
#[test]
fn change_is_taken_back_if_the_service_fails() {
    let root = Root::new("back");
    root.unit("some.service", "");
    std::fs::write(root.path("broken/some.service"), "").unwrap();
    let error = format!("{:#}", root.enable("some", true).unwrap_err());
    assert!(error.contains("does not start without it either"), "{error}");
    assert_eq!((root.drop_in("some.service"), root.host.enabled()), (None, vec![]));
    let calls = root.calls();
    assert_eq!(
        calls,
        "daemon-reload daemon-reload; restart some.service; daemon-reload daemon-reload; restart some.service; "
    );
    std::fs::remove_file(root.path("broken/some.service")).unwrap();
    root.process(40, "some.service", "00-01 r--p 0 0:0 1 /usr/bin/some\n");
    let error = format!("{:#}", root.enable("some", true).unwrap_err());
    assert!(error.contains("none of its 1 processes has loaded") && error.contains("taken back"), "{error}");
    assert_eq!(root.drop_in("some.service"), None);
    root.process(40, "some.service", "00-01 r--p 0 0:0 1 /usr/lib/fastsock/libfastsock.so\n");
    let said = root.enable("some", true).unwrap();
    assert!(said.contains("its processes have the library"), "{said}");
}

/// A process that has the library but does not reach the daemon gets no rings.
#[test]
fn service_that_does_not_reach_the_daemon_is_named() {
    let root = Root::new("reach");
    root.unit("some.service", "");
    root.process(40, "some.service", "00-01 r--p 0 0:0 1 /usr/lib/fastsock/libfastsock.so\n");
    let said = |expected: &str| {
        let done = root.enabled("some", true).unwrap().remove(0);
        assert!(!done.works && done.said.contains(expected), "{done:?}");
    };
    said("none of its connections can get a ring: no daemon answers at ");
    let control = root.path("control.sock");
    let daemon = fs_pairs::Service::bind(&control).unwrap();
    let done = root.enabled("some", true).unwrap().remove(0);
    assert!(done.works && done.said.ends_with("and its processes have the library"), "{done:?}");
    // A root directory without the socket.
    let link = root.path("proc/40/root");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(root.path("units"), &link).unwrap();
    said("/units, in which ");
    // A second process reaches the daemon.
    root.process(41, "some.service", "00-01 r--p 0 0:0 1 /usr/lib/fastsock/libfastsock.so\n");
    assert!(root.enabled("some", true).unwrap()[0].works);
    drop(daemon);
    said("no daemon answers at ");
}

/// If a later or invalid drop-in overrides the library, `systemctl show` reports it.
#[test]
fn systemd_has_the_last_word() {
    let root = Root::new("last");
    root.unit("some.service", "");
    let folder = root.path("etc/systemd/system/some.service.d");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("60-own.conf"), "Environment=LD_PRELOAD=/own.so\n").unwrap();
    let error = format!("{:#}", root.enable("some", false).unwrap_err());
    assert!(error.contains("another drop-in sets it"), "{error}");
    assert_eq!(root.drop_in("some.service"), None);
    assert!(folder.join("60-own.conf").exists());
}

#[test]
fn clusters_have_a_file_of_variables() {
    let root = Root::new("cluster");
    root.unit("postgresql.service", "ExecStart={ path=/bin/true ; argv[]=/bin/true ; pid=0 }");
    let mut files = Vec::new();
    for (version, name) in [("13", "old-one"), ("15", "main")] {
        root.unit(&format!("postgresql@{version}-{name}.service"), "");
        let folder = root.path("etc/postgresql").join(version).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        files.push(folder.join("environment"));
        std::fs::write(files.last().unwrap(), "# Variables\nA = 'b'\n").unwrap();
    }
    root.enable("postgresql", false).unwrap();
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        assert_eq!(text, format!("# Variables\nA = 'b'\nLD_PRELOAD = '{LIBRARY}' # fastsock enable\n"));
    }
    assert_eq!(root.host.enabled(), ["postgresql@13-old-one.service", "postgresql@15-main.service"]);
    assert!(root.host.state("postgresql@15-main.service").unwrap().is_enabled);
    for unit in root.host.enabled() {
        assert!(root.host.disable(&unit, true).unwrap().contains("disabled"));
    }
    assert_eq!(std::fs::read_to_string(&files[1]).unwrap(), "# Variables\nA = 'b'\n");
    // The cluster's user puts a link to a file of root's in its place.
    let of_root = root.path("environment");
    std::fs::write(&of_root, "of root").unwrap();
    let folder = files[1].parent().unwrap();
    let links: [(&Path, &Path); 2] = [(&of_root, &files[1]), (&root.path(""), folder)];
    for (target, link) in links {
        let own = link.with_extension("own");
        std::fs::rename(link, &own).unwrap();
        std::os::unix::fs::symlink(target, link).unwrap();
        let error = format!("{:#}", root.enable("postgresql@15-main", false).unwrap_err());
        assert!(error.contains("a part of the path is a symbolic link"), "{error}");
        std::fs::remove_file(link).unwrap();
        std::fs::rename(&own, link).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&of_root).unwrap(), "of root");
    std::fs::write(&files[0], "LD_PRELOAD = '/x.so'").unwrap();
    let error = root.enable("postgresql@13-old-one", false).unwrap_err().to_string();
    assert!(error.contains("sets LD_PRELOAD"), "{error}");
}

/// A service that was removed keeps its drop-in.
#[test]
fn service_that_is_not_installed_can_be_disabled() {
    let root = Root::new("gone");
    for name in ["some", "other"] {
        root.unit(&format!("{name}.service"), "");
        root.enable(name, false).unwrap();
    }
    std::fs::remove_file(root.path("units/some.service")).unwrap();
    let states: Vec<_> = root.host.enabled().iter().map(|unit| root.host.state(unit).unwrap().to_string()).collect();
    assert_eq!(
        states,
        [
            "other.service: enabled; active, without processes that this user can see",
            "some.service: enabled; not installed"
        ]
    );
    assert_eq!(root.host.ids("some").unwrap(), ["some.service"]);
    root.calls();
    assert!(root.host.disable("some.service", true).unwrap().contains("some: disabled"));
    assert_eq!((root.drop_in("some.service"), root.calls()), (None, "daemon-reload daemon-reload; ".into()));
    for unknown in [root.host.ids("some").map(drop), root.host.state("some.service").map(drop)] {
        assert!(unknown.unwrap_err().to_string().contains("there is no service some"));
    }
    std::fs::write(root.path("units/other.service"), "Id=other.service\nLoadState=masked\n").unwrap();
    assert_eq!(root.host.state("other.service").unwrap().to_string(), "other.service: enabled; does not run");
    assert_eq!(root.host.ids("other.service").unwrap(), ["other.service"]);
}

/// A cluster would start without its variables, and a service with an empty drop-in.
#[test]
fn full_disk_changes_no_file() {
    const CHILD: &str = "FASTSOCK_TEST_FULL_DISK";
    if std::env::var_os(CHILD).is_none() {
        // A limit for the size of files stands for a full disk. It is the whole process's.
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "trap '' XFSZ; exec \"$0\" --exact services::tests::full_disk_changes_no_file"]);
        let output = command.arg(std::env::current_exe().unwrap()).env(CHILD, "1").output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let root = Root::new("full");
    root.unit("some.service", "");
    root.unit("postgresql@15-main.service", "");
    let folder = root.path("etc/postgresql/15/main");
    std::fs::create_dir_all(&folder).unwrap();
    let (file, content) = (folder.join("environment"), format!("A = '{}'\n", "b".repeat(80)));
    std::fs::write(&file, &content).unwrap();
    root.unit("enabled.service", "");
    root.enable("enabled", false).unwrap();
    let enabled = root.drop_in("enabled.service").unwrap();
    let full = rustix::process::Rlimit { current: Some(100), maximum: Some(100) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, full).unwrap();
    for service in ["some", "postgresql@15-main", "enabled"] {
        let error = format!("{:#}", root.enable(service, false).unwrap_err());
        assert!(error.contains("cannot write ") && error.contains("File too large"), "{error}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), content);
    assert_eq!(root.drop_in("some.service"), None);
    assert_eq!(root.drop_in("enabled.service"), Some(enabled));
}

#[test]
fn others_files_are_left_alone() {
    let root = Root::new("others");
    root.unit("some.service", "");
    let folder = root.path("etc/systemd/system/some.service.d");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("50-fastsock.conf"), "[Service]\n").unwrap();
    let error = root.host.disable("some.service", true).unwrap_err().to_string();
    assert!(error.contains("remove it yourself"), "{error}");
    std::fs::remove_file(folder.join("50-fastsock.conf")).unwrap();
    std::fs::write(folder.join("own.conf"), "[Service]\n").unwrap();
    root.enable("some", false).unwrap();
    root.calls();
    assert!(root.host.disable("some.service", true).unwrap().contains("restarted if it ran"));
    assert_eq!(root.calls(), "daemon-reload daemon-reload; try-restart some.service; ");
    assert!(folder.join("own.conf").exists());
    assert!(root.host.disable("some.service", true).unwrap().contains("is not enabled"));
}

#[test]
fn enabled_service_without_the_library_is_named() {
    let root = Root::new("named");
    root.unit("some.service", "");
    root.process(40, "some.service", "00-01 r--p 0 0:0 1 /usr/bin/some\n");
    root.process(41, "some.service.d/x", "");
    root.process(42, "other.service", "00-01 /usr/lib/fastsock/libfastsock.so\n");
    assert!(without_library(&root.host).is_empty());
    root.enable("some", false).unwrap();
    let states = without_library(&root.host);
    let said = states.iter().map(State::to_string).collect::<Vec<_>>();
    assert_eq!(said, ["some.service: enabled; 0 of 1 processes have the library: `systemctl restart some` loads it"]);
    assert_eq!(states[0].json()["processes_with_library"], 0);
    root.process(41, "some.service", "00-01 /usr/lib/fastsock/libfastsock.so (deleted)\n");
    assert!(without_library(&root.host).is_empty());
    assert_eq!(service_of(&root.path("proc"), 42).as_deref(), Some("other.service"));
    assert_eq!(service_of(&root.path("proc"), 99), None);
}
