//! E6: what epoll_ctl(2) changes without the kernel.

use super::*;

fn registration(events: u32, data: u64) -> Registration {
    Registration { fd: 7, event: Some(Event { events, data }) }
}

#[test]
fn e6_kernel_is_told_before_a_sleep() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    assert!(set.defer(&kernel, &member, 7, Some((EPOLLIN | EPOLLPRI, 2))));
    connection.send(b"a");
    let mut events = [Event::default(); 4];
    assert_eq!(set.wait(&kernel, &mut events, None), Ok(1));
    assert_eq!(events[0], Event { events: EPOLLIN, data: 2 });
    assert_eq!(kernel.registered(), []);
    assert_eq!(connection.receive(), b"a");
    assert_eq!(set.wait(&kernel, &mut events, Some(1)), Ok(0));
    assert_eq!(kernel.registered(), [registration(EPOLLIN | EPOLLPRI, 2)]);
}

#[test]
fn e6_connection_that_was_taken_out_reports_nothing() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    assert!(set.defer(&kernel, &member, 7, None));
    connection.send(b"a");
    set.tell(&kernel);
    assert_eq!(kernel.registered(), [Registration { fd: 7, event: None }]);
    kernel.sockets.lock().unwrap().clear();
    let mut events = [Event::default(); 4];
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(0));
    assert!(!set.defer(&kernel, &member, 7, Some((EPOLLIN, 1))), "the kernel does not have it any more");
    set.add_again(&kernel, &member, EPOLLIN, 3).unwrap();
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(1));
    assert_eq!(events[0], Event { events: EPOLLIN, data: 3 });
}

/// A signal handler jumps out of the call, and the gate is freed.
#[test]
fn e6_change_is_told_after_a_jump_out_of_the_kernels_call() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (_connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    for registered in [Some((EPOLLIN | EPOLLPRI, 2)), None] {
        assert!(set.defer(&kernel, &member, 7, registered));
        kernel.jumps.store(true, Ordering::Relaxed);
        let tell = std::panic::AssertUnwindSafe(|| set.tell(&kernel));
        assert!(std::panic::catch_unwind(tell).is_err());
        set.tell(&kernel);
        let event = registered.map(|(events, data)| Event { events, data });
        assert_eq!(kernel.registered(), [Registration { fd: 7, event }]);
    }
    assert!(!set.defer(&kernel, &member, 7, Some((EPOLLIN, 1))), "the kernel does not have it any more");
}

#[test]
fn e6_the_last_change_is_told_while_the_kernel_carries() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    let mut events = [Event::default(); 4];
    assert_eq!(set.wait(&kernel, &mut events, Some(1)), Ok(0), "asleep: the kernel carries");
    for registered in [None, Some((EPOLLOUT, 1)), None, Some((EPOLLIN, 2))] {
        assert!(set.defer(&kernel, &member, 7, registered));
    }
    assert_eq!(kernel.registered(), []);
    connection.send(b"a");
    assert_eq!(set.wait(&kernel, &mut events, Some(1)), Ok(1));
    assert_eq!(kernel.registered(), [registration(EPOLLIN, 2)]);
    assert_eq!(connection.receive(), b"a");
    assert!(set.defer(&kernel, &member, 7, None) && set.defer(&kernel, &member, 7, Some((EPOLLIN, 2))));
    assert_eq!(set.wait(&kernel, &mut events, Some(1)), Ok(0));
    assert_eq!(kernel.registered(), [], "undone before the kernel was asked");
}

#[test]
fn e6_room_in_the_ring_is_reported_without_the_kernel() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    assert!(connection.a.try_set_ring());
    assert!(set.defer(&kernel, &member, 7, Some((EPOLLOUT, 1))));
    let mut events = [Event::default(); 4];
    assert_eq!(set.wait(&kernel, &mut events, None), Ok(1));
    assert_eq!(events[0], Event { events: EPOLLOUT, data: 1 });
    assert!(set.defer(&kernel, &member, 7, Some((EPOLLIN, 1))));
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(0));
    assert_eq!(kernel.registered(), [], "undone before the kernel was asked");
    assert_eq!(connection.b.send(&[0; 40], false), Ok(40));
    assert!(set.defer(&kernel, &member, 7, Some((EPOLLOUT, 1))));
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(0), "the kernel says how a long queue is");
    assert_eq!(kernel.registered(), [registration(EPOLLOUT, 1)]);
}

/// Some bytes for another connection in the kernel's set make the kernel one that has something.
fn bytes_in_kernel(set: &Arc<Set<Fake>>, kernel: &FakeSet, data: u64) -> Connection {
    let other = Connection::new();
    let _member = other.enter(set, kernel, EPOLLIN, data);
    other.send(b"x");
    other
}

#[test]
fn e6_kernel_that_has_nothing_is_not_told_of_room() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    assert!(connection.a.try_set_ring());
    let mut events = [Event::default(); 4];
    for _ in 0..3 {
        assert!(set.defer(&kernel, &member, 7, None) && set.defer(&kernel, &member, 7, Some((EPOLLOUT, 1))));
        let waits = kernel.waits.load(Ordering::Relaxed);
        assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(1));
        assert_eq!(events[0], Event { events: EPOLLOUT, data: 1 });
        assert_eq!((kernel.registered(), kernel.waits.load(Ordering::Relaxed)), (vec![], waits));
    }
    // It has something: it must not report what the application does not want, and the ring reports the room.
    let other = bytes_in_kernel(&set, &kernel, 9);
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(2));
    assert_eq!(kernel.registered(), [registration(0, 1)]);
    assert_eq!(other.receive(), b"x");
    assert!(set.defer(&kernel, &member, 7, Some((EPOLLIN | EPOLLOUT, 1))));
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(1));
    assert_eq!(kernel.registered(), [registration(EPOLLIN, 1)], "an end of the stream is the kernel's to report");
    // Before a sleep it has to know everything.
    assert!(set.defer(&kernel, &member, 7, Some((EPOLLIN, 1))));
    assert_eq!(connection.b.send(&[0; 40], false), Ok(40));
    assert!(set.defer(&kernel, &member, 7, Some((EPOLLOUT, 1))));
    assert_eq!(set.wait(&kernel, &mut events, Some(1)), Ok(0));
    assert_eq!(kernel.registered(), [registration(EPOLLOUT, 1)]);
}

#[test]
fn e6_kernel_is_told_of_wanted_bytes_before_it_is_asked() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (_connection, member) = Connection::hot(&set, &kernel, EPOLLPRI, 1);
    assert!(set.defer(&kernel, &member, 7, Some((EPOLLIN, 1))));
    let mut events = [Event::default(); 4];
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(0));
    assert_eq!(kernel.registered(), [registration(EPOLLIN, 1)]);
}

#[test]
fn e6_withdrawn_registration_stays_while_the_kernel_has_nothing() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (writer, writers) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    let (_reader, readers) = Connection::hot(&set, &kernel, EPOLLPRI, 2);
    assert!(writer.a.try_set_ring());
    let mut events = [Event::default(); 4];
    assert!(set.defer(&kernel, &writers, 7, Some((EPOLLOUT, 1))));
    assert!(set.defer(&kernel, &readers, 7, Some((EPOLLIN, 2))));
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(1));
    assert_eq!(kernel.registered(), [registration(EPOLLIN, 2)]);
    assert!(set.defer(&kernel, &writers, 7, Some((EPOLLIN, 1))));
    assert!(set.defer(&kernel, &readers, 7, Some((EPOLLIN, 2))));
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(0));
    assert_eq!(kernel.registered(), [], "both are known");
    // The kernel has something: it must not report what was withdrawn.
    assert!(set.defer(&kernel, &writers, 7, Some((EPOLLOUT, 1))));
    let _other = bytes_in_kernel(&set, &kernel, 9);
    assert_eq!(set.wait(&kernel, &mut events, Some(0)), Ok(2));
    assert_eq!(kernel.registered(), [registration(0, 1)]);
}

#[test]
fn e6_edge_and_sleeper_are_the_kernels() {
    let (set, kernel) = (Set::new(PACING), FakeSet::default());
    let (_edge, member) = Connection::hot(&set, &kernel, EPOLLIN | EPOLLET, 1);
    assert!(!set.defer(&kernel, &member, 7, Some((EPOLLIN, 1))));
    let (_level, member) = Connection::hot(&set, &kernel, EPOLLIN, 2);
    assert!(!set.defer(&kernel, &member, 7, Some((EPOLLIN | EPOLLET, 2))));
    let (inner, other) = (set.clone(), member.clone());
    kernel.at_sleep(move || assert!(!inner.defer(&FakeSet::default(), &other, 7, None)));
    let mut events = [Event::default(); 4];
    assert_eq!(set.wait(&kernel, &mut events, Some(1)), Ok(0));
}
