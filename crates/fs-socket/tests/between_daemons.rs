//! What begins between two daemons, a thread's wait and a forked child, gets the connections that come by the next one.

mod common;

use std::time::Duration;

use common::{
    Way,
    servers::{self, By, forked, serve},
};

#[test]
fn connections_by_the_next_daemon_are_taken_by_who_began_to_wait_before_it() {
    let daemon = common::daemon();
    let listeners = [(); 3].map(|()| Way::Ours.listener(0));
    let [(polled, _), (accepted, _), (watched, _)] = listeners;
    daemon.kill();
    let waiter = std::thread::spawn(move || serve(polled, By::Poll));
    let children = [forked(accepted, By::Accept), forked(watched, By::Epoll)];
    std::thread::sleep(Duration::from_millis(1200));
    daemon.start_again();
    // This process is the first that finds it.
    Way::Ours.listener(0);
    for (_, at) in listeners {
        let served = servers::is_served(at);
        if !served {
            children.into_iter().for_each(servers::kill);
        }
        assert!(served, "nobody takes the connection to {at} of {listeners:?}");
    }
    waiter.join().unwrap();
    children.into_iter().for_each(servers::end);
}
