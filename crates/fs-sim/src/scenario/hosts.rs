//! Worlds with different hosts: one switch, and each host with its own bad link.

use super::draft::{BAD_PPM, Draft, Scenario, draw_tcp};
use crate::host::HostConfig;
use crate::link::LinkConfig;
use crate::plan::{Kind, Sizes};
use crate::rss::Rss;
use fs_core::{Addressing, Duration, Framing};

/// The first scenarios. Their seeds must keep their meaning.
pub(super) const HOSTS: &[Scenario] = &[
    Scenario {
        name: "mixed",
        about: "10,000 short and 100 bulk connections over a bad link",
        build: |rng| {
            let mut draft = Draft::bad(rng);
            draft.kinds.extend(Kind::RUDE);
            Draft { short: 10_000, bulk: 100, concurrency: 200, ..draft }.each_host(|host| draw_tcp(host, rng))
        },
    },
    Scenario {
        name: "clean",
        about: "a perfect link: nothing may be retransmitted or dropped",
        build: |_| {
            let draft = Draft::two(|| LinkConfig::clean(Duration::from_micros(200)));
            // Space for every client that connects before the first neighbour is resolved.
            draft.each_host(|host| host.limits.neighbour_queue = 256)
        },
    },
    Scenario {
        name: "small",
        about: "a small `mixed`",
        build: |rng| {
            let mut draft = Draft::bad(rng);
            draft.kinds.extend(Kind::RUDE);
            draft.each_host(|host| draw_tcp(host, rng))
        },
    },
    Scenario {
        name: "rude",
        about: "aborts, unread data, no listener",
        build: |rng| Draft { kinds: Kind::RUDE.to_vec(), bulk: 0, ..Draft::bad(rng) },
    },
    Scenario {
        name: "time-wait",
        about: "orderly connections; TIME-WAIT outlives the world, so each is counted",
        build: |rng| {
            let draft = Draft::bad(rng);
            draft.each_host(|host| host.tcp.time_wait = Duration::from_secs(36_000))
        },
    },
    Scenario {
        name: "reuse",
        about: "few ports and a short TIME-WAIT: address pairs come back soon, some on another core",
        build: |rng| {
            let draft = Draft { short: 1000, bulk: 0, v6: false, ..Draft::bad(rng) };
            let wait = Duration::from_millis(rng.range(10, 5000));
            draft.each_host(|host| {
                host.ephemeral_ports = (50_000, 50_040);
                (host.cores, host.rss) = (rng.pick(&[1, 2]), Rss::Random);
                host.tcp.time_wait = wait;
            })
        },
    },
    Scenario {
        name: "bulk",
        about: "long transfers over a bad link",
        build: |rng| Draft {
            short: 0,
            bulk: 12,
            sizes: Sizes { bulk_min: 256 << 10, bulk_max: 8 << 20, ..Sizes::default() },
            ..Draft::bad(rng)
        },
    },
    Scenario {
        name: "open-both",
        about: "simultaneous open",
        build: |rng| Draft { short: 100, bulk: 0, kinds: vec![Kind::SimultaneousOpen], ..Draft::bad(rng) },
    },
    Scenario {
        name: "cores",
        about: "several cores, packets on the wrong ones, tables that change",
        build: |rng| {
            let addressing = rng.pick(&[Addressing::Host, Addressing::Standalone]);
            let draft = Draft::bad(rng);
            draft.each_host(|host| {
                host.cores = rng.pick(&[1, 2, 3, 4]);
                host.rss = rng.pick(&[Rss::Flow, Rss::Changing, Rss::Random, Rss::One]);
                host.listen_on_one = rng.chance(300_000);
                host.addressing = addressing;
                host.frames = 4096;
            })
        },
    },
    Scenario {
        name: "pressure",
        about: "few frames, small buffers, slow readers",
        build: |rng| {
            let mut draft = Draft { bulk: 24, short: 100, ..Draft::bad(rng) };
            draft.sizes.bulk_max = 256 << 10;
            draft.each_host(|host| {
                host.frames = rng.range(400, 1000) as usize;
                host.tcp.send_buffer = 32 << 10;
                host.tcp.receive_buffer_initial = rng.pick(&[4 << 10, 16 << 10, 64 << 10]);
                host.tcp.receive_buffer_max = 128 << 10;
                host.tx_ring = 16;
            })
        },
    },
    Scenario {
        name: "jumbo",
        about: "packets of several frames",
        build: |rng| {
            let draft = Draft { mtu: 9000, ..Draft::bad(rng) };
            draft.each_host(|host| host.frame_size = rng.pick(&[2048, 4096]))
        },
    },
    Scenario {
        name: "mtu",
        about: "odd MTUs, checksums finished by the device",
        build: |rng| {
            let mtu = rng.range(1280, 1500) as u16;
            Draft { mtu, ..Draft::bad(rng) }.each_host(|host| host.tx_checksum = true)
        },
    },
    Scenario {
        name: "raw-ip",
        about: "no Ethernet, as on TUN",
        build: |rng| Draft { framing: Framing::Ip, ..Draft::bad(rng) },
    },
    Scenario { name: "vlan", about: "one VLAN tag", build: |rng| Draft { vlan: Some(77), ..Draft::bad(rng) } },
    Scenario {
        name: "standalone",
        about: "ARP and NDISC of our own, over a bad link",
        build: |rng| Draft::bad(rng).each_host(|host| host.addressing = Addressing::Standalone),
    },
    Scenario {
        name: "hosts",
        about: "five hosts",
        build: |rng| {
            let mut draft = Draft::bad(rng);
            for _ in 0..3 {
                draft.hosts.push(HostConfig { link: LinkConfig::draw(rng, BAD_PPM), ..HostConfig::plain() });
            }
            draft
        },
    },
    Scenario {
        name: "flood",
        about: "more handshakes than the SYN cache and the backlog hold",
        build: |rng| {
            // Clients that send first. A client that waits for the server's first data would wait
            // indefinitely if its only ACK found the accept queue full, since a cookie's handshake
            // has no state.
            let kinds = vec![Kind::PingPong, Kind::HalfClose];
            // Over a link without jitter all clients' data and all their retransmissions arrive at
            // once, and only as many of a batch as the backlog allows are accepted. A client that
            // fails seven times is rightly reset, since its cookie is too old by then. Therefore
            // few connections at a time if the queue is short.
            let (backlog, concurrency) = rng.pick(&[(4, 24), (16, 300), (1024, 300)]);
            let draft =
                Draft { short: 600, bulk: 0, concurrency, gap: Duration::from_micros(2), kinds, ..Draft::bad(rng) };
            draft.each_host(|host| (host.limits.syn_cache, host.backlog) = (8, backlog))
        },
    },
    Scenario {
        name: "plain-tcp",
        about: "no window scaling, timestamps or SACK",
        build: |rng| {
            let draft = Draft::bad(rng);
            draft.each_host(|host| {
                (host.tcp.window_scaling, host.tcp.timestamps, host.tcp.sack) = (false, false, false);
            })
        },
    },
];
