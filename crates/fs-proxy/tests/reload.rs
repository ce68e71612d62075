//! SIGHUP over loopback, on kernel sockets.

mod common;

use common::*;
use fs_stacks::testing::{PATIENCE, Program, Signal, eventually};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// One listener and one upstream.
fn config(mode: &str, server: SocketAddr, more: &str) -> String {
    format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"{mode}\"\nupstream = \"u\"\nname = \"front\"\n\
         [[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n{more}\n"
    )
}

fn start(text: &str) -> Proxy {
    let config = write_config(text);
    // Both cores on one CPU if the machine has only one.
    let cores = if std::thread::available_parallelism().unwrap().get() > 1 { "0,1" } else { "0" };
    let program = Program::start(EXE, &["--config", config.to_str().unwrap(), "--cores", cores]);
    Proxy { program, config }
}

/// Returns how often the log has this text.
fn said(proxy: &Proxy, what: &str) -> usize {
    proxy.program.log().matches(what).count()
}

fn reload(proxy: &Proxy, text: &str) {
    let before = said(proxy, "is in use;");
    std::fs::write(&proxy.config, text).unwrap();
    proxy.program.signal(Signal::HangUp);
    eventually("the new configuration is in use", || said(proxy, "is in use;") > before);
}

/// Returns the address of the newest listener in the log.
fn newest(proxy: &Proxy, name: &str) -> SocketAddr {
    let log = proxy.program.log();
    let line = log.lines().rfind(|line| line.contains("listening") && line.ends_with(name));
    let words: Vec<&str> = line.unwrap_or_else(|| panic!("no listener: {log}")).split(' ').collect();
    words[words.len() - 2].parse().unwrap()
}

fn named(name: &'static str) -> SocketAddr {
    http_backend(move |_| ok(name))
}

const LENGTH: usize = 2 << 20;

/// A backend that sends a head and `at_once` bytes of a body, and the rest when `go` becomes true.
/// Counts its requests.
fn download(go: Arc<AtomicBool>, at_once: usize, asked: Arc<AtomicUsize>) -> SocketAddr {
    backend(move |stream| {
        let mut writer = stream.try_clone()?;
        read_request(&mut BufReader::new(stream))?;
        asked.fetch_add(1, Ordering::SeqCst);
        let answer = ok(pattern(LENGTH));
        let head = answer.len() - LENGTH;
        let now = if at_once == 0 { 0 } else { head + at_once };
        writer.write_all(&answer[..now])?;
        eventually("the test says go", || go.load(Ordering::SeqCst));
        writer.write_all(&answer[now..])
    })
}

#[test]
fn new_requests_use_the_new_servers_and_no_connection_is_refused() {
    let proxy = start(&config("http", named("old"), ""));
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let answer = proxy.get("/");
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                    count.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for number in 0..20 {
            let name = ["new", "newer"][number % 2];
            reload(&proxy, &config("http", named(name), ""));
            assert_eq!(body_of(&proxy.get("/")), name);
        }
        eventually("requests are answered", || count.load(Ordering::SeqCst) > 20);
        stop.store(true, Ordering::SeqCst);
    });
}

#[test]
fn downloads_in_progress_are_completed() {
    for at_once in [0, 1000] {
        let (go, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let text = |server| format!("timeouts = {{ drain = \"1ms\" }}\n{}", config("http", server, ""));
        let proxy = start(&text(download(go.clone(), at_once, asked.clone())));
        let mut stream = proxy.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        while answer.len() < at_once {
            let mut chunk = [0; 100];
            let len = stream.read(&mut chunk).unwrap();
            answer.extend(&chunk[..len]);
        }
        eventually("the old server is asked", || asked.load(Ordering::SeqCst) == 1);
        reload(&proxy, &text(named("new")));
        assert_eq!(body_of(&proxy.get("/")), "new");
        std::thread::sleep(Duration::from_millis(100));
        go.store(true, Ordering::SeqCst);
        if at_once > 0 {
            // The head was sent before, so the connection is kept for one more request.
            stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        }
        stream.read_to_end(&mut answer).unwrap();
        let head = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        assert!(answer[head..][..LENGTH] == pattern(LENGTH), "{} bytes", answer.len());
        let rest = if at_once == 0 { &answer[..head] } else { &answer[head + LENGTH..] };
        let rest = String::from_utf8_lossy(rest).to_lowercase();
        assert!(
            rest.contains("connection: close") && rest.ends_with(if at_once == 0 { "\r\n" } else { "new" }),
            "{rest}"
        );
    }
}

#[test]
fn idle_connection_gets_its_next_response_from_the_new_configuration() {
    let proxy = start(&config("http", named("old"), ""));
    let stream = proxy.connect();
    let (mut writer, mut reader) = (stream.try_clone().unwrap(), BufReader::new(stream));
    let mut ask = |close: bool| {
        writer.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "ended: {head}");
        }
        assert_eq!(head.to_lowercase().contains("connection: close"), close, "{head}");
        let mut body = [0; 3];
        reader.read_exact(&mut body).unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    };
    assert_eq!((ask(false), ask(false)), ("old".into(), "old".into()));
    reload(&proxy, &config("http", named("new"), ""));
    assert_eq!(ask(true), "new");
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "closed behind the answer");
}

#[test]
fn tcp_connection_continues_with_its_server() {
    let numbered = |number: u8| {
        backend(move |mut stream| {
            stream.write_all(&[number])?;
            std::io::copy(&mut stream.try_clone()?, &mut stream).map(drop)
        })
    };
    let proxy = start(&config("tcp", numbered(1), ""));
    let mut stream = proxy.connect();
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    reload(&proxy, &config("tcp", numbered(2), ""));
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"x");
    proxy.connect().read_exact(&mut byte).unwrap();
    assert_eq!(byte, [2]);
}

#[test]
fn listeners_are_added_and_removed() {
    let other = |name: &str, server| config("http", server, "").replace("front", name);
    let proxy = start(&config("http", named("one"), ""));
    let first = proxy.addr();
    let both = format!(
        "{}\n[[listener]]\naddress = \"127.0.0.1:0\"\nmode = \"http\"\nupstream = \"v\"\nname = \"second\"\n\
         [[upstream]]\nname = \"v\"\nservers = [\"{}\"]",
        other("front", named("one")),
        named("two")
    );
    reload(&proxy, &both);
    let get = |addr: SocketAddr| {
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        body_of(&answer).to_owned()
    };
    let second = newest(&proxy, "second");
    assert_eq!((get(first), get(second)), ("one".into(), "two".into()));
    // A wildcard is another address: the first socket is closed, and this one is new.
    reload(&proxy, &other("third", named("three")).replace("127.0.0.1:0", "0.0.0.0:0"));
    let third = newest(&proxy, "third");
    assert_eq!(get(SocketAddr::new(first.ip(), third.port())), "three");
    eventually("the others are closed", || [first, second].iter().all(|addr| TcpStream::connect(addr).is_err()));
}

#[test]
fn unusable_file_changes_nothing() {
    let mut proxy = start(&config("http", named("old"), ""));
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap();
    let in_use = config("http", named("new"), "").replace("127.0.0.1:0", &taken.to_string());
    let cases = [
        ("frobnicate = 1".to_owned(), "line 1"),
        (in_use, "in use"),
        (format!("metrics = \"{taken}\"\n{}", config("http", named("new"), "")), "in use"),
        (format!("access_log = \"/nonexistent/log\"\n{}", config("http", named("new"), "")), "/nonexistent/log"),
    ];
    for (number, (text, word)) in cases.into_iter().enumerate() {
        std::fs::write(&proxy.config, text).unwrap();
        proxy.program.signal(Signal::HangUp);
        eventually("the error is logged", || said(&proxy, "nothing has changed") == number + 1);
        let log = proxy.program.log();
        assert!(log.lines().next_back().unwrap().contains(word), "{word}: {log}");
        assert_eq!(body_of(&proxy.get("/")), "old");
    }
    drop(holder);
    reload(&proxy, &config("http", named("new"), ""));
    assert_eq!(body_of(&proxy.get("/")), "new");
    proxy.program.signal(Signal::Quit);
    assert!(proxy.program.wait().success(), "SIGQUIT ends it as SIGTERM does");
}

#[test]
fn health_checks_and_pools_of_the_old_configuration_end() {
    let (asked, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counter, gauge) = (asked.clone(), open.clone());
    let old = backend(move |stream| {
        gauge.fetch_add(1, Ordering::SeqCst);
        let counter = &counter;
        let result = http_connection(stream, &|_: &Received| {
            counter.fetch_add(1, Ordering::SeqCst);
            ok("old")
        });
        gauge.fetch_sub(1, Ordering::SeqCst);
        result
    });
    let proxy = start(&config("http", old, "health_check = { interval = \"20ms\", path = \"/\" }"));
    // A client that stays keeps the old configuration alive.
    let _idle = {
        let mut stream = proxy.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream
    };
    eventually("it is checked", || asked.load(Ordering::SeqCst) > 5);
    reload(&proxy, &config("http", named("new"), ""));
    eventually("no connection to it is kept", || open.load(Ordering::SeqCst) == 0);
    // A last check may be in the server's queue.
    eventually("it is not checked any more", || {
        let before = asked.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(200));
        asked.load(Ordering::SeqCst) == before
    });
}

/// Neither a check in progress nor the number of bad checks starts again.
#[test]
fn reloads_do_not_hide_servers_that_are_down() {
    let silent = backend(|mut stream| std::io::copy(&mut stream, &mut std::io::sink()).map(drop));
    let refusing = nobody();
    let sick = |name: &str, server: SocketAddr, check: &str| {
        format!("[[upstream]]\nname = \"{name}\"\nservers = [\"{server}\"]\nhealth_check = {{ {check} }}\n")
    };
    let text = [
        "metrics = \"127.0.0.1:0\"\n",
        &config("http", named("well"), ""),
        &sick("silent", silent, "interval = \"20ms\", timeout = \"1s\", fall = 2, path = \"/\""),
        &sick("refusing", refusing, "interval = \"200ms\", fall = 5"),
    ]
    .concat();
    let proxy = start(&text);
    eventually("both are found", || {
        // Neither has so many bad checks, nor one that ends, in this time.
        std::thread::sleep(Duration::from_millis(300));
        reload(&proxy, &text);
        let metrics = proxy.metrics();
        let is_down = |name: &str, server: SocketAddr| {
            metrics.contains(&format!("fs_proxy_server_healthy{{upstream=\"{name}\",server=\"{server}\"}} 0"))
        };
        is_down("silent", silent) && is_down("refusing", refusing)
    });
}

#[test]
fn counters_and_health_continue_and_the_log_is_reopened() {
    let (first, moved) = (temp_path("access.log"), temp_path("access.log.1"));
    let down = nobody();
    let text = |server| {
        let check = "health_check = { interval = \"20ms\", fall = 1 }";
        let front = config("http", server, "");
        let sick = format!("[[upstream]]\nname = \"sick\"\nservers = [\"{down}\"]\n{check}");
        format!("access_log = {:?}\nmetrics = \"127.0.0.1:0\"\n{front}{sick}", first.to_str().unwrap())
    };
    let proxy = start(&text(named("old")));
    let metrics = || {
        let mut stream = TcpStream::connect(proxy.program.metrics.unwrap()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    let unhealthy = format!("fs_proxy_server_healthy{{upstream=\"sick\",server=\"{down}\"}} 0");
    proxy.get("/one");
    eventually("it is found out", || metrics().contains(&unhealthy));
    std::fs::rename(&first, &moved).unwrap();
    reload(&proxy, &text(named("new")));
    assert!(metrics().contains(&unhealthy), "{}", metrics());
    proxy.get("/two");
    let answers = "fs_proxy_answers_total{listener=\"front\",class=\"2xx\"} 2";
    eventually("it is counted", || metrics().contains(answers));
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    eventually("each log has its line", || lines(&moved).contains("/one") && lines(&first).contains("/two"));
    assert!(!lines(&moved).contains("/two") && !lines(&first).contains("/one"));
    for path in [first, moved] {
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn many_reloads_leak_nothing() {
    let proxy = start(&config("http", named("old"), ""));
    let text = config("http", named("new"), "health_check = { interval = \"20ms\" }");
    reload(&proxy, &text);
    proxy.get("/");
    std::thread::sleep(Duration::from_millis(100));
    let before = proxy.program.descriptors();
    for _ in 0..50 {
        reload(&proxy, &text);
        proxy.get("/");
    }
    eventually("descriptors are back", || proxy.program.descriptors() <= before + 2);
}

/// nginx' and HAProxy's signal for logrotate.
#[test]
fn log_is_reopened_without_a_reload() {
    let (first, moved) = (temp_path("access.log"), temp_path("access.log.1"));
    let proxy = start(&format!("access_log = {:?}\n{}", first.to_str().unwrap(), config("http", named("old"), "")));
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    proxy.get("/one");
    eventually("it is in the log", || lines(&first).contains("/one"));
    std::fs::rename(&first, &moved).unwrap();
    proxy.program.signal(Signal::User1);
    eventually("it is opened again", || first.exists());
    proxy.get("/two");
    eventually("it is in the new log", || lines(&first).contains("/two"));
    assert!(!lines(&moved).contains("/two") && said(&proxy, "is in use;") == 0);
    for path in [first, moved] {
        std::fs::remove_file(path).unwrap();
    }
}

/// A download that began before a reload is logged by its configuration's own thread.
#[test]
fn logs_of_earlier_configurations_are_reopened() {
    let (first, moved) = (temp_path("access.log"), temp_path("access.log.1"));
    let (go, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let text = |server| format!("access_log = {:?}\n{}", first.to_str().unwrap(), config("http", server, ""));
    let proxy = start(&text(download(go.clone(), 1000, asked.clone())));
    let mut stream = proxy.connect();
    stream.write_all(b"GET /download HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    eventually("the server is asked", || asked.load(Ordering::SeqCst) == 1);
    reload(&proxy, &text(named("new")));
    std::fs::rename(&first, &moved).unwrap();
    proxy.program.signal(Signal::User1);
    eventually("the log is opened again", || first.exists());
    go.store(true, Ordering::SeqCst);
    std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    eventually("it is in a log", || (lines(&first) + &lines(&moved)).contains("/download"));
    assert!(lines(&first).contains("/download"));
    for path in [first, moved] {
        std::fs::remove_file(path).unwrap();
    }
}

/// logrotate does not wait until an unfinished edit is fixed.
#[test]
fn invalid_file_does_not_prevent_reopening_the_log() {
    let (first, moved) = (temp_path("access.log"), temp_path("access.log.1"));
    let text = format!("access_log = {:?}\n{}", first.to_str().unwrap(), config("http", named("old"), ""));
    let proxy = start(&text);
    let lines = |path: &std::path::Path| std::fs::read_to_string(path).unwrap_or_default();
    proxy.get("/one");
    eventually("it is in the log", || lines(&first).contains("/one"));
    std::fs::rename(&first, &moved).unwrap();
    std::fs::write(&proxy.config, "half-do").unwrap();
    proxy.program.signal(Signal::HangUp);
    eventually("the error is logged", || said(&proxy, "nothing has changed") == 1);
    proxy.get("/two");
    eventually("it is in the new log", || lines(&first).contains("/two"));
    assert!(!lines(&moved).contains("/two"));
    for path in [first, moved] {
        std::fs::remove_file(path).unwrap();
    }
}
