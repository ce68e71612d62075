//! Generates programs of event loops: servers and clients in several processes, with many
//! connections in edge-triggered sets. Each step has one result on the kernel: all bytes came back.

use crate::generate::Maker;
use crate::program::{ACTORS, Call, Mode};
use crate::values::*;

const LISTENER: i32 = 0;
/// Connections of a program: the listener's queue takes all of them.
const CONNECTIONS: usize = 120;

impl Maker {
    pub(crate) fn loops(&mut self) -> Mode {
        self.blocking = true;
        self.several = true;
        let (host, family) = if self.random.percent(15) { (4, libc::AF_INET6) } else { (1, libc::AF_INET) };
        // Half of the programs promote as programs of users do, and not at the first byte.
        if self.random.percent(50) {
            let calls = self.random.weighted(&[(6, 4), (1, 1), (1, 16)]);
            self.push(Call::Calls, &[calls]);
            self.push(Call::Exec, &[]);
        }
        self.push(Call::Socket, &[LISTENER, family, 0]);
        self.push(Call::Bind, &[LISTENER, host, 0]);
        self.push(Call::Listen, &[LISTENER, 128]);

        let servers = 1 + usize::from(self.random.percent(20));
        let most = if self.random.percent(60) { 1 } else { ACTORS - servers };
        let clients = 1 + self.random.below(most);
        let actors = servers + clients;
        // Forks first: threads of a process begin after its forks.
        let threads = if self.random.percent(20) { self.random.below(actors) } else { 0 };
        for actor in 1..actors {
            let call = if actor < actors - threads { Call::Fork } else { Call::Thread };
            self.push(call, &[actor as i32]);
        }
        let most = self.random.one(&[1, 4, 16, 50, 50]).min(CONNECTIONS / clients);
        let dials: Vec<i32> = (0..clients).map(|_| 1 + self.random.below(most) as i32).collect();
        let all: i32 = dials.iter().sum();
        let half = if servers == 2 { self.random.below(all as usize + 1) as i32 } else { 0 };
        // Which actors serve: the parent, or a child.
        let first = self.random.below(actors);
        for place in 0..actors {
            self.actor = ((first + place) % actors) as u8;
            let how = self.how();
            if place < servers {
                let connections = if place == 0 { all - half } else { half };
                self.push(Call::ServeLoop, &[LISTENER, connections, how]);
            } else {
                // At most about 1 MB of all.
                let length = self.random.weighted(&[(6, 1), (6, 64), (3, 500), (2, 5000), (1, 40_000)]);
                let connections = dials[place - servers];
                let most = (1_000_000 / (length * connections)).clamp(1, 400);
                let messages = self.random.one(&[5, 20, 100, 400]).min(most);
                let ahead = self.random.weighted(&[(6, 1), (2, 2), (2, 5), (1, 400)]);
                self.push(Call::DialLoop, &[host, 0, connections, messages, length, ahead, how]);
            }
        }
        Mode::Racing
    }

    fn how(&mut self) -> i32 {
        let mut how = 0;
        for (percent, flag) in [
            (15, LOOP_LEVEL),
            (60, LOOP_OUT),
            (50, LOOP_HANG_UP),
            (10, LOOP_ONCE),
            (50, LOOP_SHORT),
            (10, LOOP_FEW),
            (10, LOOP_PART),
            (10, LOOP_SMALL),
            (30, LOOP_DELETE),
            (20, LOOP_CORK),
        ] {
            if self.random.percent(percent) {
                how |= flag;
            }
        }
        how |= self.random.weighted(&[(8, 0), (1, LOOP_SPIN), (2, LOOP_TIMED)]);
        // Level-triggered, the poller would report the same event until the other thread has read.
        let may_share = how & (LOOP_LEVEL | LOOP_ONCE) != LOOP_LEVEL;
        how | if may_share { self.random.weighted(&[(5, 0), (2, LOOP_WORKER), (2, LOOP_TWO)]) } else { 0 }
    }
}
