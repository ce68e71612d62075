//! select, as poll.

use core::time::Duration;

use rustix::io::Errno;

use super::{
    PollFd,
    descriptors::{self, GONE, NVAL},
    sys::kernel::Entries,
    wait::Deadline,
};
use crate::{
    descriptor::table,
    types::{Fd, Ours},
};

/// What makes a descriptor ready in each of the three sets, and what is asked for it (fs/select.c: POLLIN_SET,
/// POLLOUT_SET, POLLEX_SET).
const READY: [i16; 3] = [0x40 | 0x80 | 0x1 | 0x10 | 0x8 | NVAL, 0x100 | 0x200 | 0x4 | 0x8 | NVAL, 0x2 | NVAL];
const ASKED: [i16; 3] = [0x1 | 0x40, 0x4 | 0x100, 0x2];
/// Descriptors that are served without a mapping.
const FEW: usize = 64;

/// select(2). `None`: no descriptor in the sets is ours.
pub(super) fn select(
    n: usize,
    mut sets: [Option<&mut [u64]>; 3],
    timeout: Option<Duration>,
    mask: Option<u64>,
    left: &mut Option<Duration>,
) -> Ours<usize> {
    let mut count = 0;
    let mut ours = false;
    each(n, &sets, |fd, _| {
        count += 1;
        ours |= table::find(fd).is_some();
    });
    if !ours {
        return None;
    }
    let mut few = [PollFd::default(); FEW];
    let mut many = None;
    let entries: &mut [PollFd] = if count <= FEW {
        &mut few[..count]
    } else {
        match Entries::new(count) {
            Some(entries) => many.insert(entries).as_mut(),
            None => return Some(Err(Errno::NOMEM)),
        }
    };
    let mut at = 0;
    each(n, &sets, |fd, events| {
        entries[at] = PollFd { fd, events, revents: 0 };
        at += 1;
    });
    let deadline = Deadline::new(timeout);
    // The time runs from here.
    deadline.at();
    match descriptors::poll(entries, timeout, mask)? {
        Ok(_) => {}
        Err(errno) => return Some(Err(errno)),
    }
    *left = deadline.left();
    if entries.iter().any(|entry| entry.revents & (NVAL | GONE) == NVAL) {
        return Some(Err(Errno::BADF));
    }
    for set in sets.iter_mut().flatten() {
        set.fill(0);
    }
    let mut ready = 0;
    for entry in entries {
        for (set, (is_ready, asked)) in sets.iter_mut().zip(READY.into_iter().zip(ASKED)) {
            if let Some(set) = set
                && entry.events & asked != 0
                && entry.revents & is_ready != 0
            {
                set[entry.fd as usize / 64] |= 1 << (entry.fd as usize % 64);
                ready += 1;
            }
        }
    }
    Some(Ok(ready))
}

/// Every descriptor below `n` in any set, with what is asked of it as poll(2) has it.
fn each(n: usize, sets: &[Option<&mut [u64]>; 3], mut visit: impl FnMut(Fd, i16)) {
    for word in 0..n.div_ceil(64) {
        let words = [0, 1, 2].map(|i| sets[i].as_ref().and_then(|set| set.get(word)).copied().unwrap_or(0));
        let mut any = words[0] | words[1] | words[2];
        if n - word * 64 < 64 {
            any &= (1 << (n - word * 64)) - 1;
        }
        while any != 0 {
            let bit = any.trailing_zeros();
            any &= any - 1;
            let asked = (0..3).filter(|&i| words[i] >> bit & 1 != 0).map(|i| ASKED[i]).fold(0, |all, one| all | one);
            visit((word as u32 * 64 + bit) as Fd, asked);
        }
    }
}
