//! A table whose entries other processes know by number.

use std::collections::HashMap;
use std::collections::hash_map::Values;
use std::ops::RangeInclusive;

/// Numbers go up, so that one is not another's soon after its entry has gone; at the end of the range they begin anew, without those
/// that are in use. There are far fewer entries than numbers: a limit of the configuration bounds them.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    entries: HashMap<u32, T>,
    next: u32,
    numbers: RangeInclusive<u32>,
}

impl<T> Numbered<T> {
    pub(super) fn new(numbers: RangeInclusive<u32>) -> Self {
        Self { entries: HashMap::new(), next: *numbers.start(), numbers }
    }

    /// The number that the next entry gets.
    pub(super) fn vacant(&mut self) -> u32 {
        while !self.numbers.contains(&self.next) || self.entries.contains_key(&self.next) {
            let follows = self.numbers.contains(&self.next) && self.next != *self.numbers.end();
            self.next = if follows { self.next + 1 } else { *self.numbers.start() };
        }
        self.next
    }

    pub(super) fn insert(&mut self, entry: T) -> u32 {
        let id = self.vacant();
        self.entries.insert(id, entry);
        self.next = id.wrapping_add(1);
        id
    }

    pub(super) fn remove(&mut self, id: u32) -> Option<T> {
        self.entries.remove(&id)
    }

    pub(super) fn get(&self, id: u32) -> Option<&T> {
        self.entries.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.entries.get_mut(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.entries.iter().map(|(&id, entry)| (id, entry))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        self.entries.iter_mut().map(|(&id, entry)| (id, entry))
    }

    pub(super) fn values(&self) -> Values<'_, u32, T> {
        self.entries.values()
    }

    /// The numbers of those for which this is so.
    pub(super) fn ids_where(&self, is: impl Fn(&T) -> bool) -> Vec<u32> {
        self.iter().filter(|(_, entry)| is(entry)).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_anothers_soon() {
        let mut table = Numbered::new(2..=5);
        assert_eq!([table.insert('a'), table.insert('b')], [2, 3]);
        assert_eq!(table.remove(2), Some('a'));
        assert_eq!((table.vacant(), table.vacant(), table.insert('c')), (4, 4, 4), "not the one that has gone");
        assert_eq!((table.len(), table.get(2), table.get(4)), (2, None, Some(&'c')));
        assert_eq!(table.ids_where(|entry| *entry == 'b'), [3]);
    }

    #[test]
    fn numbers_begin_anew_without_those_in_use() {
        let mut table = Numbered::new(2..=5);
        (0..4).for_each(|entry| assert_eq!(table.insert(entry), entry + 2));
        table.remove(3);
        table.remove(5);
        assert_eq!([table.insert(8), table.insert(9)], [3, 5]);
        let mut last = Numbered::new(u32::MAX - 1..=u32::MAX);
        assert_eq!([last.insert(()), last.insert(())], [u32::MAX - 1, u32::MAX]);
        last.remove(u32::MAX - 1);
        assert_eq!(last.insert(()), u32::MAX - 1);
    }
}
