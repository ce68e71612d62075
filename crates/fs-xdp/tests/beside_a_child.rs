//! A device beside a child of the process. Alone in this program: the child holds copies of every test's descriptors.

mod support;

use fs_xdp::{XdpConfig, XdpDevice, XdpMode};
use support::netns_unsafe::PausedChild;
use support::*;

/// A child holds copies of the parent's descriptors from fork on: for a moment when it is to exec a program, and for its
/// whole life when it is a worker.
#[test]
fn a_device_is_free_at_once_while_a_child_holds_its_descriptors() {
    if skipped_without_root("detach beside a child") {
        return;
    }
    let config = XdpConfig { mode: XdpMode::Native, ..XdpConfig::default() };
    let veth = Veth::new(1, 1500);
    let device = veth.b.enter(|| XdpDevice::attach("fsx1", config)).unwrap();
    let child = PausedChild::fork();
    drop(device);
    let again = veth.b.enter(|| XdpDevice::attach("fsx1", config));
    drop(child);
    assert!(again.is_ok(), "{}", again.unwrap_err());
}
