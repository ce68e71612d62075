//! Worlds with different paths: routers, bottlenecks, changes during the run, and conditions that
//! are hard for TCP.

use super::draft::{BAD_PPM, Draft, Scenario, draw_tcp};
use crate::change::{Change, HostChange, LinkAt, LinkChange};
use crate::host::HostConfig;
use crate::link::{Aqm, Burst, LinkConfig};
use crate::plan::{Kind, Sizes};
use crate::rng::Rng;
use crate::rss::Rss;
use crate::topology::Topology;
use crate::world::LongestWaits;
use fs_core::Ecn;
use fs_core::{CongestionControl, Duration};

const MS: Duration = Duration::from_millis(1);

/// Draws a queue management.
fn draw_aqm(rng: &mut Rng) -> Aqm {
    match rng.below(4) {
        0 => Aqm::DropTail,
        1 => Aqm::Mark { at: rng.range(5, 100) as usize },
        2 => Aqm::Red { min: 10, max: 100, max_ppm: 100_000 },
        _ => Aqm::CoDel { target: 5 * MS, interval: 100 * MS },
    }
}

/// Draws a bottleneck of 5 to 100 Mb/s and up to 50 ms.
fn draw_bottleneck(rng: &mut Rng) -> LinkConfig {
    let delay = Duration::from_micros(rng.log_size(50, 50_000));
    LinkConfig {
        aqm: draw_aqm(rng),
        jitter: delay * rng.below(50) as u32 / 100,
        ..LinkConfig::bottleneck(rng.log_size(5_000_000, 100_000_000), delay, rng.log_size(10, 1000) as usize)
    }
}

/// Draws a dumbbell of `each` hosts on each side of a bottleneck, with good links of their own and
/// random TCP constants.
fn dumbbell(rng: &mut Rng, each: usize) -> Draft {
    let (there, back) = (draw_bottleneck(rng), draw_bottleneck(rng));
    let mut draft = Draft::two(|| LinkConfig::clean(Duration::from_micros(20)));
    draft.hosts = (0..2 * each).map(|_| draft.hosts[0].clone()).collect();
    draft.topology = Topology::dumbbell(each, each, there, back);
    draft.each_host(|host| draw_newer_tcp(host, rng))
}

/// Like [`draw_tcp`], with everything added since its seeds were first drawn.
fn draw_newer_tcp(host: &mut HostConfig, rng: &mut Rng) {
    draw_tcp(host, rng);
    host.tcp.congestion_control = rng.pick(CongestionControl::ALL);
    host.tcp.ecn = rng.pick(&[Ecn::Off, Ecn::Passive, Ecn::Active]);
    host.tcp.rack = rng.chance(800_000);
    host.tcp.idle_restart = rng.chance(500_000);
    host.tcp.mtu_probing = true;
}

/// Returns up to `count` changes at random times within `within`.
fn at_times(
    rng: &mut Rng,
    count: usize,
    within: Duration,
    mut make: impl FnMut(&mut Rng) -> Change,
) -> Vec<(Duration, Change)> {
    (0..count).map(|_| (rng.duration(MS, within), make(rng))).collect()
}

/// Returns a change of both directions of a dumbbell's pipe pair.
fn both(at: Duration, change: LinkChange) -> [(Duration, Change); 2] {
    [0, 1].map(|pipe| (at, Change::Link(LinkAt::Pipe(pipe), change)))
}

/// Draws a path through memory: round trips of 2 to 60 µs.
fn draw_near(rng: &mut Rng) -> LinkConfig {
    let few = |rng: &mut Rng| if rng.chance(300_000) { rng.log_size(10, 3_000) as u32 } else { 0 };
    let delay = Duration::from_nanos(rng.range(1_000, 30_000));
    LinkConfig {
        rate_bps: rng.pick(&[10_000_000_000, 100_000_000_000, 0, 0]),
        loss_ppm: few(rng),
        duplicate_ppm: few(rng),
        reorder_ppm: few(rng),
        reorder_by: delay,
        ..LinkConfig::clean(delay)
    }
}

pub(super) const PATHS: &[Scenario] = &[
    Scenario {
        name: "bottleneck",
        about: "six hosts over two routers with managed queues, every congestion control",
        build: |rng| Draft { bulk: 12, short: 100, ..dumbbell(rng, 3) },
    },
    Scenario {
        name: "ecn",
        about: "ECN asked for, allowed or off, over queues that mark, with some loss",
        build: |rng| {
            let mut draft = Draft { bulk: 12, short: 100, ..dumbbell(rng, 2) };
            for pipe in &mut draft.topology.pipes {
                pipe.link.aqm = if rng.chance(500_000) { Aqm::Mark { at: 10 } } else { draw_aqm(rng) };
                pipe.link.loss_ppm = rng.below(20_000) as u32;
                pipe.link.duplicate_ppm = rng.below(20_000) as u32;
                pipe.link.reorder_ppm = rng.below(20_000) as u32;
                pipe.link.reorder_by = pipe.link.delay;
            }
            draft.each_host(|host| host.tcp.ecn = rng.pick(&[Ecn::Passive, Ecn::Active, Ecn::Active]))
        },
    },
    Scenario {
        name: "bbr",
        about: "bulk by BBR over lossy bottlenecks",
        build: |rng| {
            let mut draft = Draft { bulk: 16, short: 50, ..dumbbell(rng, 2) };
            draft.topology.pipes[0].link.loss_ppm = rng.below(50_000) as u32;
            draft.sizes.bulk_max = 4 << 20;
            draft.each_host(|host| host.tcp.congestion_control = CongestionControl::Bbr)
        },
    },
    Scenario {
        name: "bursts",
        about: "loss in bursts (Gilbert and Elliott)",
        build: |rng| {
            let mut draft = Draft::two(|| LinkConfig::draw(rng, 5_000));
            for host in &mut draft.hosts {
                host.link.burst = Some(Burst {
                    // Rare enough that other connections' packets do not keep the link bad
                    // permanently.
                    begin_ppm: rng.log_size(100, 2_000) as u32,
                    lasts: Duration::from_micros(rng.log_size(100, 200_000)),
                    loss_ppm: rng.pick(&[500_000, 1_000_000]),
                });
                draw_newer_tcp(host, rng);
            }
            draft
        },
    },
    Scenario {
        name: "reorder",
        about: "packets overtake one another a lot, and few are lost",
        build: |rng| {
            let mut draft = Draft::two(|| LinkConfig {
                reorder_ppm: rng.range(10_000, 400_000) as u32,
                loss_ppm: rng.below(10_000) as u32,
                ..LinkConfig::draw(rng, 0)
            });
            draft.bulk = 16;
            draft.each_host(|host| draw_newer_tcp(host, rng))
        },
    },
    Scenario {
        name: "spikes",
        about: "delays that jump by up to a second and back: time-outs that were wrong",
        build: |rng| {
            let mut draft = Draft { bulk: 12, short: 60, ..dumbbell(rng, 1) };
            draft.gap = Duration::from_millis(200);
            for _ in 0..30 {
                let at = rng.duration(MS, Duration::from_secs(20));
                let calm = draft.topology.pipes[0].link.delay;
                let spike = rng.duration(200 * MS, 1000 * MS);
                draft.changes.extend(both(at, LinkChange::Delay(spike)));
                draft.changes.extend(both(at + rng.duration(MS, 2 * spike), LinkChange::Delay(calm)));
            }
            draft
        },
    },
    Scenario {
        name: "flaps",
        about: "links that go down for seconds, rates that change",
        build: |rng| {
            let mut draft = Draft { bulk: 12, short: 60, ..dumbbell(rng, 2) };
            draft.gap = Duration::from_millis(500);
            for _ in 0..12 {
                let at = rng.duration(MS, Duration::from_secs(120));
                // Keepalive aborts a peer that is silent for 20 s; several flaps may coincide.
                let long = Duration::from_millis(rng.log_size(1, 4_000));
                let pipe = LinkAt::Pipe(rng.below(2) as usize);
                draft.changes.push((at, Change::Link(pipe, LinkChange::Up(false))));
                draft.changes.push((at + long, Change::Link(pipe, LinkChange::Up(true))));
            }
            draft.changes.extend(at_times(rng, 6, Duration::from_secs(60), |rng| {
                Change::Link(LinkAt::Pipe(0), LinkChange::Rate(rng.log_size(1_000_000, 100_000_000)))
            }));
            // Finally everything works.
            draft.changes.extend(both(Duration::from_secs(200), LinkChange::Up(true)));
            draft
        },
    },
    Scenario {
        name: "path-mtu",
        about: "the path's MTU changes; routers say so",
        build: |rng| {
            let mut draft = Draft { bulk: 12, short: 60, ..dumbbell(rng, 2) };
            draft.sizes.bulk_min = 200 << 10;
            draft.gap = Duration::from_millis(100);
            for pipe in 0..2 {
                draft.changes.extend(at_times(rng, 5, Duration::from_secs(10), |rng| {
                    Change::Link(LinkAt::Pipe(pipe), LinkChange::Mtu(rng.range(1280, 1500) as u16, false))
                }));
            }
            draft
        },
    },
    Scenario {
        name: "black-hole",
        about: "large packets vanish without a word for a while, or for good",
        build: |rng| {
            let mut draft = Draft { bulk: 8, short: 40, ..dumbbell(rng, 1) };
            draft.sizes.bulk_min = 200 << 10;
            draft.gap = Duration::from_millis(100);
            for pipe in 0..2 {
                let at = rng.duration(Duration::ZERO, Duration::from_secs(2));
                let mtu = rng.pick(&[1280, 1300, 1400, 1492]);
                draft.changes.push((at, Change::Link(LinkAt::Pipe(pipe), LinkChange::Mtu(mtu, true))));
                if rng.chance(300_000) {
                    let end = at + rng.duration(Duration::from_secs(1), Duration::from_secs(30));
                    draft.changes.push((end, Change::Link(LinkAt::Pipe(pipe), LinkChange::Mtu(1500, false))));
                }
            }
            draft
        },
    },
    Scenario {
        name: "clocks",
        about: "clocks that jump and stand still, hosts that are paused",
        build: |rng| {
            let mut draft = Draft::bad(rng).each_host(|host| draw_newer_tcp(host, rng));
            draft.gap = Duration::from_millis(200);
            draft.changes = at_times(rng, 30, Duration::from_secs(30), |rng| {
                let long = Duration::from_millis(rng.log_size(1, 30_000));
                let change = match rng.below(3) {
                    0 => HostChange::ClockJump(long),
                    1 => HostChange::ClockStall(long / 10),
                    _ => HostChange::Pause(long / 4),
                };
                Change::Host(rng.below(2) as usize, change)
            });
            draft
        },
    },
    Scenario {
        name: "squeeze",
        about: "memory that comes and goes",
        build: |rng| {
            let mut draft = Draft { bulk: 16, short: 100, ..Draft::bad(rng) };
            draft.gap = Duration::from_millis(50);
            draft.changes = at_times(rng, 40, Duration::from_secs(10), |rng| {
                let long = Duration::from_millis(rng.log_size(1, 2000));
                Change::Host(rng.below(2) as usize, HostChange::Squeeze(rng.range(100, 4000) as usize, long))
            });
            draft.each_host(|host| {
                draw_newer_tcp(host, rng);
                host.frames = 3000;
            })
        },
    },
    Scenario {
        name: "long-fat",
        about: "100 to 500 ms of round trip at 10 to 200 Mb/s: windows that have to grow",
        build: |rng| {
            let link = |rng: &mut Rng| {
                let rate = rng.log_size(10_000_000, 200_000_000);
                let delay = rng.duration(50 * MS, 250 * MS);
                LinkConfig { loss_ppm: rng.below(300) as u32, ..LinkConfig::bottleneck(rate, delay, 1000) }
            };
            let mut draft = Draft { bulk: 4, short: 20, ..dumbbell(rng, 1) };
            draft.topology = Topology::dumbbell(1, 1, link(rng), link(rng));
            draft.sizes.bulk_min = 1 << 20;
            draft.sizes.bulk_max = 16 << 20;
            draft
        },
    },
    Scenario {
        name: "asymmetric",
        about: "other ways back than there, thin ones, with their own loss and order",
        build: |rng| {
            let there = [draw_bottleneck(rng), draw_bottleneck(rng)];
            let back = [0, 1].map(|_| LinkConfig {
                loss_ppm: rng.below(50_000) as u32,
                reorder_ppm: rng.below(50_000) as u32,
                reorder_by: 5 * MS,
                ..LinkConfig::bottleneck(rng.log_size(500_000, 10_000_000), 10 * MS, rng.log_size(10, 200) as usize)
            });
            let draft = Draft { bulk: 8, short: 60, ..dumbbell(rng, 1) };
            Draft { topology: Topology::asymmetric(there, back), ..draft }
        },
    },
    Scenario {
        name: "hops",
        about: "five hosts at a row of five routers",
        build: |rng| {
            let link = LinkConfig { loss_ppm: rng.below(20_000) as u32, ..draw_bottleneck(rng) };
            let mut draft = Draft { bulk: 10, short: 60, ..dumbbell(rng, 3) };
            draft.hosts.truncate(5);
            Draft { topology: Topology::row(5, &link), ..draft }
        },
    },
    Scenario {
        name: "sleepy",
        about: "requests after silences of up to two minutes, with and without keepalive",
        build: |rng| {
            let kinds = vec![Kind::Sleepy];
            let draft = Draft { bulk: 0, short: 60, kinds, ..Draft::two(|| LinkConfig::draw(rng, BAD_PPM)) };
            draft.each_host(|host| draw_newer_tcp(host, rng))
        },
    },
    Scenario {
        name: "syn-loss",
        about: "8 % of the packets are lost, on the way of short connections, with a full SYN cache",
        build: |rng| {
            let bad = |rng: &mut Rng| LinkConfig { loss_ppm: 80_000, ..LinkConfig::draw(rng, 10_000) };
            let kinds = vec![Kind::PingPong, Kind::HalfClose, Kind::ClientCloses];
            let mut draft = Draft { bulk: 0, short: 200, kinds, ..Draft::two(|| bad(rng)) };
            draft.sizes.short_max = 1000;
            // A cookie's client whose only ACK was lost, and which waits for the server's data,
            // only has its probes.
            draft.keepalive = true;
            draft.each_host(|host| {
                draw_newer_tcp(host, rng);
                host.limits.syn_cache = rng.pick(&[8, 16 << 10]);
            })
        },
    },
    Scenario {
        name: "fast-open",
        about: "data in SYNs by TCP Fast Open, over links with loss",
        build: |rng| {
            // No duplication: data of a duplicated SYN may be delivered twice (RFC 7413 6.1).
            let link = |rng: &mut Rng| LinkConfig { duplicate_ppm: 0, ..LinkConfig::draw(rng, BAD_PPM) };
            let kinds = vec![Kind::PingPong, Kind::HalfClose, Kind::ClientCloses, Kind::BothShut];
            let draft = Draft { bulk: 4, short: 200, kinds, ..Draft::two(|| link(rng)) };
            draft.each_host(|host| {
                draw_newer_tcp(host, rng);
                host.fast_open = true;
            })
        },
    },
    Scenario {
        name: "urgent",
        about: "urgent bytes (SO_OOBINLINE) and ends of records (MSG_EOR) in between, over bad links",
        build: |rng| {
            let mut draft = Draft { bulk: 8, short: 100, ..Draft::two(|| LinkConfig::draw(rng, BAD_PPM)) };
            draft.kinds.push(Kind::Sleepy);
            draft.oob_inline = true;
            draft.each_host(|host| draw_newer_tcp(host, rng))
        },
    },
    Scenario {
        name: "user-timeout",
        about: "links that go down for much less than TCP_USER_TIMEOUT: no connection is aborted",
        build: |rng| {
            let mut draft = Draft { bulk: 12, short: 60, ..dumbbell(rng, 2) };
            draft.gap = Duration::from_millis(300);
            for flap in 0..6 {
                // One after the other, with time for all connections to recover.
                let at = Duration::from_secs(30) * flap + rng.duration(MS, Duration::from_secs(2));
                // Retransmission backs off by the outage's length; a few more consecutive losses
                // must fit into the timeout.
                let long = Duration::from_millis(rng.log_size(10, 3_000));
                draft.changes.extend(both(at, LinkChange::Up(false)));
                draft.changes.extend(both(at + long, LinkChange::Up(true)));
            }
            draft.user_timeout = Some(Duration::from_secs(60));
            draft.each_host(|host| draw_newer_tcp(host, rng))
        },
    },
    Scenario {
        name: "acceptors",
        about: "several cores, the first of which listens and does not by turns, while many connect",
        build: |rng| {
            let draft = Draft { short: 600, bulk: 4, concurrency: 100, ..Draft::two(|| LinkConfig::draw(rng, 10_000)) };
            let mut draft = draft.each_host(|host| {
                draw_newer_tcp(host, rng);
                host.cores = rng.range(2, 4) as u16;
                host.rss = rng.pick(&[Rss::Flow, Rss::Random]);
                host.frames = 4096;
            });
            draft.changes = at_times(rng, 200, Duration::from_secs(1), |rng| {
                let long = Duration::from_millis(rng.log_size(1, 20));
                Change::Host(rng.below(2) as usize, HostChange::Unlisten(long))
            });
            draft
        },
    },
    Scenario {
        name: "timestamps-reuse",
        about: "a handful of ports and a minute of TIME-WAIT: address pairs come back by their timestamps (RFC 6191), some on another core",
        build: |rng| {
            let draft = Draft { short: 400, bulk: 0, concurrency: 8, v6: false, ..Draft::bad(rng) };
            draft.each_host(|host| {
                draw_newer_tcp(host, rng);
                host.ephemeral_ports = (50_000, 50_015);
                (host.cores, host.rss) = (rng.pick(&[1, 2]), Rss::Random);
                (host.tcp.timestamps, host.tcp.time_wait) = (true, Duration::from_secs(60));
            })
        },
    },
    Scenario {
        name: "near-readers",
        about: "slow readers with much unread at the other end of a path of microseconds: little is in flight to them (decision 0044)",
        build: |rng| {
            let link = draw_near(rng);
            let mut draft = Draft { short: 4, bulk: 4, concurrency: 2, ..Draft::two(|| link.clone()) };
            draft.kinds = vec![Kind::HalfClose, Kind::BothShut, Kind::ServerFirst];
            draft.kinds.extend([Kind::ClientAborts, Kind::ServerAborts, Kind::UnreadClose]);
            draft.sizes = Sizes { short_min: 64 << 10, short_max: 8 << 20, bulk_min: 1 << 20, bulk_max: 8 << 20 };
            draft.slow_readers = true;
            // Two round trips and 2 ms until a tail loss probe, whose timer ticks in 1.05 ms.
            let sender = 8 * MS;
            let mut reader = (link.loss_ppm == 0).then_some(sender);
            if rng.chance(300_000) {
                // A longer path from some time on, and perhaps the short one again.
                let at = Duration::from_micros(rng.log_size(2_000, 4_000_000));
                let far = Duration::from_micros(rng.log_size(100, 20_000));
                reader = reader.map(|near| near + 6 * far);
                let mut change = |at, delay| {
                    let change = |host| (at, Change::Link(LinkAt::Host(host), LinkChange::Delay(delay)));
                    draft.changes.extend([0, 1].map(change));
                };
                change(at, far);
                if rng.chance(500_000) {
                    change(at + Duration::from_micros(rng.log_size(1_000, 4_000_000)), link.delay);
                }
            }
            draft.longest_waits = Some(LongestWaits { sender, reader });
            draft.each_host(|host| {
                draw_newer_tcp(host, rng);
                (host.tcp.window_scaling, host.tcp.tail_loss_probe) = (true, rng.chance(900_000));
                host.tcp.receive_buffer_max = rng.log_size(512 << 10, 6 << 20) as u32;
                host.latency = Duration::from_nanos(rng.log_size(100, 5_000));
                host.late_acks = rng.chance(400_000);
                // Two connections may fill their buffers without a lack of frames.
                (host.frames, host.limits.receive_pool_percent) = (40 << 10, 50);
            })
        },
    },
];
