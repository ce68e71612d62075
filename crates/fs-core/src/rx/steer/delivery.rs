//! The core that a packet belongs to which no connection, handshake or TIME-WAIT of this core claims.

use super::{Class, Rfd};
use crate::flow::{CoreId, FlowKey};
use crate::port_set::PortSet;
use alloc::boxed::Box;

/// The core to which the device brings a flow's packets, where that is known: see [`crate::stack::Stack::set_steering`].
pub type Steering = Box<dyn Fn(&FlowKey) -> Option<CoreId> + Send>;

/// See the module.
pub(crate) struct Delivery {
    core: CoreId,
    cores: u16,
    rfd: Rfd,
    /// Ports for active connections, all cores' together.
    active_ports: PortSet,
    steering: Option<Steering>,
}

/// What is known of such a packet.
pub(crate) struct Unclaimed<'a> {
    pub(crate) key: &'a FlowKey,
    /// SYN without ACK.
    pub(crate) initial: bool,
    /// The core that its echo of our timestamp names.
    pub(crate) echo: Option<CoreId>,
    /// Cores that it has been at before.
    pub(crate) hops: u16,
}

/// Who listens at the packet's destination. Each is asked when it matters only.
pub(crate) trait Listening {
    /// Anybody, on any core and address, at the port.
    fn port_in_use(&self) -> bool;
    /// This core.
    fn here(&self) -> bool;
    /// Another core.
    fn elsewhere(&self) -> Option<CoreId>;
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deliver {
    /// It is this core's to answer.
    Here,
    /// To the core that owns its flow.
    Owner(CoreId),
    /// To a core that listens.
    Listener(CoreId),
    /// To the next core: nothing says whose it is.
    Ask(CoreId),
}

impl core::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Delivery").field("core", &self.core).field("rfd", &self.rfd).finish_non_exhaustive()
    }
}

impl Delivery {
    /// For `core` of `cores`, whose active connections have `active_ports` by `rfd`.
    pub(crate) fn new(core: CoreId, cores: u16, rfd: Rfd, active_ports: PortSet) -> Self {
        Self { core, cores, rfd, active_ports, steering: None }
    }

    pub(crate) fn set_steering(&mut self, steering: Option<Steering>) {
        self.steering = steering;
    }

    pub(crate) fn steering(&self) -> Option<&Steering> {
        self.steering.as_ref()
    }

    /// The port is one that the engine chooses for active connections.
    pub(crate) fn is_active_port(&self, port: u16) -> bool {
        self.active_ports.contains(port)
    }

    /// The core that opened a flow from a port which the engine chose: by the rule by which such ports are chosen.
    pub(crate) fn opener_of(&self, key: &FlowKey) -> Option<CoreId> {
        let by_device = self.steering.as_ref().and_then(|core_of| core_of(key));
        by_device.or_else(|| self.rfd.core_of_port(key.local_port())).filter(|core| core.0 < self.cores)
    }

    /// Receive Flow Deliver (Fastsocket section 3.3). `handed_over`: the core that the flow's connection went to a moment ago.
    pub(crate) fn deliver(
        &self,
        packet: &Unclaimed<'_>,
        listening: &impl Listening,
        handed_over: impl FnOnce() -> Option<CoreId>,
    ) -> Deliver {
        let &Unclaimed { key, initial, echo, hops } = packet;
        let (me, port) = (self.core, key.local_port());
        let class = self.rfd.classify(port, key.remote_port(), || listening.port_in_use());
        if class == Class::Active && self.is_active_port(port) && !listening.port_in_use() {
            let Some(owner) = self.opener_of(key) else { return Deliver::Here };
            if owner != me && hops == 0 {
                return Deliver::Owner(owner);
            }
            // A port that the application chose may belong to any core: ask below.
        } else if initial {
            if listening.here() || hops >= self.cores {
                return Deliver::Here;
            }
            // The global listen table: somebody else may listen.
            return listening.elsewhere().map_or(Deliver::Here, Deliver::Listener);
        }
        if hops == 0
            && let Some(owner) = echo.filter(|owner| *owner != me && owner.0 < self.cores)
        {
            return Deliver::Owner(owner);
        }
        // It may have been ours until a moment ago. (A stray one of a connection that went to and fro ends its way, too.)
        if hops < 4 * self.cores
            && let Some(to) = handed_over()
        {
            return Deliver::Owner(to);
        }
        // Nothing says whose it is: ask once around.
        if hops < self.cores { Deliver::Ask(CoreId((me.0 + 1) % self.cores)) } else { Deliver::Here }
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
    fn a_reply_goes_to_the_core_that_its_port_names() {
        let mut delivery = delivery();
        for port in 20_000..20_100 {
            let owner = delivery.opener_of(&key(port)).unwrap();
            let expected = if owner == ME { Deliver::Ask(CoreId(2)) } else { Deliver::Owner(owner) };
            assert_eq!(at(&delivery, port, 0, None), expected);
            assert_eq!(at(&delivery, port, 1, None), Deliver::Ask(CoreId(2)), "who sent it here was told so already");
        }
        // What the device does counts for more, unless it names no core.
        delivery.set_steering(Some(Box::new(|key| Some(CoreId(key.local_port() % 10)))));
        assert_eq!(at(&delivery, 20_003, 0, None), Deliver::Owner(CoreId(3)));
        assert_eq!(at(&delivery, 20_009, 0, None), Deliver::Here);
    }

    #[test]
    fn a_syn_goes_to_a_core_that_listens() {
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
    fn other_segments_are_told_by_their_echo_then_by_hand_overs_then_asked_around() {
        let delivery = delivery();
        assert_eq!(at(&delivery, 80, 0, Some(CoreId(2))), Deliver::Owner(CoreId(2)));
        for echo in [Some(ME), Some(CoreId(CORES)), None] {
            assert_eq!(at(&delivery, 80, 0, echo), Deliver::Ask(CoreId(2)));
        }
        assert_eq!(
            at(&delivery, 80, 1, Some(CoreId(3))),
            Deliver::Ask(CoreId(2)),
            "once it has been sent on, it is asked"
        );
        assert_eq!(at(&delivery, 80, CORES, None), Deliver::Here);
        let packet = Unclaimed { key: &key(80), initial: false, echo: None, hops: CORES };
        let moved = |packet: &Unclaimed<'_>| delivery.deliver(packet, &Listeners::default(), || Some(CoreId(0)));
        assert_eq!(moved(&packet), Deliver::Owner(CoreId(0)));
        assert_eq!(moved(&Unclaimed { hops: 4 * CORES, ..packet }), Deliver::Here, "it went to and fro");
    }
}
