//! Shrinks programs, keeping their difference: steps are removed, first in halves, then one by one;
//! then numbers are reduced.

use crate::program::{Kind, Program};

/// Returns the smallest program found for which `differs` is true, within this many tries.
pub fn shrink(program: &Program, mut tries: usize, mut differs: impl FnMut(&Program) -> bool) -> Program {
    let mut best = program.clone();
    let mut chunk = best.steps.len().div_ceil(2);
    while chunk > 0 && tries > 0 {
        let mut at = 0;
        let mut smaller = false;
        while at < best.steps.len() && tries > 0 {
            let mut candidate = best.clone();
            candidate.steps.drain(at..(at + chunk).min(best.steps.len()));
            tries -= 1;
            if differs(&candidate) {
                best = candidate;
                smaller = true;
            } else {
                at += chunk;
            }
        }
        if !(smaller && chunk == 1) {
            chunk /= 2;
        }
    }
    for index in 0..best.steps.len() {
        for (place, kind) in best.steps[index].call.kinds().iter().enumerate() {
            let now = best.steps[index].args[place];
            let simpler: &[i32] = match kind {
                Kind::Number => &[0, 1],
                Kind::Bits(_) => &[0],
                _ => &[],
            };
            for value in simpler.iter().filter(|value| **value != now) {
                if tries == 0 {
                    return best;
                }
                let mut candidate = best.clone();
                candidate.steps[index].args[place] = *value;
                tries -= 1;
                if differs(&candidate) {
                    best = candidate;
                    break;
                }
            }
        }
    }
    best
}
