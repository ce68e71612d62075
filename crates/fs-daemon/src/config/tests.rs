use super::*;
use crate::access::Who;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, &|name| (name == "web").then_some(33)).map(|(config, _)| config)
}

/// What docs/OPERATING.md shows is a configuration.
#[test]
fn the_file_of_the_documentation() {
    let page = include_str!("../../../../docs/OPERATING.md");
    let block = page.split("```toml\n").skip(1).find(|block| block.contains("[[rule]]")).unwrap();
    let block = block.split("```").next().unwrap();
    let config = Config::parse(block, &|name| (name == "www-data").then_some(33)).unwrap().0;
    assert_eq!(config.joins, [["self", "web"]]);
    assert!(!config.rules.allow(&Who { uid: 33, cgroup: Some("/") }, Call::Bind, 80));
    assert!(config.rules.allow(&Who { uid: 0, cgroup: Some("/") }, Call::Bind, 80));
}

#[test]
fn rules_are_read_in_their_order() {
    let config = parse(
        r#"
        [limits]
        arenas = 10

        [[rule]]
        action = "allow"
        call = "bind"
        user = "web"
        ports = [80, "8000-8999"]

        [[rule]]
        action = "deny"
        cgroup = "/jail/"
        [[rule]]
        action = "deny"
        call = "bind"
        ports = "1-1023"
        "#,
    )
    .unwrap();
    assert_eq!(config.limits, Limits { arenas: 10, ..Limits::default() });
    let may = |uid, cgroup, call, port| config.rules.allow(&Who { uid, cgroup: Some(cgroup) }, call, port);
    assert!(may(33, "/", Call::Bind, 80));
    assert!(may(33, "/jail/x", Call::Bind, 8999));
    assert!(!may(33, "/jail/x", Call::Connect, 8999));
    assert!(!may(33, "/", Call::Bind, 81));
    assert!(may(34, "/", Call::Connect, 81));
    assert!(!may(34, "/jail", Call::Connect, 5000));
    assert!(may(34, "/jailbird", Call::Connect, 5000));
}

#[test]
fn holders_of_a_listener_share_by_user_or_not_at_all() {
    let sharing = |text: &str| parse(text).map(|config| config.sharing);
    assert_eq!(sharing(""), Ok(Sharing::User));
    assert_eq!(sharing("listener_memory = \"process\""), Ok(Sharing::Process));
    assert!(sharing("listener_memory = \"all\"").unwrap_err().contains("line 1"));
}

#[test]
fn open_connections_end_or_are_kept() {
    let flows = |text: &str| parse(text).map(|config| config.open_flows);
    assert_eq!(flows(""), Ok(OpenFlows::End));
    assert_eq!(flows("firewall_open_flows = \"keep\""), Ok(OpenFlows::Keep));
    assert!(flows("firewall_open_flows = \"spare\"").unwrap_err().contains("line 1"));
}

#[test]
fn an_empty_file_allows_everything() {
    let config = parse("").unwrap();
    assert!(config.joins.is_empty());
    assert!(config.rules.allow(&Who { uid: 0, cgroup: Some("") }, Call::Connect, 1));
}

#[test]
fn errors_name_line_and_cause() {
    let cases = [
        ("lmits = 1", "unknown field `lmits`"),
        ("[limits]\narena = 1", "unknown field `arena`"),
        ("[limits]\narenas = 0", "line 1: a limit of 0 allows nobody"),
        ("[limits]\narenas = 8000", "line 1: arenas = 8000: the address space has room for 7000"),
        ("[[rule]]\nuser = 1", "missing field `action`"),
        ("[[rule]]\naction = \"drop\"", "unknown variant `drop`"),
        ("[[rule]]\naction = \"deny\"\nuser = \"nobody-at-all\"", "line 3: there is no user `nobody-at-all`"),
        ("[[rule]]\naction = \"deny\"\nuser = -1", "a user's name or number"),
        ("[[rule]]\naction = \"deny\"\ncgroup = \"web\"", "line 3: `web` is not a cgroup path"),
        ("[[rule]]\naction = \"deny\"\nports = \"9-1\"", "line 3: `9-1` is not a port"),
        ("[[rule]]\naction = \"deny\"\nports = 0", "is not a port"),
        ("[[rule]]\naction = \"deny\"\nports = 70000", "a port, a range"),
        ("[[rule]]\naction = \"deny\"\nports = []", "line 3: the list of ports is empty"),
        ("[[rule]]\naction = \"deny\"\ncall = \"listen\"", "unknown variant `listen`"),
        ("[[join]]\nnamespaces = [\"self\"]", "line 2: a join needs two namespaces"),
        ("[[join]]\nnamespaces = [\"self\", \"a/b\"]", "line 2: `a/b` must be `self`"),
        ("[[join]]", "missing field `namespaces`"),
        ("[daemon]\nqueues = 2", "line 1: queues, xdp and partial_checksums need a device"),
        ("[daemon]\ndevice = \"x\"\nqueues = 0", "line 1: queues = 0"),
        ("[daemon]\ndevice = \"x\"\nxdp = \"fast\"", "unknown variant `fast`"),
        ("[[policy]]\nprogram = \"x\"", "missing field `carrier`"),
        ("[[policy]]\ncarrier = \"memory\"", "unknown variant `memory`"),
        ("[[policy]]\ncarrier = \"kernel\"\nprogram = \"/bin/x\"", "line 3: `/bin/x` is not a file name"),
        ("[[policy]]\ncarrier = \"kernel\"\nto = \"10.0.0.0/33\"", "line 3: `10.0.0.0/33` is not an IP address"),
        ("[[policy]]\ncarrier = \"kernel\"\nto = []", "line 3: the list of destinations is empty"),
        ("[[policy]]\ncarrier = \"kernel\"\ncall = \"bind\"\nto = \"::1\"", "line 4: `to` needs call"),
        ("[[policy]]\ncarrier = \"kernel\"\nports = \"9-1\"", "line 3: `9-1` is not a port"),
    ];
    for (text, expected) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let missing = Config::load(Path::new("/nonexistent/f.toml")).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/f.toml"));
}

#[test]
fn root_is_a_user() {
    assert_eq!(users("root"), Some(0));
    assert_eq!(users("no such user"), None);
}

#[test]
fn who_hides_his_cgroup_gains_nothing_by_it() {
    let rules = |first, second| {
        let text = format!(
            "[[rule]]\naction = \"{first}\"\ncgroup = \"/web\"\n[[rule]]\naction = \"{second}\"\nports = \"1-65535\""
        );
        Config::parse(&text, &|_| None).unwrap().0.rules
    };
    let unknown = Who { uid: 7, cgroup: None };
    assert!(!rules("deny", "allow").allow(&unknown, Call::Bind, 80));
    assert!(!rules("allow", "deny").allow(&unknown, Call::Bind, 80));
    let web = Who { uid: 7, cgroup: Some("/web/inner") };
    assert!(rules("allow", "deny").allow(&web, Call::Bind, 80));
    assert!(rules("deny", "allow").allow(&Who { uid: 7, cgroup: Some("/webserver") }, Call::Bind, 80));
}

#[test]
fn what_the_daemon_is_made_of() {
    let config = parse("[daemon]\ndevice = \"eth0\"\nqueues = 2\nxdp = \"copy\"\ndrain = 3").unwrap();
    let device = Device { name: "eth0".into(), queues: Some(2), xdp: XdpMode::Copy, partial_checksums: None };
    assert_eq!((config.device, config.drain), (Some(device), Some(Duration::from_secs(3))));
    assert_eq!(parse("[daemon]").unwrap().device, None);
}

#[test]
fn the_first_policy_that_fits_decides() {
    let config = parse(
        r#"
        [[policy]]
        carrier = "fastsock"
        program = "psql"
        to = "10.1.0.0/16"
        [[policy]]
        carrier = "kernel"
        program = "psql"
        to = ["10.0.0.0/8", "2001:db8::/32", "::1"]
        ports = 5432
        [[policy]]
        carrier = "kernel"
        program = "a-name-that-is-cut"
        call = "bind"
        "#,
    )
    .unwrap();
    let kernel =
        |program, call, at: &str| config.policies.carrier(program, call, at.parse().unwrap()) == Carrier::Kernel;
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
    write("fastsock.toml", "policy_dir = \"d\"\n[[policy]]\ncarrier = \"kernel\"");
    write("d/nginx.toml", "program = \"nginx\"\n[[policy]]\ncarrier = \"fastsock\"\ncall = \"bind\"");
    write("d/notes.txt", "not read");
    let config = Config::load(&main).unwrap();
    let carrier = |program| config.policies.carrier(program, Call::Bind, "0.0.0.0:80".parse().unwrap());
    assert_eq!((carrier("nginx"), carrier("redis")), (Carrier::Fastsock, Carrier::Kernel));
    for (text, expected) in [
        ("[[policy]]\ncarrier = \"kernel\"", "missing field `program`"),
        ("program = \"x\"\n[[policy]]\ncarrier = \"kernel\"\nprogram = \"y\"", "line 4: this file's policies"),
        ("program = \"x\"\n[[policy]]\ncarrier = \"kernel\"\nports = 0", "line 4: `0` is not a port"),
    ] {
        write("d/wrong.toml", text);
        let error = Config::load(&main).unwrap_err().to_string();
        assert!(error.contains("d/wrong.toml: ") && error.contains(expected), "{error}");
    }
    write("fastsock.toml", "\npolicy_dir = \"none\"");
    let error = Config::load(&main).unwrap_err().to_string();
    assert!(error.contains("line 2: cannot read the directory") && error.contains("none"), "{error}");
    std::fs::remove_dir_all(directory).unwrap();
}
