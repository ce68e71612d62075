//! The runner itself: scripts survive parsing and printing; wrong scripts fail, with the reason.

use fs_pkt::packet::option::TcpOption;
use fs_pkt::packet::{Packet, Segment, Transport};
use fs_pkt::script::ast::Script;
use fs_pkt::script::{Defines, Side, parse, select};
use fs_pkt::{Report, Request, Verdict, run_file};
use std::sync::atomic::{AtomicUsize, Ordering};

fn read(text: &str) -> Script {
    parse(text, "test.pkt", &Defines::new()).unwrap_or_else(|e| panic!("{e}"))
}

/// A script with every construct of the grammar.
const ALL: &str = r#"
--tolerance_usecs=10000
--ip_version=ipv4-mapped-ipv6
--define=SIZE=1000
--define=NAME="cubic"
`sysctl -q net.ipv4.tcp_timestamps=1`
0.000 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0 // a comment
+.1...0.200 accept(3, ..., ...) = 4
+0 setsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=1, linger=0}, 8) = 0
+0 setsockopt(3, SOL_TCP, TCP_CONGESTION, NAME, 5) = 0
+0 fcntl(4, F_SETFL, O_RDWR | O_NONBLOCK) = 0
+0 fcntl(4, F_GETFL) = 0x802 (flags O_RDWR|O_NONBLOCK)
+0 read(4, ..., SIZE) = -1 EAGAIN (Resource temporarily unavailable)
+0 poll([{fd=4, events=POLLIN|POLLOUT, revents=POLLOUT}], 1, 0) = 1
+0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLIN|EPOLLET, fd=4}) = 0
+0 epoll_wait(5, {events=EPOLLIN, ptr=4}, 1, 0) = 1
+0 sendmsg(4, {msg_name(...)=..., msg_iov(2)=[{..., 10}, {..., 20}], msg_flags=0}, MSG_DONTWAIT) = 30
+0 recvmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 10}], msg_flags=0, msg_control=[{cmsg_level=SOL_TCP, cmsg_type=TCP_CM_INQ, cmsg_data=10}]}, 0) = 10
+0 bind(3, {sa_family = AF_INET, sin_port = htons(8080), sin_addr = inet_addr("192.0.2.1")}, ...) = 0
/* over
   lines */
0.2 < [ect0] S 0:0(0) win 65535 <mss 1460,sackOK,TS val 1 ecr 0,nop,wscale 7>
0.2~0.3 > S. 0:0(0) ack 1 win 100 <...>
+0~+.01 > [ttl 64] P. 1:1001(1000) ack 1 <nop,nop,TS val 100 ecr 1>
* > [tos 0x28,flowlabel 0x1] FPUE. 1:11(10) ack 1 urg 5
+0 < SEWA 0:0(0) win 1 <FO 0011223344556677,nop,nop>
+0 > .5 1:1(0) ack 1 <nop,nop,sack 1:1001 2001:3001>
+0 < - 1:1(0) win 1
+0 < sock(4) 1234 > 8080 R. 1:1(0) ack 1 win 0 <md5 00112233445566778899aabbccddeeff,nop,eol>
+0 > F. 1:1(0) ack 1 <ECN e1b 1 ceb 2 e0b 3,nop>
+0 < icmp unreachable frag_needed mtu 1200 [1:1001(1000)]
+0 < icmp echo_request id 7 [raw (64)]
+0 > udp (100)
+0 < udp 53 > 0 (8)
+0 `ip link set dev tun0 mtu 1400`
+0 %{ assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd }%
`rm -f /tmp/x`
"#;

#[test]
fn printed_script_parses_to_same_script() {
    let script = read(ALL);
    assert_eq!(script.options.len(), 4);
    assert_eq!(script.events.len(), 29);
    let printed = script.to_string();
    let mut again = read(&printed);
    // Lines are those of the printed text.
    for (a, b) in again.events.iter_mut().zip(&script.events) {
        a.line = b.line;
    }
    if let (Some(a), Some(b)) = (&mut again.init, &script.init) {
        a.line = b.line;
    }
    if let (Some(a), Some(b)) = (&mut again.cleanup, &script.cleanup) {
        a.line = b.line;
    }
    assert_eq!(again, script, "{printed}");
}

#[test]
fn errors_name_lines() {
    for (text, message) in [
        ("0 < S 0:0(0) win 1\n+0 > S. 0:1(0) ack 1\n", "test.pkt:2: syntax error: inconsistent TCP sequence numbers"),
        ("0 < S 0:0(0)\n", "window must be specified for inbound packets"),
        ("0 < . 0:0(0) win 1 <...>\n", "can only be used with outbound packets"),
        ("0 > SX 0:0(0)\n", "Invalid TCP flag: 'X'"),
        ("0 > E5. 0:0(0)\n", "Conflicting TCP flag: '5'"),
        ("* < S 0:0(0) win 1\n", "event time <star> can only be used with outbound packets"),
        ("0.2~0.1 > S 0:0(0)\n", "time range is backwards"),
        ("0 > S 0:0(0) <mss 70000>\n", "mss value out of range: 70000"),
        ("0 > S 0:0(0) <nop>\n", "not padded correctly"),
        ("0 > S 0:0(0) <mess 1>\n", "unknown TCP option 'mess'"),
        ("0 socket(..., 1 2) = 3\n", "expected ',' or ')', found '2'"),
        ("0 read(3, \"abc) = 3\n", "no closing \""),
        ("0 > gre: S 0:0(0)\n", "encapsulation (gre) is not supported"),
        ("--ip_version=ipv4\n", "no events"),
    ] {
        let error = parse(text, "test.pkt", &Defines::new()).unwrap_err().to_string();
        assert!(error.contains(message), "{text}: {error}");
    }
}

#[test]
fn lines_for_one_side() {
    let text = "// fastsock: differs from Linux: it can\n// @engine 0 a\n0 b // @linux\n0 c\n";
    let (engine, notes) = select(text, "x", Side::Engine).unwrap();
    assert_eq!(engine, "// fastsock: differs from Linux: it can\n 0 a\n\n0 c\n");
    assert_eq!(notes.differs.as_deref(), Some("it can"));
    let (linux, _) = select(text, "x", Side::Linux).unwrap();
    assert_eq!(linux, text);
    let unreasoned = select("\n0 b // @linux\n", "x", Side::Engine).unwrap_err();
    assert_eq!(unreasoned.line, 2);
    let (_, notes) = select("// fastsock: linux only: a test of the kernel's\n", "x", Side::Engine).unwrap();
    assert_eq!(notes.skip.as_deref(), Some("a test of the kernel's"));
    assert!(select("// fastsock: whatever: x\n", "x", Side::Engine).is_err());
}

#[test]
fn packets_round_trip_through_bytes() {
    for v6 in [false, true] {
        let ip = |n: u8| if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, u16::from(n)].into() } else { [10, 0, 0, n].into() };
        let options = vec![
            TcpOption::Mss(1460),
            TcpOption::SackPermitted,
            TcpOption::Timestamp { val: 7, ecr: 8 },
            TcpOption::Nop,
            TcpOption::WindowScale(9),
        ];
        let segment = Segment {
            src: 1,
            dst: 2,
            seq: 3,
            ack: 4,
            flags: 0x12,
            window: 5,
            urgent: 6,
            options,
            payload: vec![1, 2, 3],
        };
        let flow_label = if v6 { 0x12345 } else { 0 };
        let packet = Packet { src: ip(1), dst: ip(2), tos: 3, ttl: 64, flow_label, transport: Transport::Tcp(segment) };
        let mut bytes = packet.to_bytes();
        assert_eq!(Packet::from_bytes(&bytes), Ok(packet));
        *bytes.last_mut().unwrap() ^= 1;
        assert_eq!(Packet::from_bytes(&bytes), Err("bad outbound transport checksum".into()));
        assert!((0..bytes.len()).all(|n| Packet::from_bytes(&bytes[..n]).is_err()));
    }
}

/// Makes a script with a connection to a listener on the engine, followed by `rest`.
fn with_connection(rest: &str) -> String {
    format!(
        "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 bind(3, ..., ...) = 0\n+0 listen(3, 1) = 0\n\
         +.1 < S 0:0(0) win 65535 <mss 1000,sackOK,nop,nop,nop,wscale 7>\n+0 > S. 0:0(0) ack 1 <...>\n\
         +.01 < . 1:1(0) ack 1 win 1000\n+0 accept(3, ..., ...) = 4\n{rest}"
    )
}

fn verdict(name: &str, text: &str) -> Verdict {
    report(name, text).verdict
}

fn report(name: &str, text: &str) -> Report {
    // Tests run concurrently, and names repeat.
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("fs-pkt-{}-{made}-{name}.pkt", std::process::id()));
    std::fs::write(&path, text).unwrap();
    let report = run_file(&path, &Request::new(Side::Engine));
    std::fs::remove_file(&path).unwrap();
    report
}

/// packetdrill does not compare them.
#[test]
fn echoed_timestamps_are_compared() {
    for (echo, good) in [(300, true), (200, false), (0, false)] {
        let text = format!(
            "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 bind(3, ..., ...) = 0\n+0 listen(3, 1) = 0\n\
             +.1 < S 0:0(0) win 65535 <mss 1000,sackOK,TS val 200 ecr 0>\n\
             +0 > S. 0:0(0) ack 1 <mss 1460,sackOK,TS val 1 ecr 200>\n\
             +.01 < . 1:1(0) ack 1 win 1000 <nop,nop,TS val 300 ecr 1>\n+0 accept(3, ..., ...) = 4\n\
             +0 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 1 <nop,nop,TS val 11 ecr {echo}>\n"
        );
        let verdict = verdict("echo", &text);
        let said = format!("bad outbound TCP timestamp echo: expected: {echo} actual: 300");
        assert!(if good { verdict == Verdict::Passed } else { format!("{verdict:?}").contains(&said) }, "{verdict:?}");
    }
}

#[test]
fn reports_commands_without_effect() {
    let text =
        with_connection("+0 `tc qdisc replace dev tun0 root sfq; nstat -n`\n+0 `tc qdisc add dev tun0 root pfifo`\n");
    let Report { verdict, not_run, .. } = report("commands", &text);
    assert_eq!(verdict, Verdict::Passed);
    assert_eq!(not_run, ["tc qdisc replace dev tun0 root sfq", "nstat -n"]);
}

#[test]
fn time_passes_while_a_command_sleeps() {
    let text = with_connection("+0 `sleep 0.2`\n0.310 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 1\n");
    assert_eq!(verdict("sleep", &text), Verdict::Passed);
}

#[test]
fn rejects_options_without_effect() {
    for (option, cure) in [
        ("--mss=1000", "inject them segment by segment"),
        ("--speed=1000", "leave it out"),
        ("--is_anyip", "--local_ip"),
        ("--code_format=perl", "Python"),
        ("--code_sockopt=TCP_CC_INFO", "TCP_INFO only"),
        ("--nonsense", "unknown option"),
    ] {
        let text = format!("{option}\n{}", with_connection(""));
        let Verdict::Failed(message) = verdict("options", &text) else { panic!("{option} passed") };
        assert!(message.contains(cure), "{option}: {message}");
    }
}

#[test]
fn port_is_shared_if_both_request_it() {
    let second = |options: &str, result: &str| {
        format!(
            "0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3\n+0 setsockopt(3, SOL_SOCKET, SO_REUSEPORT, [1], 4) = 0\n\
             +0 bind(3, ..., ...) = 0\n+0 listen(3, 1) = 0\n+0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 4\n{options}\
             +0 bind(4, ..., ...) = {result}\n"
        )
    };
    let alone = second("", "-1 EADDRINUSE (Address already in use)");
    assert_eq!(verdict("alone", &alone), Verdict::Passed);
    let both = second("+0 setsockopt(4, SOL_SOCKET, SO_REUSEPORT, [1], 4) = 0\n", "0");
    assert_eq!(verdict("both", &both), Verdict::Passed);
    let Verdict::Failed(message) = verdict("listens", &format!("{both}+0 listen(4, 1) = 0\n")) else {
        panic!("one core has one listener")
    };
    assert!(message.contains("SO_REUSEPORT"), "{message}");
}

#[test]
fn correct_script_passes() {
    let text = with_connection(
        "+0 write(4, ..., 3000) = 3000\n+0 > P. 1:3001(3000) ack 1\n+.01 < P. 1:101(100) ack 3001 win 1000\n\
         +0 read(4, ..., 200) = 100\n+0 %{ assert tcpi_unacked == 0, tcpi_unacked }%\n",
    );
    assert_eq!(verdict("true", &text), Verdict::Passed);
}

#[test]
fn blocking_calls_end_on_time() {
    let text = with_connection(
        "+0...+.05 read(4, ..., 100) = 10\n+.05 < P. 1:11(10) ack 1 win 1000\n+0~+.1 > . 1:1(0) ack 11\n",
    );
    assert_eq!(verdict("blocking", &text), Verdict::Passed);
    let early = text.replace("0...+.05", "0...+.2");
    let Verdict::Failed(message) = verdict("early", &early) else { panic!("it must fail") };
    assert!(message.contains(":8: timing error: expected system call return at"), "{message}");
}

#[test]
fn wrong_scripts_fail_and_name_difference() {
    for (name, rest, messages) in [
        (
            "seq",
            "+0 write(4, ..., 10) = 10\n+0 > P. 2:12(10) ack 1\n",
            &[
                ":9: error handling packet: live packet field tcp_seq: expected: 2 (0x2) vs actual: 1 (0x1)",
                "script packet:  0.110000 P. 2:12(10) ack 1",
                "actual packet:  0.110000 P. 1:11(10) ack 1 win",
            ][..],
        ),
        (
            "flags",
            "+0 write(4, ..., 10) = 10\n+0 > . 1:11(10) ack 1\n",
            &["live packet field tcp_psh: expected: 0 (0x0) vs actual: 1 (0x1)"],
        ),
        (
            "ack",
            "+0 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 2\n",
            &["live packet field tcp_ack_seq: expected: 2 (0x2)"],
        ),
        (
            "window",
            "+0 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 1 win 7\n",
            &["live packet field tcp_window: expected: 7"],
        ),
        (
            "size",
            "+0 write(4, ..., 10) = 10\n+0 > P. 1:10(9) ack 1\n",
            &["live packet payload: expected 9 bytes vs actual 10 bytes"],
        ),
        (
            "options",
            "+0 write(4, ..., 10) = 10\n+0 > P. 1:11(10) ack 1 <nop,nop,sack 1:2>\n",
            &["live packet field tcp_options: expected: <nop,nop,sack 1:2> vs actual: <>"],
        ),
        (
            "late",
            "+0 write(4, ..., 10) = 10\n+.1 > P. 1:11(10) ack 1\n",
            &[
                "timing error: expected outbound packet at 0.210000 sec but happened at 0.110000 sec; tolerance 0.012500 sec",
            ],
        ),
        (
            "missing",
            "+0 > P. 1:11(10) ack 1\n",
            &[":8: error handling packet: Timed out waiting for packet", "script packet:  0.110000 P. 1:11(10) ack 1"],
        ),
        (
            "unexpected",
            "+0 write(4, ..., 10) = 10\n+.01 < . 1:1(0) ack 11 win 1000\n+0 close(4) = 0\n+0 > F. 11:11(0) ack 1\n",
            &["live packet payload: expected 0 bytes vs actual 10 bytes"],
        ),
        ("result", "+0 write(4, ..., 10) = 11\n", &[":8: runtime error in write call: Expected result 11 but got 10"]),
        (
            "errno",
            "+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0\n+0 read(4, ..., 10) = -1 EPIPE (Broken pipe)\n",
            &["Expected errno 32 (EPIPE: Broken pipe) but got 11 (EAGAIN"],
        ),
        (
            "option",
            "+0 getsockopt(4, SOL_TCP, TCP_NODELAY, [1], [4]) = 0\n",
            &["Bad getsockopt optval: expected: 1 actual: 0"],
        ),
        (
            "assert",
            "+0 %{ assert tcpi_snd_cwnd == 3, tcpi_snd_cwnd }%\n",
            &[":8: error executing code: AssertionError: 10, in: assert tcpi_snd_cwnd == 3"],
        ),
        ("sysctl", "+0 `sysctl -q net.ipv4.tcp_nonsense=1`\n", &["unknown sysctl net.ipv4.tcp_nonsense"]),
        ("command", "+0 `reboot now`\n", &["unknown command 'reboot'"]),
        ("mark", "+0 setsockopt(4, SOL_SOCKET, SO_MARK, [1], 4) = 0\n", &["has no effect on the engine"]),
        ("free bind", "+0 setsockopt(4, SOL_IP, IP_FREEBIND, [1], 4) = 0\n", &["has no effect on the engine"]),
        (
            "discovery",
            "+0 setsockopt(4, SOL_IP, IP_MTU_DISCOVER, [IP_PMTUDISC_DONT], 4) = 0\n",
            &["path MTU discovery cannot be turned off"],
        ),
        ("call", "+0 fork() = 0\n", &["Unknown system call: 'fork'"]),
        ("descriptor", "+0 read(9, ..., 1) = 1\n", &["unable to find fd with script fd 9"]),
        ("symbol", "+0 read(4, ..., NONSENSE) = 1\n", &["unknown symbol: 'NONSENSE'"]),
        (
            "ecr",
            "+0 < . 1:1(0) ack 1 win 1000 <nop,nop,TS val 5 ecr 77>\n",
            &["unable to infer live TS ecr for script TS ecr 77"],
        ),
    ] {
        let Verdict::Failed(message) = verdict(name, &with_connection(rest)) else { panic!("{name} passed") };
        for wanted in messages {
            assert!(message.contains(wanted), "{name}: {wanted:?} is not in\n{message}");
        }
    }
}
