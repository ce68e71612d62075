//! Whose users are: a user has further numbers for namespaces of his own (subuid(5)), which count as his.

/// Ranges of numbers, and whose they are.
#[derive(Debug, Default)]
pub(crate) struct Owners(Vec<Range>);

#[derive(Clone, Copy, Debug)]
struct Range {
    first: u32,
    count: u32,
    owner: u32,
}

impl Owners {
    /// As /etc/subuid has them. `uid` knows users' names.
    pub(crate) fn read(uid: &dyn Fn(&str) -> Option<u32>) -> Self {
        std::fs::read_to_string("/etc/subuid").map_or_else(|_| Self::default(), |text| Self::parse(&text, uid))
    }

    fn parse(text: &str, uid: &dyn Fn(&str) -> Option<u32>) -> Self {
        let range = |line: &str| {
            let mut words = line.trim().split(':');
            let (owner, first, count) = (words.next()?, words.next()?, words.next()?);
            let owner = owner.parse().ok().or_else(|| uid(owner))?;
            Some(Range { first: first.parse().ok()?, count: count.parse().ok()?, owner })
        };
        Self(text.lines().filter_map(range).collect())
    }

    /// Whose this number is.
    pub(crate) fn of(&self, uid: u32) -> u32 {
        let has = |range: &&Range| uid.checked_sub(range.first).is_some_and(|at| at < range.count);
        self.0.iter().find(has).map_or(uid, |range| range.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_numbers_are_their_owners() {
        let text = "alice:100000:65536\n1001:165536:10\n\nnobody-knows:1:5\nbroken:x:5\nbroken\n";
        let owners = Owners::parse(text, &|name| (name == "alice").then_some(1000));
        for (uid, owner) in [(0, 0), (1, 1), (1000, 1000), (100_000, 1000), (165_535, 1000), (165_536, 1001)] {
            assert_eq!(owners.of(uid), owner, "{uid}");
        }
        assert_eq!((owners.of(165_545), owners.of(165_546), owners.of(u32::MAX)), (1001, 165_546, u32::MAX));
    }
}
