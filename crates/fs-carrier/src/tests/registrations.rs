//! Registrations that come, change and go: E5, EPOLLONESHOT and EPOLLEXCLUSIVE, a second set. Miri runs these.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::sets::{Connection, wait, world};
use crate::kernel::{Event, KernelSet};
use crate::set::{EPOLLEXCLUSIVE, EPOLLIN, EPOLLONESHOT, Set};

#[test]
fn one_shot_and_exclusive_are_pinned() {
    for events in [EPOLLIN | EPOLLEXCLUSIVE, EPOLLIN | EPOLLONESHOT] {
        let (set, kernel) = world();
        let connection = Connection::new();
        Set::before_control(&connection.b, events);
        connection.enter(&set, &kernel, events, 1);
        assert!(connection.b.words().iter().all(|word| word.is_pinned()));
        assert!(!connection.b.try_set_ring());
    }
}

#[test]
fn one_shot_reports_ring_bytes_once() {
    let (set, kernel) = world();
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    connection.send(b"rest");
    let events = EPOLLIN | EPOLLONESHOT;
    Set::before_control(&connection.b, events);
    set.change(&*kernel, &member, events, 1).unwrap();
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
    // The kernel is not to report what follows: there is one report until the next EPOLL_CTL_MOD.
    connection.forth.inject(b'!');
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    assert_eq!(connection.receive(), b"rest!");
}

#[test]
fn one_shot_report_of_the_kernel_is_the_only_one() {
    let (set, kernel) = world();
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    connection.send(b"rest");
    let events = EPOLLIN | EPOLLONESHOT;
    Set::before_control(&connection.b, events);
    // The kernel's event comes first, as where a thread sleeps in the set.
    connection.forth.inject(b'!');
    set.change(&*kernel, &member, events, 1).unwrap();
    let mut list = [Event { events: EPOLLIN, data: 1 }];
    assert_eq!(set.report(&*kernel, &mut list, 0), Ok(1));
    kernel.disarm(0, 1);
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    // A second one is dropped.
    assert_eq!(set.report(&*kernel, &mut list, 0), Ok(0));
}

#[test]
fn one_shot_for_no_event_reports_an_end() {
    let (set, kernel) = world();
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    connection.send(b"rest");
    Set::before_control(&connection.b, EPOLLONESHOT);
    set.change(&*kernel, &member, EPOLLONESHOT, 1).unwrap();
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    let hang_up = Event { events: 0x10, data: 1 };
    assert_eq!(set.report(&*kernel, &mut [hang_up], 0), Ok(1));
    assert_eq!(set.report(&*kernel, &mut [hang_up], 0), Ok(0));
}

#[test]
fn one_shot_stays_armed_for_bytes_that_are_read_before() {
    let (set, kernel) = world();
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    connection.send(b"rest");
    let events = EPOLLIN | EPOLLONESHOT;
    Set::before_control(&connection.b, events);
    set.change(&*kernel, &member, events, 1).unwrap();
    assert_eq!(connection.receive(), b"rest");
    connection.send(b"next");
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
}

#[test]
fn second_set_pins() {
    let (set, kernel) = world();
    let (second, second_kernel) = world();
    let (connection, _member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    connection.send(b"x");
    connection.enter(&second, &second_kernel, EPOLLIN, 2);
    assert!(connection.b.words()[1].is_pinned());
    // Both sets report the bytes in the ring.
    assert_eq!(wait(&set, &kernel, None), [(1, EPOLLIN)]);
    assert_eq!(wait(&second, &second_kernel, None), [(2, EPOLLIN)]);
    assert_eq!(connection.receive(), b"x");
    assert_eq!(wait(&set, &kernel, Some(0)), []);
}

#[test]
fn e5_added_ring_bytes_interrupt_a_sleeper() {
    let (set, kernel) = world();
    let connection = Arc::new(Connection::new());
    assert!(connection.b.try_set_ring());
    connection.send(b"early");
    let (adds, sets, kernels) = (connection.clone(), set.clone(), kernel.clone());
    kernel.at_sleep(move || {
        adds.enter(&sets, &kernels, EPOLLIN, 5);
        assert!(kernels.is_interrupted.load(Ordering::Relaxed));
        // The sleeper is still counted.
        assert!(adds.is_kernel());
    });
    assert_eq!(wait(&set, &kernel, None), [(5, EPOLLIN)]);
    assert_eq!(connection.receive(), b"early");
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    assert!(!kernel.is_interrupted.load(Ordering::Relaxed));
}

#[test]
fn e5_interruption_stays_until_all_is_reported() {
    let (set, kernel) = world();
    let all: Vec<_> = (0..2).map(|_| Arc::new(Connection::new())).collect();
    for connection in &all {
        assert!(connection.b.try_set_ring());
        connection.send(b"early");
    }
    let (adds, sets, kernels) = (all.clone(), set.clone(), kernel.clone());
    kernel.at_sleep(move || {
        for (connection, data) in adds.iter().zip(1..) {
            connection.enter(&sets, &kernels, EPOLLIN, data);
        }
    });
    // One place: another thread that sleeps in the set is to take the second one.
    assert_eq!(set.wait(&*kernel, &mut [Event::default(); 1], None), Ok(1));
    assert!(kernel.is_interrupted.load(Ordering::Relaxed));
    assert_eq!(all.iter().map(|connection| connection.receive()).collect::<Vec<_>>(), [b"early", b"early"]);
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    assert!(!kernel.is_interrupted.load(Ordering::Relaxed));
}

#[test]
fn e5_added_connection_without_bytes_becomes_the_kernels() {
    let (set, kernel) = world();
    let connection = Arc::new(Connection::new());
    assert!(connection.b.try_set_ring());
    let (adds, sets, kernels) = (connection.clone(), set.clone(), kernel.clone());
    kernel.at_sleep(move || {
        adds.enter(&sets, &kernels, EPOLLIN, 5);
        assert!(adds.is_kernel());
        adds.send(b"wakes");
    });
    assert_eq!(wait(&set, &kernel, None), [(5, EPOLLIN)]);
}

#[test]
fn removed_connection_is_reported_no_more() {
    let (set, kernel) = world();
    let (connection, member) = Connection::hot(&set, &kernel, EPOLLIN, 1);
    connection.send(b"x");
    set.remove(&*kernel, &member);
    assert_eq!(wait(&set, &kernel, Some(0)), []);
    assert_eq!(connection.receive(), b"x");
    assert!(connection.b.before_sleep().is_some());
    assert!(connection.b.try_set_ring());
    drop(member);
    // The connection may be added to a set again.
    kernel.members.lock().unwrap().clear();
    let again = set.add(&*kernel, &connection.b, EPOLLIN, 3).unwrap();
    assert!(!connection.b.words()[1].is_pinned());
    // Forgotten: the set would not make the kernel the carrier before a thread sleeps in it.
    drop(again);
    assert_eq!(wait(&set, &kernel, Some(1)), []);
    assert!(connection.b.words()[1].is_pinned());
}
