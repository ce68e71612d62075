use super::mirror::Device;
use super::*;

#[test]
fn loopback_is_mirrored() {
    let index = std::fs::read_to_string("/sys/class/net/lo/ifindex").unwrap().trim().parse().unwrap();
    let mirror = Mirror::read(&[index]).unwrap();
    let Device { mtu, addrs, gone, .. } = &mirror.devices[0];
    assert!(!gone);
    assert!(*mtu > 0);
    assert!(addrs.iter().any(|cidr| cidr.addr.is_loopback() && cidr.prefix == 8), "{addrs:?}");
}

#[test]
fn a_device_that_does_not_exist_is_gone() {
    let mirror = Mirror::read(&[i32::MAX as u32]).unwrap();
    assert!(mirror.devices[0].gone);
    assert!(mirror.devices[0].addrs.is_empty());
}
