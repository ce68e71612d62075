//! Effects of an ACK on a connection that has had losses.

use super::*;
use crate::Framing;
use crate::config::{Secret, StackConfig};
use crate::flow::FlowKey;
use crate::frame::HeapPool;
use crate::net::tests::net_of;
use crate::seq::SeqNum;
use crate::socket::options::TcpOptions;
use crate::stats::Stats;
use crate::tcb::open::Opening;
use crate::tcb::send::buffer::Cut;
use crate::tcb::send::segmenter::Next;
use crate::time::{Duration, Instant};
use crate::wire::options::SynOptions;
use core::net::{IpAddr, SocketAddr};

pub(crate) const MSS: u32 = 1000;
const ISS: SeqNum = SeqNum(u32::MAX - 2500);

/// A connection with six segments in flight, sent a millisecond apart. The first follows a repaired
/// loss.
pub(crate) struct Lab {
    pub(crate) tcb: Tcb,
    pub(crate) store: TxStore,
    pool: HeapPool,
    config: TcpConfig,
    now: Instant,
}

fn address(last: u8, port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::from([10, 0, 0, last]), port)
}

fn lab() -> Lab {
    lab_of(6)
}

/// Like [`lab`], with `count` segments in flight.
pub(crate) fn lab_of(count: u32) -> Lab {
    let config = StackConfig::new(Secret([1; 32]));
    let mut net = net_of(Framing::Ip, &config.limits);
    let mut now = Instant::from_millis(10_000);
    let path = net.path_to(address(2, 0).ip(), None).unwrap_or_default();
    let peer =
        SynOptions { mss: Some(MSS as u16), window_scale: Some(7), sack_permitted: true, ..SynOptions::default() };
    let opening = Opening {
        key: FlowKey::new(address(1, 80), address(2, 4000)).unwrap(),
        generation: 1,
        iss: ISS,
        irs: SeqNum(7),
        peer,
        shift: 7,
        window: 60_000,
        path,
        route_epoch: net.route_epoch(),
        sample_from_us: Some(micros(now) - 5000),
        retries: 0,
        ecn: false,
        options: &TcpOptions::default(),
        is_plain: false,
    };
    let mut tcb = opening.tcb(&config.tcp, &net, now, |_| 0);
    let (mut store, mut pool) = (TxStore::new(0, None), HeapPool::new(58 + count as usize, 2048));
    let (config, mut stats) = (config.tcp, Stats::default());
    let cut = Cut { mss: MSS, summed: false, push_at_end: true, push_every: u32::MAX };
    tcb.tx.write(&mut store, &mut pool, tcb.snd.nxt(), &alloc::vec![1; (count * MSS) as usize], cut);
    tcb.loss_mut();
    while tcb.tx.next != crate::slab::NIL {
        tcb.sent(&mut store, &mut stats, &config, Next::New(tcb.tx.next), 0, micros(now), now);
        now = now + Duration::from_millis(1);
    }
    assert_eq!(tcb.snd.outstanding(), count * MSS);
    Lab { tcb, store, pool, config, now: now + Duration::from_millis(20) }
}

fn loss(tcb: &mut Tcb) -> &mut super::super::loss::Loss {
    tcb.ext_mut().loss.get_or_insert_default()
}

fn input(ack: SeqNum, now: Instant, echo: Option<u32>) -> AckInput<'static> {
    AckInput { ack, bare: true, sack: &[], ece: false, echo, now }
}

/// The backoff ends and the timeouts are forgotten.
#[test]
fn ack_ends_backoff_and_yields_sample() {
    let mut lab = lab();
    lab.tcb.backoff = 3;
    (loss(&mut lab.tcb).time_outs, loss(&mut lab.tcb).first_time_out) = (2, Some(lab.now));
    let (srtt, cwnd) = (lab.tcb.rtt.srtt_us(), lab.tcb.window.cwnd);
    let Lab { tcb, store, pool, config, now } = &mut lab;
    let mut delivered = 0;
    let input = input(ISS + 1 + 2 * MSS, *now, None);
    let fin = tcb.on_ack(store, pool, &mut Stats::default(), config, &mut delivered, input);
    assert!(!fin && delivered == 2 && tcb.snd.una() == ISS + 1 + 2 * MSS);
    assert_eq!((tcb.backoff, loss(tcb).time_outs, loss(tcb).first_time_out), (0, 0, None));
    assert!(tcb.rtt.srtt_us() > srtt && tcb.window.cwnd > cwnd, "24 ms after 5 ms");
    assert_eq!(tcb.flight(), 4 * MSS);
}

/// A soft error (RFC 5461) is the connection's final error only until data is acknowledged, on the
/// fast path and on the slow path after losses.
#[test]
fn ack_clears_soft_error() {
    for has_had_losses in [false, true] {
        let Lab { mut tcb, mut store, mut pool, config, now } = lab();
        let ext = tcb.ext_mut();
        ext.soft_error = Some(crate::error::Error::HostUnreachable);
        ext.loss = ext.loss.take().filter(|_| has_had_losses);
        let input = input(ISS + 1 + MSS, now, None);
        tcb.on_ack(&mut store, &mut pool, &mut Stats::default(), &config, &mut 0, input);
        let ext = tcb.ext_mut();
        assert_eq!((ext.soft_error, ext.loss.is_some()), (None, has_had_losses));
    }
}

/// The FIN after the data.
#[test]
fn ack_covers_our_fin() {
    let Lab { mut tcb, mut store, mut pool, config, now } = lab();
    let mut stats = Stats::default();
    tcb.tx.push_fin(&mut store, tcb.snd.nxt());
    let next = Next::New(tcb.tx.next);
    tcb.sent(&mut store, &mut stats, &config, next, 0, micros(now), now);
    for (bytes, fin) in [(6 * MSS, false), (6 * MSS + 1, true)] {
        let input = input(ISS + 1 + bytes, now + Duration::from_millis(5), None);
        assert_eq!(tcb.on_ack(&mut store, &mut pool, &mut stats, &config, &mut 0, input), fin, "{bytes} bytes");
    }
    assert_eq!(tcb.flight(), 0);
}

/// Cursors below SND.UNA are forgotten: 4 GiB later they would appear to be in the queue again,
/// with other connections' slots.
#[test]
fn forgets_passed_cursors() {
    let Lab { mut tcb, mut store, mut pool, config, now } = lab();
    let mut delivered = 0;
    let mut stats = Stats::default();
    let block = [(ISS + 1 + 2 * MSS, ISS + 1 + 3 * MSS)];
    let mut ack = |tcb: &mut Tcb, bytes: u32, sack: &[(SeqNum, SeqNum)], ms: u64| {
        let now = now + Duration::from_millis(ms);
        let input = AckInput { sack, ece: true, ..input(ISS + 1 + bytes, now, None) };
        tcb.on_ack_slow_path(&mut store, &mut pool, &mut stats, &config, &mut delivered, &input);
    };
    ack(&mut tcb, 0, &block, 0);
    assert_eq!(loss(&mut tcb).fack, Some(block[0].1));
    ack(&mut tcb, 2 * MSS - 1, &[], 1);
    assert!(loss(&mut tcb).fack.is_some() && loss(&mut tcb).blocks.iter().any(|b| b.is_known()));
    ack(&mut tcb, 3 * MSS, &[], 2);
    assert_eq!(loss(&mut tcb).fack, None);
    assert!(!loss(&mut tcb).blocks.iter().any(|b| b.is_known()));
}

/// RFC 6582's `recover` is useless below SND.UNA. Two gigabytes later it would appear to be ahead,
/// and no duplicate ACK would count.
#[test]
fn forgets_passed_recover_point() {
    for (recover, is_kept) in [(0, false), (MSS - 1, false), (MSS, true), (2 * MSS, true)] {
        let Lab { mut tcb, mut store, mut pool, config, now } = lab();
        tcb.flags.clear(Flags::SACK);
        loss(&mut tcb).recover = Some(ISS + 1 + recover);
        let input = input(ISS + 1 + MSS, now, None);
        tcb.on_ack(&mut store, &mut pool, &mut Stats::default(), &config, &mut 0, input);
        assert_eq!(loss(&mut tcb).recover.is_some(), is_kept, "{recover}");
    }
}
