//! The cards.

/// A card, or a device on top of cards.
#[derive(Clone, Copy, Debug)]
pub struct Card {
    /// Its name in options.
    pub name: &'static str,
    /// QEMU's device.
    pub device: &'static str,
    /// Its driver in the guest, a module.
    pub module: &'static str,
    /// Queues. With at most four, each has a CPU of the guest.
    pub queues: u32,
    /// Further properties of QEMU's device.
    pub properties: &'static str,
    /// The guest's device on it.
    pub made: Made,
}

/// What a guest's device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// The card itself.
    Card,
    /// A VLAN on it.
    Vlan,
    /// A bond of two.
    Bond,
    /// A veth pair within the guest: the peer is a namespace there.
    Veth,
}

const fn virtio(name: &'static str, queues: u32, properties: &'static str) -> Card {
    Card { name, device: "virtio-net-pci", module: "virtio_net", queues, properties, made: Made::Card }
}

const fn other(name: &'static str, queues: u32) -> Card {
    Card { name, device: name, module: name, queues, properties: "", made: Made::Card }
}

/// All of them. Without `iommu_platform=on` virtio-net has no DMA device, and its driver no zero
/// copy.
pub const CARDS: &[Card] = &[
    virtio("virtio1", 1, ",disable-legacy=on,iommu_platform=on"),
    virtio("virtio2", 2, ",mq=on,vectors=6,disable-legacy=on,iommu_platform=on"),
    virtio("virtio4", 4, ",mq=on,vectors=10,disable-legacy=on,iommu_platform=on"),
    virtio("virtio4-rss", 4, ",mq=on,vectors=10,rss=on,disable-legacy=on,iommu_platform=on"),
    other("igb", 4),
    // With more than half of its queues they have one interrupt for both directions, and use zero
    // copy.
    Card { name: "igb8", ..other("igb", 8) },
    other("vmxnet3", 1),
    other("e1000e", 1),
    Card { made: Made::Vlan, ..virtio("vlan", 1, ",disable-legacy=on,iommu_platform=on") },
    Card { made: Made::Bond, ..virtio("bond", 1, ",disable-legacy=on,iommu_platform=on") },
    Card { made: Made::Veth, ..virtio("veth", 2, ",disable-legacy=on") },
];

impl Card {
    /// By its name.
    pub fn find(name: &str) -> Option<&'static Card> {
        CARDS.iter().find(|card| card.name == name)
    }

    /// Cards that QEMU gets.
    pub fn count(&self) -> u32 {
        match self.made {
            Made::Bond => 2,
            Made::Veth => 0,
            Made::Card | Made::Vlan => 1,
        }
    }

    /// QEMU's TAP has as many queues.
    pub fn is_multi_queue(&self) -> bool {
        self.device == "virtio-net-pci" && self.queues > 1 && self.made != Made::Veth
    }

    /// Its driver begins with fewer queues.
    pub fn begins_with_fewer(&self) -> bool {
        self.is_multi_queue() || self.queues > self.cpus()
    }

    /// Returns the guest's CPUs: four only if each queue needs a core.
    pub fn cpus(&self) -> u32 {
        if self.queues > 2 { 4 } else { 2 }
    }

    /// Modules that the guest loads.
    pub fn modules(&self) -> Vec<&'static str> {
        let mut modules = vec!["virtio_pci", "9p", "9pnet_virtio", "overlay", self.module];
        match self.made {
            Made::Card => {}
            Made::Vlan => modules.push("8021q"),
            Made::Bond => modules.push("bonding"),
            Made::Veth => modules.push("veth"),
        }
        modules
    }

    /// The guest's device.
    pub fn interface(&self) -> &'static str {
        match self.made {
            Made::Card => "eth0",
            Made::Vlan => "eth0.5",
            Made::Bond => "bond0",
            Made::Veth => "veth0",
        }
    }
}
