//! Errors name their cause and the cure.

use super::*;

#[test]
fn errors_name_their_cause() {
    if skipped_without_root("errors of AF_XDP") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let in_a = |f: &(dyn Fn() -> XdpError + Sync)| veth.a.enter(f);

    let error = in_a(&|| XdpDevice::attach("fsx-none", NATIVE).unwrap_err());
    assert!(matches!(&error, XdpError::NoSuchDevice { device } if device == "fsx-none"), "{error}");
    let error = in_a(&|| XdpDevice::attach("a-name-that-is-too-long", NATIVE).unwrap_err());
    assert!(matches!(error, XdpError::NoSuchDevice { .. }), "{error}");

    let error = in_a(&|| XdpDevice::attach("lo", NATIVE).unwrap_err());
    assert!(matches!(error, XdpError::NativeUnsupported { .. }), "{error}");
    let device = veth.a.enter(|| XdpDevice::attach("lo", XdpConfig::default()).unwrap());
    assert!(!device.is_native(), "loopback has only the generic mode");
    drop(device);

    veth.a.run("ip tuntap add fsxtun mode tun");
    let error = in_a(&|| XdpDevice::attach("fsxtun", NATIVE).unwrap_err());
    assert!(matches!(error, XdpError::NotEthernet { .. }), "{error}");

    let device = attach(&veth, 0, NATIVE);
    let error = in_a(&|| XdpDevice::attach("fsx0", NATIVE).unwrap_err());
    assert!(matches!(error, XdpError::ProgramAttached { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("of this process") && said.contains("end the process's earlier runtime"), "{said}");

    let (memory, mut pool) = umem(512, 2048);
    // In a namespace without the device, its index belongs to another device.
    let error = device.device.open_queue(0, &memory, &mut pool, SMALL).unwrap_err();
    assert!(matches!(error, XdpError::NoSuchDevice { .. }), "{error}");
    let error = device.open_queue(1, &memory, &mut pool, SMALL).unwrap_err();
    assert!(matches!(error, XdpError::NoSuchQueue { queue: 1, rx: 1, tx: 1, .. }), "{error}");
    let error = device.open_queue(0, &memory, &mut pool, QueueConfig { rx: 100, ..SMALL }).unwrap_err();
    assert!(matches!(error, XdpError::RingSize { size: 100 }), "{error}");
    let (foreign, mut few) = umem(10, 2048);
    let error = device.open_queue(0, &memory, &mut few, SMALL).unwrap_err();
    assert!(matches!(error, XdpError::ForeignPool), "{error}");
    let error = device.open_queue(0, &foreign, &mut few, SMALL).unwrap_err();
    assert!(matches!(error, XdpError::PoolTooSmall { available: 10, needed: 128 }), "{error}");

    let link = device.open_queue(0, &memory, &mut pool, SMALL).unwrap();
    let (other, mut other_pool) = umem(512, 2048);
    let error = device.open_queue(0, &other, &mut other_pool, SMALL).unwrap_err();
    assert!(matches!(error, XdpError::QueueTaken { queue: 0, .. }), "{error}");
    assert_eq!(other.in_use([&other_pool]), 0);
    Box::new(link).close(&mut pool);
    assert_eq!(memory.in_use([&pool]), 0);
}

#[test]
fn mtu_error_has_numbers() {
    if skipped_without_root("MTU errors") {
        return;
    }
    let veth = Veth::new(1, 9000);
    let config = XdpConfig { multi_buffer: MultiBuffer::Off, ..NATIVE };
    let error = veth.a.enter(|| XdpDevice::attach("fsx0", config).unwrap_err());
    assert!(matches!(error, XdpError::MtuTooLarge { mtu: 9000, max: 3506, .. }), "{error}");
    // Generic mode supports the device, but a chunk does not hold its packets.
    let device = veth.a.enter(|| XdpDevice::attach("fsx0", XdpConfig { mode: XdpMode::Generic, ..config }).unwrap());
    let (memory, mut pool) = umem(512, 4096);
    let error = veth.a.enter(|| device.open_queue(0, &memory, &mut pool, SMALL).unwrap_err());
    assert!(matches!(error, XdpError::MtuTooLarge { mtu: 9000, max: 3822, .. }), "{error}");
    assert_eq!(memory.in_use([&pool]), 0);
}

#[test]
fn missing_capability_is_named() {
    if skipped_without_root("capability errors") {
        return;
    }
    let veth = Veth::new(1, 1500);
    for (drop, name) in [
        (CapabilitySet::NET_RAW, "CAP_NET_RAW"),
        (CapabilitySet::BPF | CapabilitySet::SYS_ADMIN, "CAP_BPF"),
        (CapabilitySet::NET_ADMIN | CapabilitySet::SYS_ADMIN, "CAP_NET_ADMIN"),
    ] {
        let error = veth.a.enter(|| {
            drop_capabilities(drop);
            XdpDevice::attach("fsx0", NATIVE).unwrap_err()
        });
        assert!(
            matches!(&error, XdpError::MissingCapability { missing, .. } if missing.contains(&name)),
            "{name}: {error}"
        );
        assert!(!veth.a.try_run("ip link show fsx0 | grep -q xdp"), "a program is left behind");
    }
}

#[test]
fn memlock_error_has_numbers() {
    if skipped_without_root("RLIMIT_MEMLOCK") {
        return;
    }
    let veth = Veth::new(1, 1500);
    let device = attach(&veth, 0, NATIVE);
    let limit_kib = 1024 * 1024;
    // More than the limit of any test machine. Without a limit there is nothing to test.
    let chunks = (limit_kib / 2) as u32;
    let limit: String = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limit.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    let bytes = line.split_whitespace().nth(3).unwrap();
    let Ok(bytes) = bytes.parse::<u64>() else {
        eprintln!("skipped: RLIMIT_MEMLOCK (it is {bytes} here)");
        return;
    };
    let chunks = chunks.min((bytes / 2048 + 1024) as u32);
    let error = veth.a.enter(|| {
        drop_capabilities(CapabilitySet::IPC_LOCK);
        let (memory, mut pool) = umem(chunks, 2048);
        let error = device.device.open_queue(0, &memory, &mut pool, SMALL).unwrap_err();
        assert_eq!(memory.in_use([&pool]), 0);
        error
    });
    assert!(
        matches!(error, XdpError::MemoryLock { needed_kib, limit_kib } if needed_kib == u64::from(chunks) * 2 && limit_kib == bytes / 1024),
        "{error}"
    );
}

/// The kernel returns the locked memory of a closed queue in a work queue.
#[test]
fn registration_waits_for_that_of_a_closed_queue() {
    if skipped_without_root("RLIMIT_MEMLOCK after a close") {
        return;
    }
    let limit: String = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limit.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
    let bytes = line.split_whitespace().nth(3).unwrap();
    let Ok(bytes) = bytes.parse::<u64>() else {
        eprintln!("skipped: RLIMIT_MEMLOCK (it is {bytes} here)");
        return;
    };
    let veth = Veth::new(1, 1500);
    let device = attach(&veth, 0, NATIVE);
    veth.a.enter(|| {
        drop_capabilities(CapabilitySet::IPC_LOCK);
        // One fits, two do not.
        let (memory, mut pool) = umem((bytes / 2048 * 3 / 4) as u32, 2048);
        for round in 0..10 {
            match device.device.open_queue(0, &memory, &mut pool, SMALL) {
                Ok(link) => Box::new(link).close(&mut pool),
                Err(error) => panic!("round {round}: {error}"),
            }
        }
    });
}
