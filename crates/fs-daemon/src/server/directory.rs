//! The page that all processes read: whether the daemon lives, and whether what it has answered still holds.

use fs_shm::pages::DirectoryPage;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// It is never unmapped: the kernel tells of the control thread's end in it.
#[derive(Debug)]
pub(super) struct Directory {
    page: &'static DirectoryPage,
    memory: Arc<OwnedFd>,
    epoch: u64,
}

impl Directory {
    pub(super) fn new() -> io::Result<Self> {
        let mut epoch = [0; 8];
        rustix::rand::getrandom(&mut epoch, rustix::rand::GetRandomFlags::empty())?;
        let epoch = u64::from_le_bytes(epoch);
        let (memory, page) = DirectoryPage::create(epoch)?;
        Ok(Self { page: Box::leak(Box::new(page)), memory: Arc::new(memory), epoch })
    }

    /// What tells this daemon from the one before it.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn page(&self) -> &'static DirectoryPage {
        self.page
    }

    pub(super) fn memory(&self) -> Arc<OwnedFd> {
        self.memory.clone()
    }
}

impl Deref for Directory {
    type Target = DirectoryPage;

    fn deref(&self) -> &DirectoryPage {
        self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_daemon_has_an_epoch_of_its_own() {
        let (one, other) = (Directory::new().unwrap(), Directory::new().unwrap());
        assert_ne!(one.epoch(), other.epoch());
        let before = one.generation();
        one.bump();
        assert_ne!(one.generation(), before);
    }
}
