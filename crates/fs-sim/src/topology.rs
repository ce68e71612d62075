//! Connections between hosts: through one switch, or over routers with links between them. Routers
//! do not change packets (no hop counts, no link addresses of their own), except for CE marks. The
//! only packets that they send are ICMP messages about packets that are too big.
//!
//! A packet leaves its host by the host's own link and reaches the router that the host is attached
//! to. From there it takes the path with the fewest links to the receiver's router. Links between
//! routers are directed, so the paths there and back may differ.

use crate::link::LinkConfig;

/// A directed link from one router to another.
#[derive(Clone, Debug)]
pub struct Pipe {
    /// Router at its start.
    pub from: usize,
    /// Router at its end.
    pub to: usize,
    /// The pipe's configuration.
    pub link: LinkConfig,
}

/// Routers and the links between them.
#[derive(Clone, Debug, Default)]
pub struct Topology {
    /// The router of each host; empty: one switch connects all.
    pub attached: Vec<usize>,
    /// Links between routers.
    pub pipes: Vec<Pipe>,
}

impl Topology {
    /// Makes one switch that connects all hosts: only their own links limit them.
    pub fn switch() -> Self {
        Self::default()
    }

    /// Makes `left` hosts and then `right` hosts on either side of a pair of links.
    pub fn dumbbell(left: usize, right: usize, there: LinkConfig, back: LinkConfig) -> Self {
        let attached = std::iter::repeat_n(0, left).chain(std::iter::repeat_n(1, right)).collect();
        Self { attached, pipes: vec![Pipe { from: 0, to: 1, link: there }, Pipe { from: 1, to: 0, link: back }] }
    }

    /// Makes a row of routers with one host at each and the same link, in each direction, between
    /// neighbours: the "parking lot" in which a long flow meets a new bottleneck at every hop.
    pub fn row(routers: usize, link: &LinkConfig) -> Self {
        let pipe = |from, to| Pipe { from, to, link: link.clone() };
        let pipes = (1..routers).flat_map(|r| [pipe(r - 1, r), pipe(r, r - 1)]).collect();
        Self { attached: (0..routers).collect(), pipes }
    }

    /// Makes two hosts whose packets go one way over router 1 and come back over router 3.
    pub fn asymmetric(there: [LinkConfig; 2], back: [LinkConfig; 2]) -> Self {
        let [a, b] = there;
        let [c, d] = back;
        let pipe = |from, to, link| Pipe { from, to, link };
        Self { attached: vec![0, 2], pipes: vec![pipe(0, 1, a), pipe(1, 2, b), pipe(2, 3, c), pipe(3, 0, d)] }
    }

    pub(crate) fn routers(&self) -> usize {
        let named = self.pipes.iter().flat_map(|p| [p.from, p.to]).chain(self.attached.iter().copied());
        named.max().map_or(0, |most| most + 1)
    }

    /// Returns `table[at][to]`: the pipe from router `at` towards router `to`; `None` if there is
    /// no path (or no need).
    pub(crate) fn next_hops(&self) -> Vec<Vec<Option<usize>>> {
        let routers = self.routers();
        let mut table = vec![vec![None; routers]; routers];
        for to in 0..routers {
            // Backwards from the target, breadth first; among equals the first pipe in the list.
            let mut reached = vec![to];
            let mut seen = vec![false; routers];
            seen[to] = true;
            let mut next = 0;
            while let Some(&at) = reached.get(next) {
                next += 1;
                for (number, pipe) in self.pipes.iter().enumerate() {
                    if pipe.to == at && !seen[pipe.from] {
                        seen[pipe.from] = true;
                        table[pipe.from][to] = Some(number);
                        reached.push(pipe.from);
                    }
                }
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs_core::Duration;

    fn clean() -> LinkConfig {
        LinkConfig::clean(Duration::ZERO)
    }

    #[test]
    fn paths_are_shortest() {
        let table = Topology::row(4, &clean()).next_hops();
        // Pipes: 0→1, 1→0, 1→2, 2→1, 2→3, 3→2.
        assert_eq!(table[0], [None, Some(0), Some(0), Some(0)]);
        assert_eq!(table[2], [Some(3), Some(3), None, Some(4)]);
    }

    #[test]
    fn paths_may_be_asymmetric() {
        let table = Topology::asymmetric([clean(), clean()], [clean(), clean()]).next_hops();
        assert_eq!((table[0][2], table[1][2]), (Some(0), Some(1)));
        assert_eq!((table[2][0], table[3][0]), (Some(2), Some(3)));
    }
}
