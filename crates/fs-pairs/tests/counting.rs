//! Counters of the service.

mod common;

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
    let (number_a, number_b) = (offer(&client_a, &a), offer(&client_b, &b));
    let (region, end) = matched(&client_a, number_a);
    let pair_a = promote(a, region, end);
    let (region, end) = matched(&client_b, number_b);
    let pair_b = promote(b, region, end);
    assert!(ping_pong(&pair_a, &pair_b, 100) > 0);
    let during = count(&service.path).expect("counters");
    let Counters { processes, pairs, promoted, offers, waiting, ring_bytes, .. } = during;
    assert_eq!((processes, pairs, promoted, offers, waiting), (2, 1, 1, 2, 0));
    assert!(ring_bytes > 0, "{during:?}");
    // The other end of this connection is not offered.
    let (alone, _other) = connection();
    offer(&client_a, &alone);
    let no_peer = Reason::ALL.iter().position(|reason| *reason == Reason::NoPeer).expect("a reason");
    let refused = counted(&service, |counters| counters.refused[no_peer] == 1);
    assert_eq!((refused.offers, refused.refused.iter().sum::<u64>()), (3, 1));
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
