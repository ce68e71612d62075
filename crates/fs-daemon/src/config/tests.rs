use super::*;
use crate::policy::Subject;

const WEB: Subject<'_> = Subject { program: Some("web"), uid: 33, cgroup: Some("/") };

fn at(text: &str) -> std::net::SocketAddr {
    text.parse().unwrap()
}

fn port(port: u16) -> std::net::SocketAddr {
    ([127, 0, 0, 1], port).into()
}

fn parse(text: &str) -> Result<Config, String> {
    let config = Config::parse(text, &|name| (name == "web").then_some(33))?.0;
    config.checked().map_err(|error| error.to_string())
}

/// The example of docs/OPERATING.md is a valid configuration.
#[test]
fn the_file_of_the_documentation() {
    let page = include_str!("../../../../docs/OPERATING.md");
    let block = page.split("```toml\n").skip(1).find(|block| block.contains("[[policy]]")).unwrap();
    let block = block.split("```").next().unwrap();
    let config = Config::parse(block, &|name| (name == "www-data").then_some(33)).unwrap().0;
    assert!(!config.policies.permit(&WEB, Call::Bind, port(80)));
    assert!(config.policies.permit(&Subject { uid: 0, ..WEB }, Call::Bind, port(80)));
}

#[test]
fn policies_are_read_in_their_order() {
    let config = parse(
        r#"
        [limits]
        pairs = 10

        [[policy]]
        ring = true
        call = "bind"
        user = "web"
        ports = [80, "8000-8999"]

        [[policy]]
        ring = false
        cgroup = "/jail/"
        [[policy]]
        ring = false
        call = "bind"
        ports = "1-1023"
        "#,
    )
    .unwrap();
    assert_eq!(config.limits, Limits { pairs: 10, ..Limits::default() });
    let may = |uid, cgroup, call, number| {
        config.policies.permit(&Subject { uid, cgroup: Some(cgroup), ..WEB }, call, port(number))
    };
    assert!(may(33, "/", Call::Bind, 80));
    assert!(may(33, "/jail/x", Call::Bind, 8999));
    assert!(!may(33, "/jail/x", Call::Connect, 8999));
    assert!(!may(33, "/", Call::Bind, 81));
    assert!(may(34, "/", Call::Connect, 81));
    assert!(!may(34, "/jail", Call::Connect, 5000));
    assert!(may(34, "/jailbird", Call::Connect, 5000));
}

#[test]
fn an_empty_file_allows_everything() {
    let config = parse("").unwrap();
    assert!(config.policies.permit(&WEB, Call::Connect, port(1)));
}

#[test]
fn errors_name_line_and_cause() {
    let cases = [
        ("lmits = 1", "unknown field `lmits`"),
        ("[limits]\npair = 1", "unknown field `pair`"),
        ("[limits]\npairs = 0", "line 1: a limit of 0 allows nobody"),
        ("[[policy]]\nuser = 1", "missing field `ring`"),
        ("[[policy]]\nring = \"no\"", "expected a boolean"),
        ("[[policy]]\nring = false\nuser = \"nobody-at-all\"", "line 3: there is no user `nobody-at-all`"),
        ("[[policy]]\nring = false\nuser = -1", "a user's name or number"),
        ("[[policy]]\nring = false\ncgroup = \"web\"", "line 3: `web` is not a cgroup path"),
        ("[[policy]]\nring = false\nports = \"9-1\"", "line 3: `9-1` is not a port"),
        ("[[policy]]\nring = false\nports = 0", "is not a port"),
        ("[[policy]]\nring = false\nports = 70000", "a port, a range"),
        ("[[policy]]\nring = false\nports = []", "line 3: the list of ports is empty"),
        ("[[policy]]\nring = false\ncall = \"listen\"", "unknown variant `listen`"),
        (
            "devices = [\"eth0\"]\n[[policy]]\nring = false\nprogram = \"x\"\ncall = \"bind\"",
            "line 4: a program can call itself other than `x`, so this refuses no port of `devices`: name its `user`",
        ),
        ("[[policy]]\nring = false\nprogram = \"/bin/x\"", "line 3: `/bin/x` is not a file name"),
        ("[[policy]]\nring = false\nto = \"10.0.0.0/33\"", "line 3: `10.0.0.0/33` is not an IP address"),
        ("[[policy]]\nring = false\nto = []", "line 3: the list of destinations is empty"),
        ("[[policy]]\nring = false\ncall = \"bind\"\nto = \"::1\"", "line 4: `to` needs call"),
    ];
    for (text, expected) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let missing = Config::load(Path::new("/nonexistent/f.toml")).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/f.toml"));
}

#[test]
fn keys_of_earlier_versions_are_refused_with_the_cure() {
    let cases = [
        ("firewall = \"ignore\"", "line 1: there is no `firewall` any more: the kernel makes every connection"),
        ("\nfirewall_open_flows = \"keep\"", "line 2: there is no `firewall_open_flows` any more"),
        ("listener_memory = \"user\"", "line 1: there is no `listener_memory` any more: listeners are the kernel's"),
        ("[limits]\npairs = 1\n[daemon]\ndrain = 1", "line 3: there is no `daemon` any more"),
        ("[[join]]\nnamespaces = [\"self\", \"web\"]", "there is no `join` any more"),
        ("[limits]\n\narenas = 10", "line 3: there is no `arenas` any more: use `pairs`"),
        ("\n[[rule]]\naction = \"deny\"", "line 2: there is no `rule` any more: use [[policy]] with `ring = false`"),
        (
            "[[policy]]\nring = true\n[[policy]]\ncarrier = \"kernel\"",
            "line 4: there is no `carrier` any more: use `ring = false`",
        ),
        ("limits = { attachments = 10 }", "line 1: there is no `attachments` any more: use `processes`"),
    ];
    for (text, expected) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn ports_over_a_device_are_read() {
    let served = "[wire]\ndevice = \"eth0\"\n[[wire.port]]\nport = 80\n";
    let config = parse(served).unwrap();
    assert_eq!(config.wire().map(|wire| (wire.device.as_str(), wire.ports[0].port)), Some(("eth0", 80)));
    assert!(parse("").unwrap().wire().is_none());
    let other = parse(&served.replace("80", "81")).unwrap();
    assert_eq!(config.waits_for_restart(&other), ["[wire]"]);
    for (text, expected) in [
        ("[limits]\n[wire]\ndevice = \"eth0\"", "line 2: no port is served"),
        ("[wire]\ndevice = \"eth0\"\nport = 80", "line 3"),
        ("[wire]\ndevice = \"eth0\"\n[[wire.port]]\nport = 80\n[[wire.port]]\nport = 80", "port 80 is named twice"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn changed_limits_wait_for_a_restart() {
    let [first, second] = ["[limits]\npairs = 10", "[limits]\npairs = 11"].map(|text| parse(text).unwrap());
    assert_eq!(first.waits_for_restart(&second), ["[limits]"]);
    assert!(first.waits_for_restart(&first).is_empty());
    let third = parse("devices = [\"eth0\", \"eth1\"]").unwrap().with_shared(&["eth0".into()]).unwrap();
    assert_eq!(third.devices(), ["eth0", "eth1"]);
    assert_eq!(Config::default().waits_for_restart(&third), ["devices"]);
    let error = parse("devices = [\"eth0\",\n\"../eth1\"]").unwrap_err();
    assert!(error.contains("line 2") && error.contains("not the name of a device"), "{error}");
    let limits = first.limits.of_service();
    assert_eq!((limits.ends, limits.clients), (20, 8192));
}

#[test]
fn root_is_a_user() {
    assert_eq!(uid("root"), Some(0));
    assert_eq!(uid("no such user"), None);
}

#[test]
fn unreadable_cgroup_gains_nothing() {
    let permit = |[first, second]: [bool; 2], cgroup| {
        let text =
            format!("[[policy]]\nring = {first}\ncgroup = \"/web\"\n[[policy]]\nring = {second}\nports = \"1-65535\"");
        parse(&text).unwrap().policies.permit(&Subject { cgroup, ..WEB }, Call::Bind, port(80))
    };
    assert!(!permit([false, true], None));
    assert!(!permit([true, false], None));
    assert!(permit([true, false], Some("/web/inner")));
    assert!(permit([false, true], Some("/webserver")));
}

#[test]
fn the_first_policy_that_fits_decides() {
    let config = parse(
        r#"
        [[policy]]
        ring = true
        program = "psql"
        to = "10.1.0.0/16"
        [[policy]]
        ring = false
        program = "psql"
        to = ["10.0.0.0/8", "2001:db8::/32", "::1"]
        ports = 5432
        [[policy]]
        ring = false
        program = "a-name-that-is-cut"
        call = "bind"
        "#,
    )
    .unwrap();
    let kernel =
        |program, call, text: &str| !config.policies.permit(&Subject { program: Some(program), ..WEB }, call, at(text));
    assert!(kernel("psql", Call::Connect, "10.2.0.1:5432"));
    assert!(kernel("psql", Call::Connect, "[2001:db8::7]:5432") && kernel("psql", Call::Connect, "[::1]:5432"));
    assert!(!kernel("psql", Call::Connect, "10.1.0.1:5432"), "an earlier one fits");
    assert!(!kernel("psql", Call::Connect, "10.2.0.1:5433"), "another port");
    assert!(!kernel("psql", Call::Connect, "11.0.0.1:5432"), "another network");
    assert!(!kernel("psql", Call::Bind, "10.2.0.1:5432"), "`to` needs call");
    assert!(!kernel("redis", Call::Connect, "10.2.0.1:5432"), "another program");
    assert!(kernel("a-name-that-is-", Call::Bind, "0.0.0.0:1") && !kernel("a-name", Call::Bind, "0.0.0.0:1"));
}

#[test]
fn policies_of_programs_have_files() {
    let directory = std::env::temp_dir().join(format!("fastsock-policies-{}", std::process::id()));
    std::fs::create_dir_all(directory.join("d")).unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
    let main = directory.join("fastsock.toml");
    write("fastsock.toml", "policy_dir = \"d\"\n[[policy]]\nring = false");
    write("d/nginx.toml", "program = \"nginx\"\n[[policy]]\nring = true\ncall = \"bind\"");
    write("d/notes.txt", "not read");
    let config = Config::load(&main).unwrap();
    let permit = |program| config.policies.permit(&Subject { program: Some(program), ..WEB }, Call::Bind, port(80));
    assert_eq!((permit("nginx"), permit("redis")), (true, false));
    for (text, expected) in [
        ("[[policy]]\nring = false", "missing field `program`"),
        ("program = \"x\"\n[[policy]]\ncarrier = \"kernel\"", "line 3: there is no `carrier` any more"),
        ("program = \"x\"\n[[policy]]\nring = false\nprogram = \"y\"", "line 4: this file's policies"),
        ("program = \"x\"\n[[policy]]\nring = false\nports = 0", "line 4: `0` is not a port"),
    ] {
        write("d/wrong.toml", text);
        let error = Config::load(&main).unwrap_err().to_string();
        assert!(error.contains("d/wrong.toml: ") && error.contains(expected), "{error}");
    }
    // A program can change its name.
    write("d/wrong.toml", "program = \"x\"\n[[policy]]\nring = false\ncall = \"bind\"");
    let evaded = "d/wrong.toml: line 1: a program can call itself other than `x`, so this refuses no port of `devices`";
    let error = Config::load(&main).unwrap().with_shared(&["eth0".into()]).unwrap_err().to_string();
    assert!(error.contains(evaded), "{error}");
    write("fastsock.toml", "devices = [\"eth0\"]\npolicy_dir = \"d\"");
    let error = Config::load(&main).unwrap_err().to_string();
    assert!(error.contains(evaded), "{error}");
    write("d/wrong.toml", "program = \"x\"\n[[policy]]\nring = false");
    assert_eq!(Config::load(&main).unwrap().with_shared(&["eth0".into()]).unwrap().devices(), ["eth0"]);
    write("fastsock.toml", "[[policy]]\nring = false\nprogram = \"y\"\ncall = \"bind\"");
    let error = Config::load(&main).unwrap().with_shared(&["eth0".into()]).unwrap_err().to_string();
    assert!(error.contains("fastsock.toml: line 3: a program can call itself other than `y`"), "{error}");
    write("fastsock.toml", "\npolicy_dir = \"none\"");
    let error = Config::load(&main).unwrap_err().to_string();
    assert!(error.contains("line 2: cannot read the directory") && error.contains("none"), "{error}");
    std::fs::remove_dir_all(directory).unwrap();
}
