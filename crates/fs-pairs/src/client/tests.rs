use super::*;
use rustix::net::{RecvFlags, bind, listen, recv, socket_with};

/// Returns a client and the service's end of its connection.
fn connected() -> (Client, std::os::fd::OwnedFd) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("fs-pairs-client-{}-{number}", std::process::id()));
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let client = Client::new(&path).unwrap();
    client.enter().unwrap().connect().unwrap();
    std::fs::remove_file(&path).unwrap();
    (client, rustix::net::accept(&listener).unwrap())
}

fn told(service: &std::os::fd::OwnedFd) -> Option<Request> {
    let mut bytes = [0; LEN];
    let (len, _) = recv(service, &mut bytes[..], RecvFlags::DONTWAIT).ok()?;
    Request::decode(&bytes[..len])
}

#[test]
fn size_of_a_shared_table_is_known() {
    std::thread::scope(|scope| scope.spawn(|| assert!(shared_table().is_some_and(|size| size >= 64))).join().unwrap());
}

#[test]
fn forgets_while_another_thread_has_the_lock() {
    let (client, service) = connected();
    let section = client.enter().unwrap();
    std::thread::scope(|scope| scope.spawn(|| client.forget(Number(7))).join().unwrap());
    assert_eq!(told(&service), None);
    drop(section);
    assert_eq!(told(&service), Some(Request::Forget(Number(7))));
    assert_eq!(told(&service), None);
}

/// Sends an answer, with or without a file.
fn answer(service: &std::os::fd::OwnedFd, answer: Answer, file: Option<BorrowedFd<'_>>) {
    let bytes = answer.encode();
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = file.into_iter().collect();
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    rustix::net::sendmsg(service, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()).unwrap();
}

/// A process at its descriptor limit gets no file. One at the limit of its address space cannot map it.
#[test]
fn forgets_a_pair_whose_region_it_cannot_take() {
    let (client, service) = connected();
    for file in [None, Some(service.as_fd())] {
        answer(&service, Answer::Matched { number: Number(7), end: End::A, ring: 4096 }, file);
        let answered = client.answer();
        assert!(
            matches!(answered, Some(Offered::Refused { number: Number(7), reason: Reason::Failed })),
            "{answered:?}"
        );
        assert_eq!(told(&service), Some(Request::Forget(Number(7))));
    }
}

/// A child of clone(2) with CLONE_NEWPID may have its parent's number.
#[test]
fn child_with_its_parents_number_does_not_use_the_connection() {
    let (client, _service) = connected();
    // A thread of the parent is in a call at the fork(2).
    core::mem::forget(client.enter().unwrap());
    client.after_fork();
    assert_eq!(client.descriptor(), None);
    assert!(client.enter().is_some());
}

#[test]
fn forgets_when_the_service_has_room_again() {
    let (client, service) = connected();
    let mut sent = 0;
    while !client.has_untold.load(Ordering::SeqCst) {
        sent += 1;
        client.forget(Number(sent));
    }
    let mut forgotten = Vec::new();
    for _ in 0..2 {
        forgotten.extend(std::iter::from_fn(|| told(&service)));
        // Any call sends the number.
        assert!(client.answer().is_none());
    }
    assert_eq!(forgotten, (1..=sent).map(|number| Request::Forget(Number(number))).collect::<Vec<_>>());
}

#[test]
fn forgets_all_of_many_threads() {
    let (client, service) = connected();
    let mut forgotten = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let client = &client;
                scope.spawn(move || {
                    for i in 1..=1000 {
                        while client.has_untold.load(Ordering::SeqCst) {
                            let _none = client.answer();
                            std::thread::yield_now();
                        }
                        client.forget(Number(thread * 1000 + i));
                    }
                })
            })
            .collect();
        while !threads.iter().all(|thread| thread.is_finished()) {
            forgotten.extend(std::iter::from_fn(|| told(&service)));
        }
    });
    for _ in 0..2 {
        forgotten.extend(std::iter::from_fn(|| told(&service)));
        assert!(client.answer().is_none());
    }
    let mut numbers: Vec<_> = forgotten
        .into_iter()
        .map(|request| match request {
            Request::Forget(number) => number.0,
            other => panic!("{other:?}"),
        })
        .collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (1..=4000).collect::<Vec<_>>());
}
