//! Sockets that live in several processes: fork, exec, descriptors passed over Unix sockets, death.

mod common;

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;

use common::{Way, both};
use fs_socket::{Errno, flags};

/// A forked child that ends with what `body` answers. It must not allocate.
fn fork(body: impl FnOnce() -> i32) -> rustix::process::Pid {
    let still = common::FORKS.write().unwrap();
    let forking = fs_socket::before_fork().unwrap();
    drop(still);
    match common::process_unsafe::fork() {
        0 => {
            fs_socket::after_fork_child(forking);
            common::process_unsafe::exit(body())
        }
        pid => {
            fs_socket::after_fork_parent(forking, pid > 0);
            rustix::process::Pid::from_raw(pid).unwrap()
        }
    }
}

fn status(pid: rustix::process::Pid) -> Option<i32> {
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty()).unwrap().unwrap();
    status.exit_status()
}

#[test]
fn a_forked_server_and_its_parent_hold_the_same_connection() {
    let (kernel, ours) = both(|way| {
        let (client, server) = way.pair();
        let child = fork(|| {
            let mut room = [0; 8];
            if way.recv(server, &mut room, 0) != Ok(3) {
                return 1;
            }
            // The parent has closed its descriptor: this is the last.
            i32::from(way.send(server, b"child", 0) != Ok(5)) * 2
        });
        way.close(server).unwrap();
        let mut room = [0; 8];
        // Not closed: the child holds it.
        let early = way.recv(client, &mut room, flags::DONTWAIT);
        way.send(client, b"abc", 0).unwrap();
        let answer = way.recv(client, &mut room, flags::WAITALL);
        let end = way.recv(client, &mut room, 0);
        let exit = status(child);
        way.close(client).unwrap();
        (early, answer, end, exit)
    });
    assert_eq!(ours, kernel);
    assert_eq!(ours, (Err(Errno::AGAIN), Ok(5), Ok(0), Some(0)));
}

#[test]
fn a_listener_that_was_inherited_accepts_in_both() {
    let (kernel, ours) = both(|way| {
        let (listener, at) = way.listener(0);
        let accept_one = move || {
            let (server, _) = way.accept(listener, 0).unwrap();
            way.send(server, b"!", 0).unwrap();
            way.close(server).unwrap();
        };
        let child = fork(|| {
            accept_one();
            0
        });
        let mut room = [0; 2];
        let client = way.socket(0);
        way.connect(client, at).unwrap();
        let first = way.recv(client, &mut room, 0);
        way.close(client).unwrap();
        let exit = status(child);
        let client = way.socket(0);
        way.connect(client, at).unwrap();
        accept_one();
        let second = way.recv(client, &mut room, 0);
        way.close(client).unwrap();
        way.close(listener).unwrap();
        (first, exit, second)
    });
    assert_eq!(ours, kernel);
    assert_eq!(ours, (Ok(1), Some(0), Ok(1)));
}

#[test]
fn a_child_opens_connections_of_its_own() {
    common::daemon();
    let way = Way::Ours;
    let (listener, at) = way.listener(0);
    // So that the parent has an arena to this listener, which must not be the child's.
    let mine = way.socket(0);
    way.connect(mine, at).unwrap();
    let child = fork(|| {
        let fd = way.socket(0);
        if way.connect(fd, at).is_err() {
            return 1;
        }
        let mut room = [0; 2];
        i32::from(way.recv(fd, &mut room, 0) != Ok(1)) * 2
    });
    let mut servers = [0; 2];
    for server in &mut servers {
        *server = way.accept(listener, 0).unwrap().0;
        way.send(*server, b"!", 0).unwrap();
    }
    assert_eq!(status(child), Some(0));
    let mut room = [0; 2];
    assert_eq!(way.recv(mine, &mut room, 0), Ok(1));
    // The child's connection ended with it (as soon as the daemon has seen that); the parent's did not.
    let ends = loop {
        let ends = servers.map(|server| way.recv(server, &mut room, flags::DONTWAIT));
        if ends != [Err(Errno::AGAIN); 2] {
            break ends;
        }
        std::thread::yield_now();
    };
    assert!(ends.contains(&Err(Errno::AGAIN)) && ends.contains(&Ok(0)), "{ends:?}");
    for fd in servers.into_iter().chain([mine, listener]) {
        way.close(fd).unwrap();
    }
}

#[test]
fn a_killed_process_ends_its_connections() {
    let (kernel, ours) = both(|way| {
        let (client, server) = way.pair();
        let child = fork(|| {
            way.close(server).unwrap();
            loop {
                rustix::thread::sched_yield();
            }
        });
        way.close(client).unwrap();
        let mut room = [0; 8];
        let before = way.recv(server, &mut room, flags::DONTWAIT);
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        status(child);
        let end = way.recv(server, &mut room, 0);
        way.close(server).unwrap();
        (before, end)
    });
    assert_eq!(ours, kernel);
    assert_eq!(ours, (Err(Errno::AGAIN), Ok(0)));
}

const CHILD: &str = "FS_SOCKET_TEST_CHILD";

/// What `exec` runs: this test program again, with the descriptor's number.
#[test]
fn the_new_image() {
    let Ok(number) = std::env::var(CHILD) else { return };
    fs_socket::start();
    // Entries that nobody has written have no memory, nor are they given any: all take 16 MiB.
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let page = maps.split("fastsock-attachment").nth(1).expect("the page is mapped");
    let resident = page.lines().find_map(|line| line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")).unwrap();
    assert!(resident.parse::<u32>().unwrap() < 1024, "{resident} KiB of the page were touched");
    let fd: RawFd = number.parse().unwrap();
    let way = Way::Ours;
    let ours = fs_socket::descriptor::table::socket(fd).is_some();
    if way.getsockopt(fd, 1, 30).unwrap() == 1 {
        assert!(ours, "a listener");
        let (server, _) = way.accept(fd, 0).unwrap();
        way.send(server, b"accepted", 0).unwrap();
        return;
    }
    assert!(ours, "a connection");
    way.send(fd, b"new image", 0).unwrap();
}

fn new_image(fd: RawFd) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "the_new_image", "--nocapture"]).env(CHILD, fd.to_string());
    command
}

#[test]
fn exec_keeps_what_is_not_close_on_exec() {
    common::daemon();
    let way = Way::Ours;
    let (client, server) = way.pair();
    let mut command = new_image(server);
    let child = fork(|| {
        // Allocates: after exec nobody asks, and this test's other threads hold no heap lock for long.
        let surviving = fs_socket::before_exec();
        let control = surviving.control.expect("a socket survives");
        command.env(fs_socket::process::exec::CONTROL_VARIABLE, control.to_string());
        let _failed = command.exec();
        1
    });
    way.close(server).unwrap();
    let mut room = [0; 16];
    assert_eq!(way.recv(client, &mut room, 0), Ok(9));
    assert_eq!(way.recv(client, &mut room, 0), Ok(0), "the new image's end closes it");
    assert_eq!(status(child), Some(0));
    way.close(client).unwrap();
}

#[test]
fn a_spawned_program_takes_a_listener_over() {
    common::daemon();
    let way = Way::Ours;
    let (listener, at) = way.listener(0);
    let still = common::FORKS.write().unwrap();
    let surviving = fs_socket::before_spawn(false).unwrap();
    drop(still);
    let control = surviving.control.expect("a listener survives");
    let mut child =
        new_image(listener).env(fs_socket::process::exec::CONTROL_VARIABLE, control.to_string()).spawn().unwrap();
    fs_socket::process::exec::after_spawn(surviving, true);
    way.close(listener).unwrap();
    let client = way.socket(0);
    way.connect(client, at).unwrap();
    let mut room = [0; 16];
    assert_eq!(way.recv(client, &mut room, 0), Ok(8));
    assert!(child.wait().unwrap().success());
    way.close(client).unwrap();
}

#[test]
fn a_passed_descriptor_is_the_same_connection() {
    common::daemon();
    let way = Way::Ours;
    let (client, server) = way.pair();
    let (mine, theirs) = UnixStream::pair().unwrap();
    let child = fork(|| {
        way.close(server).unwrap();
        way.close(client).unwrap();
        let Some(fd) = receive_fd(theirs.as_fd()) else { return 1 };
        let fd = fd.into_raw_fd();
        fs_socket::claim(&[fd], false);
        i32::from(way.send(fd, b"passed", 0) != Ok(6)) * 2
    });
    // On its way while the child has closed all that it inherited.
    fs_socket::share(&[server]);
    send_fd(mine.as_fd(), server);
    way.close(server).unwrap();
    let mut room = [0; 16];
    assert_eq!(way.recv(client, &mut room, 0), Ok(6));
    assert_eq!(way.recv(client, &mut room, 0), Ok(0));
    assert_eq!(status(child), Some(0));
    way.close(client).unwrap();
}

fn send_fd(over: BorrowedFd<'_>, fd: RawFd) {
    let placeholder = common::process_unsafe::borrow(fd);
    fs_shm::control::socket::send(over, b"x", &[placeholder]).unwrap();
}

fn receive_fd(over: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut fds = [rustix::event::PollFd::new(&over, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut fds, None).ok()?;
    let mut received = fs_shm::control::socket::receive(over, &mut [0; 4]).ok()?;
    received.fds.take().map(|fd| fd.into_owned_fd())
}

#[test]
fn ten_thousand_descriptors() {
    common::daemon();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let wanted = 10_000.min(limit.maximum.unwrap_or(u64::MAX) - 500);
    rustix::process::setrlimit(
        rustix::process::Resource::Nofile,
        rustix::process::Rlimit { current: Some(wanted + 500), maximum: limit.maximum },
    )
    .unwrap();
    let way = Way::Ours;
    let (listener, at) = way.listener(0);
    let pairs: Vec<(RawFd, RawFd)> = (0..wanted / 2)
        .map(|_| {
            let client = way.socket(0);
            way.connect(client, at).unwrap();
            (client, way.accept(listener, 0).unwrap().0)
        })
        .collect();
    let mut room = [0; 8];
    for (client, server) in &pairs {
        assert_eq!(way.send(*client, &client.to_ne_bytes(), 0), Ok(4));
        assert_eq!(way.recv(*server, &mut room, 0), Ok(4));
        assert_eq!(room[..4], client.to_ne_bytes());
    }
    for (client, server) in pairs {
        way.close(client).unwrap();
        assert_eq!(way.recv(server, &mut room, 0), Ok(0));
        way.close(server).unwrap();
    }
    way.close(listener).unwrap();
}

#[test]
fn memory_of_clients_that_came_and_went_is_given_back() {
    common::daemon();
    let way = Way::Ours;
    let (listener, at) = way.listener(0);
    let space = || {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
    };
    let before = space();
    for _ in 0..200 {
        let child = fork(|| {
            let fd = way.socket(0);
            i32::from(way.connect(fd, at).is_err() || way.recv(fd, &mut [0; 2], 0) != Ok(1))
        });
        let (server, _) = way.accept(listener, 0).unwrap();
        way.send(server, b"!", 0).unwrap();
        assert_eq!(way.recv(server, &mut [0; 2], 0), Ok(0));
        way.close(server).unwrap();
        assert_eq!(status(child), Some(0));
    }
    // Each arena is 20 GiB of addresses: 200 are mapped here, and at most 96 of them stay for a while.
    let grown = space().saturating_sub(before) >> 30;
    assert!(grown < 128 * 16, "{grown} GiB");
    way.close(listener).unwrap();
}
