use super::listener::{PairConfig, TlsConfig};
use super::upstream::{ServerTable, ServerTlsConfig};
use super::value::parse_duration;
use super::*;
use serde::de::DeserializeOwned;
use std::sync::atomic::{AtomicUsize, Ordering};

fn load(text: &str) -> Result<Config, String> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let name = format!("fs-proxy-config-{}-{}.toml", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let file = std::env::temp_dir().join(name);
    std::fs::write(&file, text).unwrap();
    let result = Config::load(&file).map_err(|error| error.to_string());
    std::fs::remove_file(file).unwrap();
    result
}

const GOOD: &str = r#"
metrics = "127.0.0.1:9900"
access_log = "-"

[timeouts]
connect = "500ms"

[[listener]]
address = "127.0.0.1:80"
mode = "http"
upstream = "web"

[[upstream]]
name = "web"
servers = ["10.0.0.1:80", "[fd00::1]:80"]
balance = "least_connections"
health_check = { path = "/health", interval = "1s", fall = 1 }
keepalive = { connections = 4 }
"#;

/// The example in docs/PROXY.md is a valid configuration.
#[test]
fn example_of_the_documentation_is_valid() {
    let page = include_str!("../../../../docs/PROXY.md");
    let block = page.split("```toml\n").skip(1).find(|block| block.contains("[[upstream]]")).unwrap();
    let config = load(block.split("```").next().unwrap()).unwrap();
    assert_eq!((config.listeners.len(), config.upstreams[0].servers.len()), (1, 2));
}

#[test]
fn loads_the_example_configurations() {
    for text in [include_str!("../../configs/http.toml"), include_str!("../../configs/tcp.toml")] {
        load(text).unwrap();
    }
    // The reader must create its certificate.
    let error = load(include_str!("../../configs/tls.toml")).unwrap_err();
    assert!(error.contains("front.pem"), "{error}");
}

#[test]
fn valid_file() {
    let config = load(GOOD).unwrap();
    assert_eq!(config.timeouts.connect, Duration::from_millis(500));
    assert_eq!(config.timeouts.idle, Timeouts::default().idle);
    let upstream = &config.upstreams[0];
    assert_eq!(upstream.balance, Balance::LeastConnections);
    assert_eq!(upstream.servers.len(), 2);
    let check = upstream.health_check.as_ref().unwrap();
    assert_eq!((check.path.as_deref(), check.rise.get(), check.fall.get()), (Some("/health"), 2, 1));
    assert_eq!((upstream.keepalive.connections, upstream.keepalive.idle), (4, Keepalive::default().idle));
    assert!(config.upstreams_of(&config.listeners[0]).eq([0]));
}

/// Replaces a part of the valid file. The error must name `line` and `word`.
#[track_caller]
fn wrong(old: &str, new: &str, line: usize, word: &str) {
    assert!(GOOD.contains(old));
    let error = load(&GOOD.replacen(old, new, 1)).unwrap_err();
    assert!(error.contains(&format!("line {line}:")) && error.contains(word), "{error}");
}

#[test]
fn errors_have_their_line() {
    wrong("access_log", "acess_log", 3, "acess_log");
    wrong("connect =", "conect =", 6, "conect");
    wrong("upstream = \"web\"", "upstreem = \"web\"", 11, "upstreem");
    wrong("interval", "intervall", 17, "intervall");
    wrong("127.0.0.1:80", "127.0.0.1", 9, "127.0.0.1");
    wrong("\"http\"", "\"https\"", 10, "https");
    wrong("500ms", "500", 6, "500");
    wrong("\"/health\"", "\"health\"", 17, "health");
    wrong("upstream = \"web\"", "upstream = \"wob\"", 11, "wob");
    wrong("[\"10.0.0.1:80\", \"[fd00::1]:80\"]", "[]", 15, "no servers");
    wrong("10.0.0.1:80", "10.0.0.1:0", 15, "10.0.0.1:0");
    wrong("fall = 1", "fall = 0", 17, "0");
    wrong("upstream = \"web\"\n", "", 9, "upstream");
    wrong("name = \"web\"\n", "", 13, "name");
    wrong("mode = \"http\"\n", "mode = \n", 10, "");
}

#[test]
fn duplicates_and_empty_lists_are_errors() {
    assert!(load("").unwrap_err().contains("listener"));
    let listener = "\n[[listener]]\naddress = \"127.0.0.1:80\"\nmode = \"tcp\"\nupstream = \"web\"\n";
    assert!(load(&(GOOD.to_owned() + listener)).unwrap_err().contains("second listener"));
    // Their counters would be the same series.
    let named = |name: &str| {
        let listener = listener.replace("127.0.0.1:80", "127.0.0.1:0").replace("tcp", "http");
        GOOD.to_owned() + &[&*listener, &listener].map(|listener| format!("{listener}{name}\n")).concat()
    };
    for name in ["", "name = \"front\""] {
        assert!(load(&named(name)).unwrap_err().contains("second listener named"), "{name}");
    }
    let other_mode = named("name = \"front\"").replacen("\"http\"", "\"tcp\"", 2);
    assert!(load(&other_mode.replacen("\"tcp\"", "\"http\"", 1)).is_ok());
    let upstream = "\n[[upstream]]\nname = \"web\"\nservers = [\"10.0.0.9:1\"]\n";
    assert!(load(&(GOOD.to_owned() + upstream)).unwrap_err().contains("second upstream"));
}

#[test]
fn durations() {
    assert_eq!(parse_duration("250ms"), Some(Duration::from_millis(250)));
    assert_eq!(parse_duration("2m"), Some(Duration::from_secs(120)));
    for bad in ["", "5", "s", "-1s", "1h", "0s", "99999999999999999999s", "18446744073709551615m"] {
        assert_eq!(parse_duration(bad), None, "{bad}");
    }
}

#[test]
fn impossible_settings_are_errors() {
    let twice = "[\"10.0.0.1:80\", \"10.0.0.1:80\"]";
    wrong("[\"10.0.0.1:80\", \"[fd00::1]:80\"]", twice, 15, "twice");
    wrong("10.0.0.1:80", "127.0.0.1:80", 9, "round for ever");
    wrong("name = \"web\"", "name = \"we\\nb\"", 14, "line break");
    for bad in ["web.example:http", "web.example", "_web.example", "web.example:0"] {
        wrong("10.0.0.1:80", bad, 15, "not an address or a name");
    }
    // Through another listener, and through a wildcard's loopback address.
    let round = |address: &str, server: &str| {
        format!(
            "[[listener]]\naddress = '127.0.0.1:80'\nmode = 'http'\nupstream = 'a'\n\
             [[listener]]\naddress = '{address}'\nmode = 'http'\nupstream = 'b'\n\
             [[upstream]]\nname = 'a'\nservers = ['{server}']\n\
             [[upstream]]\nname = 'b'\nservers = ['127.0.0.1:80']\n"
        )
    };
    assert!(load(&round("127.0.0.1:81", "127.0.0.1:81")).unwrap_err().contains("round for ever"));
    assert!(load(&round("0.0.0.0:81", "127.0.0.1:81")).unwrap_err().contains("round for ever"));
    assert!(load(&round("0.0.0.0:81", "127.0.0.1:82")).is_ok());
}

#[test]
fn probable_mistakes_are_warnings() {
    let doubts = |text: &str| {
        load(text).unwrap().doubts().into_iter().map(|(_, message)| message).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(doubts(GOOD), "");
    let unused = format!("{GOOD}\n[[upstream]]\nname = \"spare\"\nservers = [\"10.0.0.9:80\"]\n");
    assert!(doubts(&unused).contains("`spare`"));
    let slow = GOOD.replace("interval = \"1s\"", "interval = \"1s\", timeout = \"2s\"");
    assert!(doubts(&slow).contains("may take 2s"));
    for (first, second, overlap) in [
        ("0.0.0.0:80", "127.0.0.1:80", true),
        ("127.0.0.1:80", "[::]:80", true),
        ("0.0.0.0:80", "127.0.0.1:81", false),
        ("0.0.0.0:80", "[::1]:80", false),
    ] {
        let listener = |address: &str| format!("[[listener]]\naddress = '{address}'\nmode = 'tcp'\nupstream = 'web'\n");
        let text =
            format!("{}{}[[upstream]]\nname = 'web'\nservers = ['10.0.0.1:1']", listener(first), listener(second));
        assert_eq!(doubts(&text).contains("overlap"), overlap, "{first} {second}");
    }
}

#[test]
fn networks() {
    let within = |network: &str, address: &str| {
        Network::parse(network).is_some_and(|network| network.contains(address.parse().unwrap()))
    };
    assert!(
        within("10.0.0.0/8", "10.1.2.3") && within("10.0.0.0/8", "::ffff:10.1.2.3") && within("0.0.0.0/0", "1.2.3.4")
    );
    assert!(within("fd00::/16", "fd00:1::1") && within("10.0.0.1", "10.0.0.1") && within("::/0", "fd00::1"));
    assert!(!within("10.0.0.0/8", "11.0.0.1") && !within("10.0.0.1", "10.0.0.2") && !within("::/0", "1.2.3.4"));
    assert!(["10.0.0.0/33", "10/8", "x", "fd00::/129", "10.0.0.0/-1"].iter().all(|bad| Network::parse(bad).is_none()));
}

#[test]
fn settings_without_an_effect_are_errors() {
    wrong("fall = 1 }", "fall = 1 }\nhash = \"address\"", 18, "only with balance");
    wrong("\"least_connections\"", "\"hash\"\nhash = \"cookies:x\"", 17, "cookie:NAME");
    for name in ["X-Forwarded-For", "Via", "TE"] {
        let hash = format!("\"hash\"\nhash = \"header:{name}\"");
        wrong("\"least_connections\"", &hash, 17, &format!("`{name}` cannot decide"));
    }
    wrong("\"least_connections\"", "\"least_connections\"\nsend_proxy = \"v1\"", 17, "X-Forwarded-For");
    let check = "health_check = { path = \"/health\", interval = \"1s\", fall = 1 }\n";
    wrong(check, "slow_start = \"9s\"\n", 15, "`slow_start` has an effect only with `health_check`");
    wrong(check, "queue = { requests = 9 }\n", 15, "`queue` has an effect only with `max_connections`");
    wrong(check, "lookup_interval = \"9s\"\n", 15, "`lookup_interval` has an effect only with names");
    wrong(check, "http2 = true\n", 15, "`keepalive.connections` has no effect with `http2`");
    wrong("[\"10.0.0.1:80\"", "[{ address = \"10.0.0.1:80\", weight = 1001 }", 15, "1000");
    wrong("[\"10.0.0.1:80\"", "[{ adress = \"10.0.0.1:80\" }", 15, "adress");
    let edits = |edits: &str| format!("\"http\"\nrequest_headers = {{ {edits} }}");
    for (text, word) in [
        ("remove = [\"Host\"]", "must have a `Host`"),
        ("remove = [\"a b\"]", "not the name"),
        ("set = { content-length = \"1\" }", "belongs to the proxy"),
        ("set = { X-Forwarded-For = \"1\" }", "belongs to the proxy"),
        ("set = { X-A = \"\\n\" }", "not the value"),
        ("sets = { X-A = \"1\" }", "sets"),
    ] {
        wrong("\"http\"", &edits(text), 11, word);
    }
    let in_tcp = GOOD.replace("\"http\"", "\"tcp\"\nresponse_headers = { remove = [\"A\"] }");
    assert!(load(&in_tcp).unwrap_err().contains("no headers"));
    let tcp = GOOD.replace("\"http\"", "\"tcp\"");
    let error = |text: &str| load(text).unwrap_err();
    assert!(error(&tcp.replace("\"least_connections\"", "\"hash\"\nhash = \"path\"")).contains("only hash"));
    let route = |mode: &str, route: &str| {
        let text = GOOD
            .replace("\"http\"", &format!("\"{mode}\""))
            .replace("\n[[upstream]]", &format!("\n[[listener.route]]\n{route}\n[[upstream]]"));
        load(&text).map(drop)
    };
    assert_eq!(route("http", "hosts = ['a', '*.b', '[::1]']\npaths = ['/x']\nupstream = 'web'"), Ok(()));
    let seen = "headers = { X-A = '1', Host = 'a', X-Forwarded-Proto = 'http' }";
    assert_eq!(route("http", &format!("{seen}\nupstream = 'web'")), Ok(()));
    assert_eq!(route("http", "redirect = 'https://{host}{target}'\nstatus = 302"), Ok(()));
    assert_eq!(route("tcp", "hosts = ['a']\nupstream = 'web'"), Ok(()));
    assert_eq!(route("http", "methods = ['GET', 'purge', 'Ban']\nupstream = 'web'"), Ok(()));
    for (mode, text, word) in [
        ("http", "hosts = ['a']", "either"),
        ("http", "redirect = '/'\nupstream = 'web'", "either"),
        ("http", "upstream = 'wob'", "wob"),
        ("http", "upstream = 'web'\nstatus = 301", "only with `redirect`"),
        ("http", "redirect = '/'\nstatus = 200", "301, 302"),
        ("http", "redirect = '/{path}'", "is not a location"),
        ("http", "redirect = 'https://a b'", "is not a location"),
        ("http", "headers = { TE = '*' }\nupstream = 'web'", "about one connection"),
        ("http", "headers = { proxy-authorization = 'x' }\nupstream = 'web'", "about one connection"),
        ("http", "headers = { x-forwarded-for = '*' }\nupstream = 'web'", "appends to it"),
        ("http", "hosts = ['a:80']\nupstream = 'web'", "without a port"),
        ("http", "hosts = ['a.*']\nupstream = 'web'", "is not a host"),
        ("http", "paths = ['x']\nupstream = 'web'", "is not a path"),
        ("http", "paths = ['/x?y']\nupstream = 'web'", "is not a path"),
        ("http", "methods = ['purge', 'get']\nupstream = 'web'", "`get` is not a method"),
        ("tcp", "paths = ['/x']\nupstream = 'web'", "only `hosts`"),
        ("tcp", "redirect = '/'", "only `hosts`"),
    ] {
        let error = route(mode, text).unwrap_err();
        assert!(error.contains(word), "{text}: {error}");
    }
}

/// Returns the keys of a table.
fn keys_of<T: DeserializeOwned>(section: &str) -> Vec<String> {
    let Err(error) = toml::from_str::<T>("no_such_key = 1") else { panic!("{section} takes any key") };
    let known = error.message().split("expected").nth(1).expect("it lists the known keys").to_owned();
    let names = known.split('`').skip(1).step_by(2);
    names.map(|key| if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }).collect()
}

#[test]
fn tls_and_http2_of_servers_are_checked() {
    let tail = "keepalive = { connections = 4 }";
    let with = |more: &str| format!("{tail}\n{more}");
    wrong(tail, &with("tls = { ca = '/nowhere.pem' }"), 19, "ca /nowhere.pem");
    wrong(tail, &with("tls = { ca = '/dev/null' }"), 19, "ca /dev/null");
    wrong(tail, &with("tls = { certificate = 'a.pem' }"), 19, "both `certificate` and `key`");
    wrong(tail, &with("tls = {}\nsend_proxy = 'v2'"), 19, "either `tls` or `send_proxy`");
    wrong(tail, &with("http2 = true"), 15, "health check with a path");
    let tcp = GOOD.replace("\"http\"", "\"tcp\"").replace("path = \"/health\", ", "");
    let error = load(&tcp.replace(tail, "http2 = true")).unwrap_err();
    assert!(error.contains("line 14:") && error.contains("has `http2`"), "{error}");
}

#[test]
fn limits_are_checked() {
    let tail = "keepalive = { connections = 4 }";
    wrong(tail, &format!("{tail}\nretry_budget = 101"), 19, "above 100");
    wrong(tail, &format!("{tail}\nqueue = {{ timeout = '0s' }}"), 19, "0s");
    wrong("\"10.0.0.1:80\"", "{ address = '10.0.0.1:80', max_connections = 0 }", 15, "0");
    wrong("[timeouts]", "[limits]\nclient_burst = 3\n[timeouts]", 6, "only with `client_requests`");
    wrong("[timeouts]", "[limits]\nclient_requests = 0\n[timeouts]", 6, "0");
}

#[test]
fn splice_is_refused_where_the_proxy_needs_the_bytes() {
    let text = |mode: &str, listener: &str, upstream: &str| {
        format!(
            "[[listener]]\naddress = '127.0.0.1:80'\nmode = '{mode}'\nupstream = 'u'\nsplice = 'auto'\n{listener}\n\
             [[upstream]]\nname = 'u'\nservers = ['10.0.0.1:80']\n{upstream}\n"
        )
    };
    let config = load(&text("tcp", "accept_proxy = true", "send_proxy = 'v2'")).unwrap();
    assert!(config.listeners[0].splices());
    // Tunnels to another upstream can leave.
    let route = "route = [{ paths = ['/w'], upstream = 'w' }]";
    let other = "[[upstream]]\nname = 'w'\nservers = ['10.0.0.2:80']";
    for (listener, upstream) in [("", ""), (route, &*format!("tls = {{}}\n{other}"))] {
        assert!(load(&text("http", listener, upstream)).unwrap().listeners[0].splices());
    }
    let file = Path::new("x.toml");
    config.check_stack(file, StackKind::Kernel).unwrap();
    let error = config.check_stack(file, StackKind::Fastsock).unwrap_err().to_string();
    assert!(error.starts_with("x.toml, line 5: `splice` needs --stack kernel"), "{error}");
    for (mode, listener, upstream, word) in [
        ("http", "tls = { certificate = 'a', key = 'b' }", "", "`tls`"),
        ("http", "", "tls = {}", "no upstream without `tls`"),
        ("http", "", "http2 = true", "no upstream without `tls` and `http2`"),
        ("tcp", "tls = { certificate = 'a', key = 'b' }", "", "`tls`"),
        ("tcp", "", "tls = {}", "upstream `u`"),
    ] {
        let error = load(&text(mode, listener, upstream)).unwrap_err();
        assert!(error.contains("line 5") && error.contains("`splice`") && error.contains(word), "{error}");
        // Off, it is nothing.
        let off = load(&text(mode, listener, upstream).replace("'auto'", "'off'"));
        assert!(off.is_ok() || listener.contains("certificate"), "{off:?}");
    }
}

/// A reload must check the file for the stack that runs, because `splice` needs the kernel's.
#[test]
fn drop_in_of_the_documentation_checks_what_it_runs() {
    let page = include_str!("../../../../docs/PROXY.md");
    let drop_in = page.split("```ini\n").nth(1).unwrap().split("```").next().unwrap();
    let command = |name: &str| {
        let mut lines = drop_in.lines().filter_map(|line| line.strip_prefix(name)).filter(|line| !line.is_empty());
        lines.next().unwrap_or_else(|| panic!("{name}: {drop_in}"))
    };
    assert_eq!(command("ExecReload=").replace(" --check", ""), command("ExecStart="));
    assert!(command("ExecReload=").contains(" --check") && drop_in.contains("ExecReload=\n"), "{drop_in}");
    assert!(drop_in.contains("\nExecReload=/bin/kill -HUP $MAINPID\n"), "{drop_in}");
}

/// The tables of docs/PROXY.md list every key, and no other.
#[test]
fn documentation_lists_every_key() {
    let keys = [
        keys_of::<Config>(""),
        keys_of::<Timeouts>("timeouts"),
        keys_of::<Limits>("limits"),
        keys_of::<ListenerConfig>("listener"),
        keys_of::<RouteConfig>("listener.route"),
        keys_of::<EditsConfig>("listener.request_headers"),
        keys_of::<EditsConfig>("listener.response_headers"),
        keys_of::<TlsConfig>("listener.tls"),
        keys_of::<PairConfig>("listener.tls.additional"),
        keys_of::<UpstreamConfig>("upstream"),
        keys_of::<ServerTable>("upstream.servers"),
        keys_of::<EditsConfig>("upstream.request_headers"),
        keys_of::<ServerTlsConfig>("upstream.tls"),
        keys_of::<HealthCheck>("upstream.health_check"),
        keys_of::<QueueConfig>("upstream.queue"),
        keys_of::<Keepalive>("upstream.keepalive"),
    ]
    .concat();
    assert!(keys.len() > 40, "{keys:?}");
    let page = include_str!("../../../../docs/PROXY.md");
    let rows = page.split("## Every key").nth(1).expect("the section").split("\n## ").next().unwrap_or_default();
    let listed: Vec<&str> = rows.lines().filter_map(|row| row.strip_prefix("| `")?.split('`').next()).collect();
    for key in &keys {
        assert_eq!(listed.iter().filter(|listed| *listed == key).count(), 1, "{key}");
    }
    for listed in listed {
        assert!(keys.iter().any(|key| key == listed), "`{listed}` is no key");
    }
}
