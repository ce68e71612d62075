//! Counters of the service.

mod common;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use common::*;
use fs_pairs::Reason;
use fs_pairs::counters::{Counters, count};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType};

/// Waits until the counters are as expected.
fn counted(service: &Running, is_right: impl Fn(&Counters) -> bool) -> Counters {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        let counters = count(&service.path).expect("counters");
        if is_right(&counters) {
            return counters;
        }
        assert!(Instant::now() < end, "{counters:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn pairs_bytes_and_refused_offers_are_counted() {
    let service = Running::start();
    assert_eq!(count(&service.path).expect("counters"), Counters::default());
    let (client_a, client_b) = (service.client(), service.client());
    let (a, b) = connection();
    let [end_a, end_b] = match_ends([&client_a, &client_b], [a.as_fd(), b.as_fd()]);
    let (number_a, number_b) = (end_a.0, end_b.0);
    let (pair_a, pair_b) = (promote(a, end_a.1, end_a.2), promote(b, end_b.1, end_b.2));
    ring_carries(&pair_a, &pair_b, 100);
    let during = count(&service.path).expect("counters");
    let Counters { processes, pairs, promoted, offers, waiting, ring_bytes, .. } = during;
    // On a busy machine the ends were offered more than once.
    let earlier = during.refused.iter().sum::<u64>();
    assert_eq!((processes, pairs, promoted, offers, waiting), (2, 1, 1, 2 + earlier, 0));
    assert!(ring_bytes > 0, "{during:?}");
    // The other end of this connection is not offered.
    let (alone, _other) = connection();
    offer(&client_a, &alone);
    let no_peer = Reason::ALL.iter().position(|reason| *reason == Reason::NoPeer).expect("a reason");
    let refused = counted(&service, |counters| counters.refused[no_peer] == earlier + 1);
    assert_eq!((refused.offers, refused.refused.iter().sum::<u64>()), (offers + 1, earlier + 1));
    // The bytes of a pair stay counted after its end.
    client_a.forget(number_a);
    client_b.forget(number_b);
    let after = counted(&service, |counters| counters.pairs == 0);
    assert_eq!((after.processes, after.promoted), (2, 1));
    assert!(after.ring_bytes >= ring_bytes && after.kernel_bytes >= during.kernel_bytes, "{during:?} {after:?}");
}

#[test]
fn broken_messages_are_counted() {
    let service = Running::start();
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    let at = SocketAddrUnix::new(&*service.path).expect("an address");
    rustix::net::connect(&socket, &at).expect("the service");
    rustix::net::send(&socket, b"no message", SendFlags::NOSIGNAL).expect("sent");
    assert_eq!(counted(&service, |counters| counters.malformed > 0).malformed, 1);
}
