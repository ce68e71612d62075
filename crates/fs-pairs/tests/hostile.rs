//! Clients that break the protocol, flood, lie and die: the service stays bounded and serves the others.

mod common;

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::held_unsafe::Held;
use common::raw::{MAX_DESCRIPTORS, Raw};
use common::*;
use fs_carrier::exact::Carried;
use fs_pairs::message::{Answer, LEN, Request};
use fs_pairs::service::Limits;
use fs_pairs::{Client, Number, Offered, Reason, Service};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

#[test]
fn broken_messages_end_the_connection() {
    let service = Running::start();
    let (socket, _peer) = connection();
    let offer = Request::Offer { number: Number(1), carried: Carried::default() }.encode();
    let forget = Request::Forget(Number(1)).encode();
    let answer = Answer::Refused { number: Number(1), reason: Reason::NoPeer }.encode();
    let long = [offer, offer].concat();
    let fd = socket.as_fd();
    let cases: [(&[u8], &[BorrowedFd<'_>]); 9] = [
        (&offer[..LEN - 1], &[fd]),
        (&long, &[fd]),
        (&[0; LEN], &[]),
        (&offer, &[]),
        (&offer, &[fd, fd]),
        (&offer, &[fd; 8]),
        (&forget, &[fd]),
        (&answer, &[]),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n", &[]),
    ];
    for (bytes, fds) in cases {
        let raw = Raw::connect(&service);
        raw.send(bytes, fds).expect("sent");
        assert!(raw.is_cut_off(), "{bytes:?}");
    }
    serves(&service);
}

/// A process offers more sockets than allowed, and never reads the replies.
#[test]
fn flood_is_bounded() {
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let (socket, _peer) = connection();
    let raw = Raw::connect(&service);
    rustix::io::ioctl_fionbio(&raw.0, true).expect("set");
    let end = Instant::now() + Duration::from_secs(60);
    let mut taken = 0;
    loop {
        let offer = Request::Offer { number: Number(taken), carried: Carried::default() }.encode();
        match raw.send(&offer, &[socket.as_fd()]) {
            Ok(()) => taken += 1,
            Err(Errno::AGAIN | Errno::TOOMANYREFS) => std::thread::yield_now(),
            // The service answers each offer, and the client does not read. So the service closes
            // its connection.
            Err(_) => break,
        }
        assert!(Instant::now() < end, "the connection goes on after {taken} offers");
    }
    // The service has kept some answers for the client (`WAITING` in outbox.rs).
    assert!(taken > 1024, "{taken}");
    serves(&service);
    drop(raw);
    serves(&service);
    // The duplicates are closed.
    let end = Instant::now() + Duration::from_secs(60);
    while duplicates(&socket) > 1 {
        assert!(Instant::now() < end, "{} descriptors", duplicates(&socket));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Descriptors that the service has no use for are not closed by its own thread, however they come.
#[test]
fn descriptors_that_block_in_close_delay_nobody() {
    let path = path();
    let service = Service::bind(&path).expect("a service");
    let file: OwnedFd = std::fs::File::open("/dev/null").expect("a file").into();
    // The service closes this connection after the first message, with the second one in it.
    let (socket, _peer) = lingering();
    let hands_over = Raw::connect_to(&path);
    hands_over.send(&Request::Device.encode(), &[]).expect("sent");
    hands_over.send(&[0; LEN], &[socket.as_fd()]).expect("sent");
    drop(socket);
    // More descriptors than any message needs.
    let (socket, _other_peer) = lingering();
    let many = Raw::connect_to(&path);
    let mut fds = [file.as_fd(); MAX_DESCRIPTORS];
    fds[MAX_DESCRIPTORS - 1] = socket.as_fd();
    many.send(&[0; LEN], &fds).expect("sent");
    drop(socket);
    let service = Running::run(path, service);
    serves(&service);
}

/// A user offers sockets while its threads hold their locks: the kernel answers no question about
/// them.
#[test]
fn held_sockets_delay_only_their_user() {
    let service = Running::start();
    let connections: Vec<_> = (0..8).map(|_| connection()).collect();
    let connect = || (0..8).map(|_| Raw::connect(&service)).collect::<Vec<_>>();
    let Some(hostile) = as_nobody(connect) else { return };
    let held: Vec<_> = connections.iter().map(|(a, _)| Held::new(a)).collect();
    let message = Request::Offer { number: Number(1), carried: Carried::default() }.encode();
    for (raw, (a, _)) in hostile.iter().zip(&connections) {
        raw.send(&message, &[a.as_fd()]).expect("sent");
    }
    serves(&service);
    // The other ends of these connections wait for nobody.
    let client = service.client();
    for (_, b) in &connections {
        let number = offer(&client, b);
        assert_eq!(refused(&client, number), Reason::NoPeer);
    }
    serves(&service);
    // A process that ends is forgotten at once.
    let processes = || fs_pairs::counters::count(&service.path).expect("counters").processes;
    let others = processes() - 8;
    drop(hostile);
    let end = Instant::now() + Duration::from_secs(60);
    while processes() > others {
        assert!(Instant::now() < end, "{} processes", processes());
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(held);
    // All threads of the user have ended their work.
    for (a, _) in &connections {
        while duplicates(a) > 1 {
            assert!(Instant::now() < end, "{} descriptors", duplicates(a));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// The same after the offers: the kernel must be asked about a waiting socket again when its other
/// end is offered.
#[test]
fn sockets_that_are_held_later_delay_only_their_user() {
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let connections: Vec<_> = (0..8).map(|_| connection()).collect();
    let Some((hostile, waiting)) = as_nobody(|| {
        let client = service.client();
        let numbers: Vec<_> = connections.iter().map(|(a, _)| offer(&client, a)).collect();
        (client, numbers)
    }) else {
        return;
    };
    wait_for_offers(&service, 8);
    let held: Vec<_> = connections.iter().map(|(a, _)| Held::new(a)).collect();
    let client = service.client();
    let numbers: Vec<_> = connections.iter().map(|(_, b)| offer(&client, b)).collect();
    // The same process as the one that waits for them.
    let (a, b) = connection();
    let own = [offer(&client, &a), offer(&client, &b)];
    matched(&client, own[0]);
    matched(&client, own[1]);
    // These wait until a thread has read their other ends again.
    for number in numbers {
        client.forget(number);
        assert_eq!(refused(&client, number), Reason::NoPeer);
    }
    assert!(!client.is_waiting());
    drop(held);
    for number in waiting {
        hostile.forget(number);
        assert_eq!(refused(&hostile, number), Reason::NoPeer);
    }
    serves(&service);
}

/// Returns the descriptors of this process, in which the service runs, that are this socket.
fn duplicates(socket: impl AsFd) -> usize {
    let name = format!("socket:[{}]", rustix::fs::fstat(socket).expect("its inode").st_ino);
    let entries = std::fs::read_dir("/proc/self/fd").expect("/proc").flatten();
    entries.filter(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == name.as_str())).count()
}

#[test]
fn process_may_have_some_offers_only() {
    let limits = Limits { wait: Duration::from_secs(3600), offers_of_process: 3, ..Limits::default() };
    let service = Running::with(limits);
    let client = service.client();
    let connections: Vec<_> = (0..4).map(|_| connection()).collect();
    let numbers: Vec<_> = connections.iter().map(|(a, _)| offer(&client, a)).collect();
    assert_eq!(refused(&client, numbers[3]), Reason::Limit);
    // After the end of one pair another one is possible.
    client.forget(numbers[0]);
    assert_eq!(refused(&client, numbers[0]), Reason::NoPeer);
    offer(&client, &connections[3].0);
    let number = offer(&client, &connections[3].1);
    matched(&client, Number(number.0 - 1));
    matched(&client, number);
}

/// A user that keeps offering sockets leaves half of the offers to other users.
#[test]
fn offers_of_one_user_leave_room_for_others() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
        println!("skipped: not root (another user's offers)");
        return;
    }
    let limits = Limits { wait: Duration::from_secs(3600), offers: 4, ..Limits::default() };
    let service = Running::with(limits);
    let nobody = rustix::process::Uid::from_raw(65534);
    let connections: Vec<_> = (0..4).map(|_| connection()).collect();
    let fill = || {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("nobody");
        let client = service.client();
        let numbers: Vec<_> = connections.iter().take(3).map(|(a, _)| offer(&client, a)).collect();
        assert_eq!(refused(&client, numbers[2]), Reason::Limit);
        // After the end of one offer another one may wait.
        client.forget(numbers[0]);
        assert_eq!(refused(&client, numbers[0]), Reason::NoPeer);
        offer(&client, &connections[2].0);
        client
    };
    let _full = std::thread::scope(|scope| scope.spawn(fill).join().expect("no panic"));
    let client = service.client();
    let (a, b) = &connections[3];
    let (first, second) = (offer(&client, a), offer(&client, b));
    matched(&client, first);
    matched(&client, second);
}

/// A user that ends one side of each of its pairs leaves half of the ends to other users.
#[test]
fn ends_of_one_user_leave_room_for_others() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
        println!("skipped: not root (another user's pairs)");
        return;
    }
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ends: 8, ..Limits::default() });
    let nobody = rustix::process::Uid::from_raw(65534);
    let fill = || {
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("nobody");
        let client = service.client();
        let mut kept = Vec::new();
        loop {
            let (a, b) = connection();
            let (first, second) = (offer(&client, &a), offer(&client, &b));
            match answer(&client) {
                Offered::Matched { .. } => matched(&client, second),
                Offered::Refused { reason: Reason::Limit, .. } => return (client, kept),
                other => panic!("{other:?}"),
            };
            client.forget(first);
            kept.push(second);
        }
    };
    let (client, kept) = std::thread::scope(|scope| scope.spawn(fill).join().expect("no panic"));
    assert_eq!(kept.len(), 2);
    serves(&service);
    // Both ends of these pairs are over.
    kept.into_iter().for_each(|number| client.forget(number));
    serves(&service);
}

/// A user connects to another user's server, and keeps its own ends of the pairs after the connections have ended.
/// That server, and others, get further pairs.
#[test]
fn ends_that_a_user_keeps_leave_room_for_its_peers() {
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ends: 8, ..Limits::default() });
    let client_of = |user| {
        as_user(user, || {
            let (client, (a, b)) = (service.client(), connection());
            // The first offer makes the connection to the service.
            let number = offer(&client, &a);
            client.forget(number);
            assert_eq!(refused(&client, number), Reason::NoPeer);
            drop(b);
            client
        })
    };
    let (Some(hostile), Some(server)) = (client_of(NOBODY), client_of(OTHER)) else { return };
    let mut kept = 0;
    loop {
        let (a, b) = connection();
        let (first, second) = (offer(&hostile, &a), offer(&server, &b));
        match answer(&hostile) {
            Offered::Matched { .. } => matched(&server, second),
            Offered::Refused { number, reason: Reason::Limit } if number == first => break,
            other => panic!("{other:?}"),
        };
        server.forget(second);
        kept += 1;
    }
    assert_eq!(kept, 2);
    serves(&service);
    let (a, b) = connection();
    match_ends([&server, &service.client()], [a.as_fd(), b.as_fd()]);
}

#[test]
fn ends_of_pairs_are_bounded() {
    let service = Running::with(Limits { ends: 2, ..Limits::default() });
    let client = service.client();
    let (a, b) = connection();
    match_ends([&client, &client], [a.as_fd(), b.as_fd()]);
    let (c, _d) = connection();
    let number = offer(&client, &c);
    assert_eq!(refused(&client, number), Reason::Limit);
}

/// The client limits its unanswered offers: a service that does not answer gets few descriptors.
#[test]
fn stopped_service_gets_few_offers() {
    let may = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: may.maximum, ..may }).expect("more descriptors");
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let client = service.client();
    let connections: Vec<_> = (0..1024).map(|_| connection()).collect();
    for (a, _) in &connections {
        offer(&client, a);
    }
    let (a, _b) = connection();
    std::thread::sleep(Duration::from_millis(50));
    assert!(client.offer(a.as_fd(), carried(&a)).is_none());
}

/// A program closes all its descriptors, and opens other files with their numbers.
#[test]
fn closed_descriptor_is_not_used() {
    let service = Running::start();
    let client = service.client();
    let (a, b) = connection();
    let number = offer(&client, &a);
    let own = client.descriptor().expect("a connection");
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&reader, true).expect("set");
    descriptor_unsafe::replace(writer.as_fd(), own).expect("dup2");
    assert!(client.offer(b.as_fd(), carried(&b)).is_none());
    client.forget(number);
    assert!(matches!(client.answer(), Some(Offered::Lost)) && client.answer().is_none());
    assert_eq!(reader.read(&mut [0; 1]).expect_err("nothing").kind(), std::io::ErrorKind::WouldBlock);
}

/// The service in a process of its own, for the test below.
#[test]
#[ignore = "started by the test below"]
fn serve() {
    // Runs of all ignored tests start it too.
    let Some(path) = std::env::var_os("FS_PAIRS_TEST_SERVE") else { return };
    Service::bind(path.as_ref()).expect("a service").run().expect("it served");
}

#[test]
fn killed_service_leaves_pairs_alone() {
    let path = path();
    let start = || {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--ignored", "--exact", "serve"]).env("FS_PAIRS_TEST_SERVE", &path);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().expect("a service");
        let end = Instant::now() + Duration::from_secs(60);
        while !Service::answers(&path) {
            assert!(Instant::now() < end, "it does not serve");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    };
    let mut child = start();
    let clients = [Client::new(&path).expect("a client"), Client::new(&path).expect("a client")];
    let pairs: Vec<_> = (0..100)
        .map(|_| {
            let (a, b) = connection();
            promoted(&clients[0], &clients[1], a, b)
        })
        .collect();
    std::thread::scope(|scope| {
        let carry = scope.spawn(|| pairs.iter().map(|(a, b)| ping_pong(a, b, 20)).sum::<u64>());
        std::thread::sleep(Duration::from_millis(5));
        child.kill().expect("kill");
        child.wait().expect("wait");
        assert!(carry.join().expect("no panic") > 0);
    });
    assert!(pairs.iter().map(|(a, b)| ping_pong(a, b, 20)).sum::<u64>() > 0);
    // The killed service's socket name still exists. A new service replaces it.
    let mut child = start();
    let (a, b) = connection();
    let end = Instant::now() + Duration::from_secs(60);
    let mut offers = Vec::new();
    while offers.len() < 2 {
        // Each client notices the loss at its next offer, and reconnects within a second.
        let i = offers.len();
        let socket = if i == 0 { &a } else { &b };
        while clients[i].answer().is_some() {}
        offers.extend(clients[i].offer(socket.as_fd(), carried(socket)));
        assert!(Instant::now() < end, "the new service was not found");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().expect("kill");
    child.wait().expect("wait");
    let _gone = std::fs::remove_file(&path);
}

/// An offer is a duplicate of the program's socket. Only a service of root or of the program's user
/// gets it.
#[test]
fn service_of_another_user_gets_no_socket() {
    if !rustix::process::geteuid().is_root() {
        assert!(std::env::var_os("FS_TEST_MUST_RUN").is_none(), "not root, and FS_TEST_MUST_RUN is set");
        println!("skipped: not root (a service of another user)");
        return;
    }
    let nobody = rustix::process::Uid::from_raw(65534);
    let path = path();
    let other = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("nobody");
            Service::bind(&path).expect("a service")
        });
        thread.join().expect("no panic")
    });
    let (a, _b) = connection();
    let client = Client::new(&path).expect("a client");
    assert_eq!(client.offer(a.as_fd(), carried(&a)), None);
    drop(other);
    let own = Running::at(path, Limits::default());
    assert!(own.client().offer(a.as_fd(), carried(&a)).is_some());
}

/// A process offers many connections and is then off its processor, while the other ends are
/// offered: the answers are more than its socket takes.
#[test]
fn late_reader_gets_all_answers() {
    let may = rustix::process::getrlimit(Resource::Nofile);
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: may.maximum, ..may }).expect("more descriptors");
    let service = Running::with(Limits { wait: Duration::from_secs(3600), ..Limits::default() });
    let [late, prompt] = [service.client(), service.client()];
    let connections: Vec<_> = (0..800).map(|_| connection()).collect();
    let lates: Vec<_> = connections.iter().map(|(socket, _)| offer(&late, socket)).collect();
    for (_, socket) in &connections {
        let number = offer(&prompt, socket);
        matched(&prompt, number);
    }
    // This pair ends before its answer is sent.
    let (ended, others) = lates.split_last().expect("some");
    late.forget(*ended);
    serves(&service);
    for number in others {
        matched(&late, *number);
    }
    // On a host with larger socket buffers it is on its way already.
    match answer(&late) {
        Offered::Matched { number, .. } | Offered::Refused { number, reason: Reason::NoPeer } if number == *ended => {}
        other => panic!("{other:?}"),
    }
    // Nothing waits, and later answers come at once.
    let (a, b) = connection();
    let numbers = [offer(&late, &a), offer(&prompt, &b)];
    matched(&late, numbers[0]);
    matched(&prompt, numbers[1]);
}
