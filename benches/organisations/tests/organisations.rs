//! Every threading model carries both loads, loses nothing, and takes its specific locks.

use fs_organisations::lock::{CLASSES, Class};
use fs_organisations::organisation::Kind;
use fs_organisations::run::{Outcome, Setting, counted, timed};
use fs_organisations::wire::Load;
use std::time::Duration;

const KINDS: [Kind; 5] = [Kind::Up, Kind::MsgP, Kind::ConnPT, Kind::ConnPL(8), Kind::PerCore];

fn count(kind: Kind, load: Load, connections: usize, cores: usize) -> Outcome {
    let setting = Setting { kind, cores, connections, load };
    counted(setting, 4000).unwrap_or_else(|error| panic!("{kind:?}, {load:?}: {error:#}"))
}

fn taken(outcome: &Outcome, class: Class) -> u64 {
    outcome.counters.taken[class as usize]
}

#[test]
fn all_models_carry_both_loads_without_loss() {
    for kind in KINDS {
        let cores = if kind == Kind::Up { 1 } else { 2 };
        for load in [Load::Bulk, Load::Requests] {
            for connections in [6, 40] {
                let outcome = count(kind, load, connections, cores);
                let counters = &outcome.counters;
                assert_eq!(outcome.drops, 0, "{kind:?}, {load:?}");
                assert_eq!(counters.retransmits, 0, "{kind:?}, {load:?}");
                match load {
                    // One response per request, except the last ones, which are in flight.
                    Load::Requests => {
                        assert!(counters.responses + connections as u64 + 64 >= counters.packets_in, "{counters:?}");
                    }
                    // Several segments per ACK.
                    Load::Bulk => assert!(counters.bytes / counters.packets_in >= 1448, "{counters:?}"),
                }
            }
        }
    }
}

#[test]
fn unshared_state_takes_no_lock() {
    for (kind, cores) in [(Kind::Up, 1), (Kind::PerCore, 2), (Kind::PerCore, 16)] {
        let outcome = count(kind, Load::Requests, 64, cores);
        assert_eq!(outcome.counters.taken, [0; CLASSES.len()]);
        assert_eq!((outcome.counters.moves, outcome.counters.messages), (0, 0));
    }
}

#[test]
fn each_model_takes_its_locks() {
    let msgp = count(Kind::MsgP, Load::Requests, 64, 2);
    let packets = msgp.counters.packets_in;
    assert_eq!(taken(&msgp, Class::Table), packets, "the table is looked at for each packet");
    assert!(taken(&msgp, Class::Connection) >= 2 * packets - 200, "for the packet, and for the call");
    // Taken once per turn, and for each new deadline of the engine's lazy wheel.
    assert!(taken(&msgp, Class::Timers) > 0);

    let locked = count(Kind::ConnPL(8), Load::Requests, 64, 2);
    assert_eq!(taken(&locked, Class::Table) + taken(&locked, Class::Connection), 0);
    assert!(taken(&locked, Class::Group) > 0 && taken(&locked, Class::Group) < 2 * locked.counters.packets_in);
    assert!(locked.locks() < msgp.locks(), "fewer locks for a packet than MsgP");

    let messages = count(Kind::ConnPT, Load::Requests, 64, 2);
    assert_eq!(taken(&messages, Class::Group), 0, "a protocol thread has its connections to itself");
    assert!(messages.counters.messages > 0 && messages.counters.moves == 0, "{:?}", messages.counters);
    // Half of the connections' applications run on another core.
    assert!(locked.counters.moves > 0 && msgp.counters.moves > msgp.counters.packets_in / 4);
}

#[test]
fn threads_carry_both_loads() {
    for kind in KINDS {
        let cores = if kind == Kind::Up { 1 } else { 2 };
        for load in [Load::Bulk, Load::Requests] {
            let setting = Setting { kind, cores, connections: 24, load };
            let outcome = timed(setting, Duration::from_millis(20), Duration::from_millis(60)).unwrap();
            assert!(outcome.seconds > 0.05, "{kind:?}: {} s", outcome.seconds);
            assert!(outcome.counters.responses > 100, "{kind:?}, {load:?}: {:?}", outcome.counters);
            assert_eq!(outcome.drops, 0, "{kind:?}, {load:?}");
        }
    }
}
