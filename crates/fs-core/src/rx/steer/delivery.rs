//! Finds the core of a packet that no connection, handshake or TIME-WAIT record of this core
//! claims.

use super::{Class, Rfd};
use crate::flow::{CoreId, FlowKey};
use crate::port_set::PortSet;
use alloc::boxed::Box;

/// Maximum number of cores that a packet visits because its connection has moved there. Too low: the
/// listeners of more cores close at once, and the packet, searched for after so many moves, passes
/// the last core before that one has taken the connection: a reset. Too high: packets without an
/// owner follow a connection that moved back and forth for longer.
const MOVES_MAX: u16 = 3;

/// Returns the core to which the device steers a flow's packets, if known: see
/// [`crate::stack::Stack::set_steering`].
pub type Steering = Box<dyn Fn(&FlowKey) -> Option<CoreId> + Send>;

/// Rules that find the core of an unclaimed packet.
pub(crate) struct Delivery {
    core: CoreId,
    cores: u16,
    rfd: Rfd,
    /// Ephemeral ports, of all cores.
    ephemeral_ports: PortSet,
    steering: Option<Steering>,
}

/// Properties of an unclaimed packet.
pub(crate) struct Unclaimed<'a> {
    pub(crate) key: &'a FlowKey,
    /// The packet is a SYN without ACK.
    pub(crate) initial: bool,
    /// The core that the packet's echo of our timestamp names.
    pub(crate) echo: Option<CoreId>,
    /// Number of cores that have seen the packet, as [`Delivery::hops_at`] counts them.
    pub(crate) hops: u16,
}

/// Listeners at the packet's destination. Each method is called only when its result matters.
pub(crate) trait Listening {
    /// Returns true if any core listens on the port, at any address.
    fn port_in_use(&self) -> bool;
    /// Returns true if this core listens at the destination.
    fn here(&self) -> bool;
    /// Returns another core that listens at the destination.
    fn elsewhere(&self) -> Option<CoreId>;
}

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deliver {
    /// This core answers it.
    Here,
    /// The core that owns its flow.
    Owner(CoreId),
    /// The core that its flow's connection has recently moved to.
    Moved(CoreId),
    /// A core that listens.
    Listener(CoreId),
    /// The next core, in a search for the owner that begins at this core.
    Search(CoreId),
    /// The next core, in a search that another core has begun.
    Ask(CoreId),
}

impl core::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Delivery").field("core", &self.core).field("rfd", &self.rfd).finish_non_exhaustive()
    }
}

impl Delivery {
    /// Makes the rules for `core` of `cores`. `rfd` distributes `ephemeral_ports`.
    pub(crate) fn new(core: CoreId, cores: u16, rfd: Rfd, ephemeral_ports: PortSet) -> Self {
        Self { core, cores, rfd, ephemeral_ports, steering: None }
    }

    pub(crate) fn set_steering(&mut self, steering: Option<Steering>) {
        self.steering = steering;
    }

    pub(crate) fn steering(&self) -> Option<&Steering> {
        self.steering.as_ref()
    }

    /// Returns true if the engine chooses this port for active connections.
    pub(crate) fn is_ephemeral_port(&self, port: u16) -> bool {
        self.ephemeral_ports.contains(port)
    }

    /// Returns the core that opened a flow from an ephemeral port, by the rule that chose the port.
    pub(crate) fn opener_of(&self, key: &FlowKey) -> Option<CoreId> {
        let by_device = self.steering.as_ref().and_then(|core_of| core_of(key));
        by_device.or_else(|| self.rfd.core_of_port(key.local_port())).filter(|core| core.0 < self.cores)
    }

    /// Applies Receive Flow Deliver (Fastsocket section 3.3). `handed_over` returns the core that
    /// the flow's connection has recently moved to.
    pub(crate) fn deliver(
        &self,
        packet: &Unclaimed<'_>,
        listening: &impl Listening,
        handed_over: impl FnOnce() -> Option<CoreId>,
    ) -> Deliver {
        let &Unclaimed { key, initial, echo, hops } = packet;
        let port = key.local_port();
        let class = self.rfd.classify(port, key.remote_port(), || listening.port_in_use());
        let opened = class == Class::Active && self.is_ephemeral_port(port) && !listening.port_in_use();
        if initial && !opened {
            if listening.here() || hops >= self.cores {
                return Deliver::Here;
            }
            // The global listen table: another core may listen.
            return listening.elsewhere().map_or(Deliver::Here, Deliver::Listener);
        }
        let opener = if opened { self.opener_of(key) } else { None };
        let named = opener.or(echo.filter(|owner| owner.0 < self.cores));
        if hops == 0
            && let Some(owner) = named.filter(|owner| *owner != self.core)
        {
            return Deliver::Owner(owner);
        }
        if self.may_follow(hops)
            && let Some(to) = handed_over()
        {
            return Deliver::Moved(to);
        }
        // Not the named core's: a port that the application chose may belong to any core.
        self.search(named, hops)
    }

    /// Returns the number of moves that a packet has followed, and of cores that have seen it since.
    fn moves_and_hops(&self, hops: u16) -> (u16, u16) {
        let of_a_move = 2 * self.cores;
        (hops / of_a_move, hops % of_a_move)
    }

    /// Returns the `hops` of a packet at its destination; it had `hops` here. Those of a packet that
    /// follows a move begin at a multiple of twice the cores: more than a search has.
    pub(crate) fn hops_at(&self, destination: Deliver, hops: u16) -> u16 {
        match destination {
            Deliver::Moved(_) => (self.moves_and_hops(hops).0 + 1) * 2 * self.cores,
            _ => hops + 1,
        }
    }

    /// Returns true if a packet with so many hops follows its connection, if that has moved from
    /// here. A connection that has ended elsewhere may still be remembered here, and a newer one
    /// between the same ports may be on any core: the search that follows a move asks all cores,
    /// and heeds no other core's memory.
    pub(crate) fn may_follow(&self, hops: u16) -> bool {
        let (moves, hops) = self.moves_and_hops(hops);
        moves == 0 || moves < MOVES_MAX && hops == 0
    }

    /// Returns true if all cores have been asked about a packet with so many hops.
    pub(crate) fn is_over(&self, hops: u16) -> bool {
        self.moves_and_hops(hops).1 >= self.cores
    }

    /// Searches for the owner of a packet whose port or echo names the core `named`. Each core is
    /// asked once, and the search ends at the core that began it: the one that received the packet,
    /// or to which it was forwarded because it is named, or because its connection has moved there.
    /// That core limits the rate of searches that find no owner.
    pub(crate) fn search(&self, named: Option<CoreId>, hops: u16) -> Deliver {
        let next = CoreId((self.core.0 + 1) % self.cores);
        let (moves, hops) = self.moves_and_hops(hops);
        let named = named.filter(|_| moves == 0);
        if hops == 0 || hops == 1 && named == Some(self.core) {
            Deliver::Search(next)
        } else if hops < self.cores || hops == self.cores && named == Some(next) {
            Deliver::Ask(next)
        } else {
            Deliver::Here
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    const CORES: u16 = 4;
    const ME: CoreId = CoreId(1);

    #[derive(Clone, Copy, Default)]
    struct Listeners {
        port: bool,
        here: bool,
        elsewhere: Option<CoreId>,
    }

    impl Listening for Listeners {
        fn port_in_use(&self) -> bool {
            self.port
        }

        fn here(&self) -> bool {
            self.here
        }

        fn elsewhere(&self) -> Option<CoreId> {
            self.elsewhere
        }
    }

    fn delivery() -> Delivery {
        Delivery::new(ME, CORES, Rfd::new(CORES, 1000, &Secret([7; 32])), (20_000..=20_999).collect())
    }

    fn key(local_port: u16) -> FlowKey {
        FlowKey::V4 { local: 1, remote: 2, local_port, remote_port: 5000 }
    }

    fn at(delivery: &Delivery, port: u16, hops: u16, echo: Option<CoreId>) -> Deliver {
        let packet = Unclaimed { key: &key(port), initial: false, echo, hops };
        delivery.deliver(&packet, &Listeners::default(), || None)
    }

    #[test]
    fn delivers_reply_by_port() {
        let mut delivery = delivery();
        for port in 20_000..20_100 {
            let owner = delivery.opener_of(&key(port)).unwrap();
            let expected = if owner == ME { Deliver::Search(CoreId(2)) } else { Deliver::Owner(owner) };
            assert_eq!(at(&delivery, port, 0, None), expected);
            let expected = if owner == ME { Deliver::Search(CoreId(2)) } else { Deliver::Ask(CoreId(2)) };
            assert_eq!(at(&delivery, port, 1, None), expected, "the forwarding core has the same rule");
        }
        // The device's rule has priority, unless it names a core that does not exist.
        delivery.set_steering(Some(Box::new(|key| Some(CoreId(key.local_port() % 10)))));
        assert_eq!(at(&delivery, 20_003, 0, None), Deliver::Owner(CoreId(3)));
        // An application may have chosen such a port: the owner is searched for.
        assert_eq!(at(&delivery, 20_009, 0, None), Deliver::Search(CoreId(2)));
        assert_eq!(at(&delivery, 20_009, 0, Some(CoreId(3))), Deliver::Owner(CoreId(3)));
    }

    #[test]
    fn search_ends_where_it_began() {
        let delivery = delivery();
        let asked = |named, hops| delivery.search(named, hops);
        for named in [None, Some(CoreId(0)), Some(CoreId(3))] {
            assert_eq!(asked(named, 0), Deliver::Search(CoreId(2)));
            assert_eq!(asked(named, 1), Deliver::Ask(CoreId(2)));
            assert_eq!(asked(named, CORES), Deliver::Here);
        }
        // It was forwarded to this core, or to the next one.
        assert_eq!(asked(Some(ME), 1), Deliver::Search(CoreId(2)));
        assert_eq!(asked(Some(CoreId(2)), CORES), Deliver::Ask(CoreId(2)));
        assert_eq!(asked(Some(ME), CORES + 1), Deliver::Here);
        // Its connection had moved to this core: another search, whatever it names.
        let moved = delivery.hops_at(Deliver::Moved(ME), 1);
        for named in [None, Some(ME), Some(CoreId(2))] {
            assert_eq!(asked(named, moved), Deliver::Search(CoreId(2)));
            assert_eq!(asked(named, moved + 1), Deliver::Ask(CoreId(2)));
            assert_eq!(asked(named, moved + CORES), Deliver::Here);
        }
        assert!([CORES, CORES + 1, moved + CORES].into_iter().all(|hops| delivery.is_over(hops)));
        assert!([0, CORES - 1, moved, moved + CORES - 1].into_iter().all(|hops| !delivery.is_over(hops)));
    }

    #[test]
    fn delivers_syn_to_listening_core() {
        let delivery = delivery();
        let syn = |hops, listeners: Listeners| {
            let packet = Unclaimed { key: &key(80), initial: true, echo: None, hops };
            delivery.deliver(&packet, &listeners, || unreachable!("a SYN has no connection"))
        };
        let elsewhere = Listeners { port: true, here: false, elsewhere: Some(CoreId(3)) };
        assert_eq!(syn(0, elsewhere), Deliver::Listener(CoreId(3)));
        assert_eq!(syn(CORES, elsewhere), Deliver::Here, "it has been everywhere");
        assert_eq!(syn(0, Listeners { here: true, ..elsewhere }), Deliver::Here);
        assert_eq!(syn(0, Listeners::default()), Deliver::Here);
    }

    #[test]
    fn delivers_others_by_echo_then_handover_then_search() {
        let delivery = delivery();
        assert_eq!(at(&delivery, 80, 0, Some(CoreId(2))), Deliver::Owner(CoreId(2)));
        for echo in [Some(ME), Some(CoreId(CORES)), None] {
            assert_eq!(at(&delivery, 80, 0, echo), Deliver::Search(CoreId(2)));
        }
        assert_eq!(
            at(&delivery, 80, 1, Some(CoreId(3))),
            Deliver::Ask(CoreId(2)),
            "once it has been sent on, it is asked"
        );
        assert_eq!(at(&delivery, 80, CORES, None), Deliver::Here);
        let packet = Unclaimed { key: &key(80), initial: false, echo: None, hops: CORES };
        let moved = |packet: &Unclaimed<'_>| delivery.deliver(packet, &Listeners::default(), || Some(CoreId(0)));
        assert_eq!(moved(&packet), Deliver::Moved(CoreId(0)));
        let mut hops = CORES;
        for _ in 0..MOVES_MAX {
            assert_eq!(moved(&Unclaimed { hops, ..packet }), Deliver::Moved(CoreId(0)));
            hops = delivery.hops_at(Deliver::Moved(CoreId(0)), hops);
            assert_eq!(moved(&Unclaimed { hops: hops + 1, ..packet }), Deliver::Ask(CoreId(2)), "a search");
        }
        assert_eq!(moved(&Unclaimed { hops, ..packet }), Deliver::Search(CoreId(2)), "it went to and fro");
    }
}
