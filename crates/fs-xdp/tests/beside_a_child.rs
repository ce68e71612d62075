//! A device whose process has a child. The only test of this program, because the child has copies
//! of all descriptors.

mod support;

use fs_xdp::{XdpConfig, XdpDevice, XdpMode};
use support::netns_unsafe::PausedChild;
use support::*;

/// A child has copies of the parent's descriptors from fork on: for a moment if it then executes a
/// program, or for its whole life if it is a worker.
#[test]
fn device_is_free_at_once_while_a_child_has_its_descriptors() {
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
