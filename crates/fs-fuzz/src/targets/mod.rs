//! The targets, one file each.

pub(crate) mod engine;
pub(crate) mod options;
pub(crate) mod pairs;
pub(crate) mod parse;
pub(crate) mod reassembly;
pub(crate) mod scoreboard;
pub(crate) mod two_ended;

use crate::input::Input;
use fs_core::{CongestionControl, Duration, TcpConfig};
use fs_core::{Ecn, FastOpen};

/// Makes a configuration from two bytes: values that an operator may set, including the extremes.
fn tcp_config(input: &mut Input<'_>) -> TcpConfig {
    let bits = input.byte();
    let on = |bit: u8| bits & (1 << bit) == 0;
    TcpConfig {
        timestamps: on(0),
        sack: on(1),
        window_scaling: on(2),
        rack: on(3),
        idle_restart: on(4),
        mtu_probing: on(5),
        invalid_ack_interval: if on(6) { Duration::from_millis(500) } else { Duration::ZERO },
        congestion_control: input.pick(CongestionControl::ALL),
        ecn: input.pick(&[Ecn::Passive, Ecn::Active, Ecn::Off]),
        receive_buffer_initial: input.pick(&[64 << 10, 4096, 500, 20_000]),
        receive_buffer_max: 256 << 10,
        fast_open: FastOpen { client: true, server: true, ..FastOpen::OFF },
        send_buffer: input.pick(&[64 << 10, 8192, 1 << 20]),
        ..TcpConfig::default()
    }
}

/// Returns a byte of a stream, which depends on its position.
fn pattern(at: u32, stream: u8) -> u8 {
    let mixed = at.wrapping_mul(0x9e37_79b1) ^ u32::from(stream).wrapping_mul(0x85eb_ca6b);
    (mixed.wrapping_mul(0xc2b2_ae35) >> 24) as u8
}

/// Writes `len` bytes of a stream from `at` on.
fn fill(at: u32, stream: u8, len: usize, out: &mut Vec<u8>) {
    out.clear();
    out.extend((0..len as u32).map(|i| pattern(at.wrapping_add(i), stream)));
}
