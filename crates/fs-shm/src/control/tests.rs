use super::examples::requests;
use super::*;
use rustix::fd::AsFd;
use rustix::io::Errno;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

fn addr(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn replies() -> Vec<Reply> {
    let geometry = crate::Geometry::STANDARD.to_welcome();
    vec![
        Reply::Done,
        Reply::PortInUse,
        Reply::Failed { errno: 2 },
        Reply::Welcome { attachment: 1, epoch: 2, geometry },
        Reply::Poller { poller: 3 },
        Reply::Local { generation: 4, source: addr("[::1]:1").ip(), arenas: [1, 2, 0, 0, 0, 0, 0], count: 2 },
        Reply::Wire { generation: 1, arena: 2, core: 3 },
        Reply::Kernel { generation: 1, reason: KernelReason::Foreign },
        Reply::Refused { generation: 1, errno: 13 },
        Reply::Listener { listener: 1 },
        Reply::Arena,
        Reply::Forked { child: 1 },
        Reply::Claimed { object: Object::Listener(1) },
        Reply::Status { pid: 1, cores: 2, draining: true, attachments: 3, device: Text::new(b"eth0") },
    ]
}

#[test]
fn there_is_an_example_of_each_kind() {
    let mut buffer = [0; MESSAGE_MAX];
    let kind = |buffer: &[u8]| u16::from_le_bytes([buffer[0], buffer[1]]);
    let mut kinds = Vec::new();
    for request in requests() {
        request.encode(1, &mut buffer).unwrap();
        kinds.push(kind(&buffer));
    }
    for number in 0..1000u16 {
        let mut message = [0; 8];
        message[..2].copy_from_slice(&number.to_le_bytes());
        let unknown = Request::decode(&message) == Err(Malformed("unknown kind of request"));
        assert_eq!(unknown, !kinds.contains(&number), "kind {number}");
    }
}

#[test]
fn messages_come_back_as_they_went() {
    let mut buffer = [0; MESSAGE_MAX];
    for (number, request) in requests().into_iter().enumerate() {
        let len = request.encode(number as u32, &mut buffer).unwrap();
        assert_eq!(Request::decode(&buffer[..len]), Ok((number as u32, request)));
        for cut in 0..len {
            assert!(Request::decode(&buffer[..cut]).is_err(), "{request:?} cut to {cut}");
            assert!(request.encode(1, &mut [0; MESSAGE_MAX][..cut]).is_err());
        }
        assert!(Request::decode(&buffer[..len + 1]).is_err());
    }
    for (number, reply) in replies().into_iter().enumerate() {
        let len = reply.encode(number as u32, &mut buffer).unwrap();
        assert_eq!(Reply::decode(&buffer[..len]), Ok((number as u32, reply, &[][..])));
        for cut in 0..len {
            assert!(Reply::decode(&buffer[..cut]).is_err(), "{reply:?} cut to {cut}");
        }
    }
}

/// Every byte of every message set to every value: an answer or an error, and what is read is written the same.
#[test]
fn a_changed_byte_is_read_or_refused() {
    let mut buffer = [0; MESSAGE_MAX];
    for request in requests() {
        let len = request.encode(1, &mut buffer).unwrap();
        for place in 0..len {
            let whole = buffer[place];
            for value in 0..=255 {
                buffer[place] = value;
                if let Ok((number, read)) = Request::decode(&buffer[..len]) {
                    let mut again = [0; MESSAGE_MAX];
                    let length = read.encode(number, &mut again).unwrap();
                    assert_eq!(Request::decode(&again[..length]), Ok((number, read)));
                }
            }
            buffer[place] = whole;
        }
    }
    for reply in replies() {
        let len = reply.encode(1, &mut buffer).unwrap();
        for place in 0..len {
            let whole = buffer[place];
            for value in 0..=255 {
                buffer[place] = value;
                if let Ok((number, read, _)) = Reply::decode(&buffer[..len]) {
                    let mut again = [0; MESSAGE_MAX];
                    read.encode(number, &mut again).unwrap();
                }
            }
            buffer[place] = whole;
        }
    }
}

#[test]
fn rows_come_back_as_they_went() {
    let mut buffer = [0; 256];
    let row = SocketRow {
        state: 10,
        kind: Kind::Kernel,
        core: Some(0),
        reason: Some(KernelReason::Port),
        recv_queue: 1,
        send_queue: 2,
        local: addr("0.0.0.0:80"),
        peer: None,
        pid: 9,
        fd: 4,
        name: Text::new(b"redis-server"),
    };
    let len = row.encode(&mut buffer).unwrap();
    assert!(len <= 128);
    assert_eq!(SocketRow::decode(&buffer[..len + 3]).unwrap(), (row, &buffer[len..len + 3]));
    let row = CounterRow { name: Text::new(b"local_bytes"), label: Text::default(), gauge: false, value: 1 };
    let len = row.encode(&mut buffer).unwrap();
    assert_eq!(CounterRow::decode(&buffer[..len]).unwrap(), (row, &[][..]));
}

#[test]
fn objects_are_words_and_words_are_objects_or_nothing() {
    for object in [
        Object::Channel { arena: 0, slot: 0, side: PeerSide::A },
        Object::Channel { arena: 0x7fff_ffff, slot: (1 << 24) - 1, side: PeerSide::B },
        Object::Listener(u32::MAX),
        Object::Kernel(KernelReason::NoDaemon),
    ] {
        assert_ne!(object.to_word(), 0);
        assert_eq!(Object::from_word(object.to_word()), Some(object));
    }
    for word in [0, 1, 1 << 60, 1 << 61, (1 << 61) + 200, (1 << 62) + (1 << 32), (1 << 63) + (1 << 31)] {
        assert_eq!(Object::from_word(word), None, "{word:#x}");
    }
    for (code, reason) in KernelReason::ALL.into_iter().enumerate() {
        assert_eq!(KernelReason::from_code(code as u8 + 1), Some(reason));
        assert_eq!(reason as usize, code + 1);
    }
}

/// Answers requests with what `answer` says until the client is gone.
fn server(daemon: Fd, mut answer: impl FnMut(u32, Request, socket::Fds) -> Option<(u32, Reply)> + Send + 'static) {
    thread::spawn(move || {
        let mut buffer = [0; MESSAGE_MAX];
        loop {
            match socket::receive(&daemon, &mut buffer) {
                Ok(received) if received.len == 0 => return,
                Ok(received) => {
                    let (number, request) = Request::decode(&buffer[..received.len]).unwrap();
                    let Some((number, reply)) = answer(number, request, received.fds) else { continue };
                    let len = reply.encode(number, &mut buffer).unwrap();
                    socket::send(daemon.as_fd(), &buffer[..len], &[]).unwrap();
                }
                Err(Errno::AGAIN) => thread::sleep(Duration::from_millis(1)),
                Err(error) => panic!("{error}"),
            }
        }
    });
}

#[test]
fn descriptors_travel_along() {
    let (client, daemon) = Client::pair().unwrap();
    server(daemon, |number, request, mut fds| {
        assert_eq!(request, Request::Poller);
        let eventfd = fds.take().unwrap();
        assert!(fds.take().is_none());
        rustix::io::write(&eventfd, &5u64.to_ne_bytes()).unwrap();
        Some((number, Reply::Poller { poller: 42 }))
    });
    let eventfd = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    assert_eq!(client.private_poller(eventfd.as_fd()), Ok(42));
    let mut value = [0; 8];
    rustix::io::read(&eventfd, &mut value).unwrap();
    assert_eq!(u64::from_ne_bytes(value), 5);
}

#[test]
fn a_late_answer_is_not_taken_for_the_next_one() {
    let (mut client, daemon) = Client::pair().unwrap();
    client.set_timeout(Duration::from_millis(20));
    let mut kept = None;
    server(daemon, move |number, request, _| match request {
        Request::Bell { .. } => {
            kept = Some(number);
            None
        }
        // First the one that is late, then the right one, which the client asks for again.
        _ => kept.take().map(|late| (late, Reply::Poller { poller: 1 })).or(Some((number, Reply::Done))),
    });
    assert_eq!(client.bell(1).unwrap_err(), Error::TimedOut);
    client.set_timeout(Duration::from_millis(200));
    assert_eq!(client.unlisten(1), Err(Error::TimedOut));
    client.set_timeout(Duration::from_secs(20));
    assert_eq!(client.unlisten(1), Ok(false));
}

#[test]
fn a_ring_waits_for_no_answer_and_disturbs_none() {
    let (client, daemon) = Client::pair().unwrap();
    let (rung, heard) = std::sync::mpsc::channel();
    server(daemon, move |number, request, _| match request {
        Request::Ring { poller } => {
            rung.send(poller).unwrap();
            None
        }
        _ => Some((number, Reply::Done)),
    });
    for poller in 1..=100 {
        assert_eq!(client.ring(poller), Ok(()));
    }
    assert_eq!(client.exec(None), Ok(()));
    assert!(heard.try_iter().eq(1..=100));
    let (client, daemon) = Client::pair().unwrap();
    drop(daemon);
    assert_eq!(client.ring(1), Err(Error::Closed), "and no SIGPIPE, which the test would die of");
}

#[test]
fn the_end_of_the_daemon_is_seen() {
    let (client, daemon) = Client::pair().unwrap();
    assert!(!client.is_closed());
    drop(daemon);
    assert!(client.is_closed());
    assert_eq!(client.exec(None), Err(Error::Closed));
    let nowhere = Client::connect(b"/nonexistent/control.sock");
    assert_eq!(nowhere.unwrap_err(), Error::NoDaemon(Errno::NOENT));
}

#[test]
fn an_answer_to_something_else_is_an_error_and_so_is_a_missing_descriptor() {
    let (client, daemon) = Client::pair().unwrap();
    server(daemon, |number, request, _| {
        let reply = match request {
            Request::Exec => Reply::Poller { poller: 1 },
            Request::ExecFailed => Reply::Failed { errno: 1 },
            _ => Reply::Listener { listener: 1 },
        };
        Some((number, reply))
    });
    assert!(matches!(client.exec(None), Err(Error::Malformed(_))));
    assert_eq!(client.exec_failed(), Err(Error::Failed(Errno::PERM)));
    assert!(matches!(client.listener(1), Err(Error::Malformed(_))));
}

#[test]
fn threads_take_turns() {
    let (client, daemon) = Client::pair().unwrap();
    server(daemon, |number, _, _| Some((number, Reply::Done)));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..200).for_each(|_| client.exec(None).unwrap()));
        }
    });
}
