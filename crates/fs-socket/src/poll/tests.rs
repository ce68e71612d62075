//! Registrations, sets of bits, looking before sleeping.

use super::*;

#[test]
fn pollfd_and_epoll_event_are_laid_out_as_the_kernel_has_them() {
    assert_eq!(size_of::<PollFd>(), 8);
    assert_eq!(size_of::<EpollEvent>(), if cfg!(target_arch = "x86_64") { 12 } else { 16 });
}

#[test]
fn what_tcp_reports_beside_in_and_out() {
    assert_eq!(expand(0), 0);
    assert_eq!(expand(0x1 | 0x2000), 0x1 | 0x40 | 0x2000);
    assert_eq!(expand(0x4), 0x4 | 0x100);
}

mod registrations {
    use crate::{
        poll::{EpollEvent, interest::Interest},
        socket::{Kind, Socket},
    };

    /// A closed descriptor's number, and its place here, are used again at once by a client that reconnects.
    #[test]
    fn a_candidate_is_not_its_places_next_entry() {
        let mut interest = Interest::default();
        let (first, second) = (Socket::make(Kind::Fresh).unwrap(), Socket::make(Kind::Fresh).unwrap());
        let at = interest.add(5, first, EpollEvent::default());
        let old = interest.queue(at).unwrap();
        assert!(interest.queue(at).is_none(), "twice a candidate is twice reported");
        interest.remove(at);
        assert_eq!(interest.add(5, second, EpollEvent::default()), at, "the place is used again");
        let new = interest.queue(at).unwrap();
        assert!(interest.dequeue(old).is_none());
        assert_eq!(interest.dequeue(new).unwrap().identity, second.identity());
    }

    #[test]
    fn the_same_number_stands_for_several_sockets() {
        let mut interest = Interest::default();
        let sockets: Vec<_> = (0..3).map(|_| Socket::make(Kind::Fresh).unwrap()).collect();
        let places: Vec<_> = sockets.iter().map(|socket| interest.add(7, socket, EpollEvent::default())).collect();
        interest.remove(places[1]);
        assert_eq!(interest.find(7, sockets[0].identity()), Some(places[0]));
        assert_eq!(interest.find(7, sockets[1].identity()), None);
        assert_eq!(interest.find(7, sockets[2].identity()), Some(places[2]));
        interest.remove(places[2]);
        interest.remove(places[0]);
        assert_eq!(interest.find(7, sockets[0].identity()), None);
    }
}

mod looking {
    use std::{
        cell::Cell,
        sync::atomic::{AtomicU32, Ordering::Relaxed},
    };

    use crate::poll::spin::Spin;

    #[test]
    fn in_vain_five_times_is_enough_for_a_while() {
        let spin = Spin::new();
        for _ in 0..6 {
            assert!(!spin.look(None, None, || false));
        }
        let looks = AtomicU32::new(0);
        for _ in 0..25 {
            assert!(!spin.look(None, None, || {
                looks.fetch_add(1, Relaxed);
                false
            }));
        }
        assert_eq!(looks.load(Relaxed), 0, "looked although it had given up");
        // Now and then it tries, and a success makes it look again.
        let found = Cell::new(false);
        for _ in 0..40 {
            found.set(found.get() || spin.look(None, None, || true));
        }
        assert!(found.get());
        assert!(spin.look(None, None, || true));
    }

    #[test]
    fn not_past_the_deadline() {
        let spin = Spin::new();
        let looks = AtomicU32::new(0);
        assert!(!spin.look(Some(0), None, || {
            looks.fetch_add(1, Relaxed);
            false
        }));
        assert!(looks.load(Relaxed) <= 16, "one round only");
    }
}

mod locks {
    use std::sync::Arc;

    use crate::poll::sys::lock::Lock;

    #[test]
    fn its_own_thread_is_told_and_others_wait() {
        let lock = Arc::new(Lock::new(0_u64));
        let held = lock.lock().unwrap();
        assert!(lock.lock().is_none(), "the same thread must not wait for itself");
        drop(held);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let lock = lock.clone();
                std::thread::spawn(move || {
                    for _ in 0..10_000 {
                        *lock.lock().unwrap() += 1;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock.lock().unwrap(), 40_000);
    }

    /// What another thread was in the middle of when a child was forked is not whole there.
    #[test]
    fn a_child_is_told_who_held_it() {
        let lock = Lock::new(0);
        assert!(lock.reset(), "nobody");
        core::mem::forget(lock.lock());
        assert!(lock.reset(), "this thread, which goes on");
        std::thread::scope(|scope| {
            scope.spawn(|| core::mem::forget(lock.lock()));
        });
        assert!(!lock.reset());
        assert!(lock.lock().is_some());
    }
}
