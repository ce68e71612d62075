use super::*;

/// The key and the results of the verification suite in Microsoft's RSS specification.
const KEY: [u8; 40] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b,
    0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac,
    0x01, 0xfa,
];

fn flow(local: &str, remote: &str) -> FlowKey {
    FlowKey::new(local.parse().unwrap(), remote.parse().unwrap()).unwrap()
}

#[test]
fn hash_is_that_of_the_specification() {
    for (local, remote, hash) in [
        ("161.142.100.80:1766", "66.9.149.187:2794", 0x51cc_c178),
        ("65.69.140.83:4739", "199.92.111.2:14230", 0xc626_b0ea),
        ("[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x4020_7d3d),
    ] {
        assert_eq!(toeplitz(&KEY, &input(&flow(local, remote))), Some(hash), "{remote} to {local}");
    }
    assert_eq!(toeplitz(&KEY[..10], &[0; 12]), None, "the key is too short");
}

#[test]
fn symmetric_hash_is_no_plain_toeplitz() {
    let of = |function, transform, driver| {
        let mut data = EthtoolBuffer::new(ETHTOOL_GRSSH, 24 + 4 * 2 + 40);
        data.set_bytes(16, &[function, transform]);
        data.set(24 + 4, 3);
        data.set_bytes(24 + 4 * 2, &KEY);
        Rss::of(&data, 2, 40, driver)
    };
    let plain = Rss { function: HashFunction::Toeplitz, key: KEY.to_vec(), table: vec![0, 3] };
    assert_eq!((of(0, 0, "igb"), of(1, 0, "ice")), (plain.clone(), plain));
    // RXH_XFRM_SYM_XOR and RXH_XFRM_SYM_OR_XOR.
    for (transform, driver) in [(1, "ice"), (2, "mlx5_core"), (0, "mlx5_core")] {
        let rss = of(1, transform, driver);
        assert_eq!((rss.function, rss.flows().is_none()), (HashFunction::Symmetric, true), "{driver}");
    }
    assert_eq!(of(2, 0, "mlx5_core").function, HashFunction::Other(2));
}

#[test]
fn table_selects_the_queue() {
    let mut rss = Rss { function: HashFunction::Toeplitz, key: KEY.to_vec(), table: (0..128).map(|i| i % 6).collect() };
    let flow = flow("161.142.100.80:1766", "66.9.149.187:2794");
    assert_eq!(rss.queue_of(&flow), Some((0x51cc_c178 % 128) % 6));
    rss.function = HashFunction::Other(2);
    assert_eq!(rss.queue_of(&flow), None);
}

#[test]
fn prepared_look_up_equals_the_computation() {
    let table: Vec<u32> = (0..128).map(|i| i * 7 % 64).collect();
    let rss = Rss { function: HashFunction::Toeplitz, key: KEY.to_vec(), table };
    let flows = rss.flows().unwrap();
    for n in 0..2000u32 {
        let port = (n.wrapping_mul(0x9e37_79b1) >> 16) as u16 | 1;
        for (local, remote) in [("161.142.100.80", "66.9.149.187"), ("3ffe:2501:200:3::1", "3ffe:2501:200:1fff::7")] {
            let local = std::net::SocketAddr::new(local.parse().unwrap(), port);
            let remote = std::net::SocketAddr::new(remote.parse().unwrap(), n as u16 | 1);
            let flow = FlowKey::new(local, remote).unwrap();
            assert_eq!(flows.queue_of(&flow), rss.queue_of(&flow), "{flow:?}");
        }
    }
    let short = Rss { key: KEY[..20].to_vec(), ..rss.clone() }.flows().unwrap();
    assert!(short.queue_of(&flow("1.2.3.4:5", "6.7.8.9:10")).is_some());
    assert_eq!(short.queue_of(&flow("[fd00::1]:5", "[fd00::2]:10")), None, "the key is too short");
    assert!(Rss { function: HashFunction::Other(2), ..rss.clone() }.flows().is_none());
    let report = |rss: Rss| SteeringReport {
        device: "card0".into(),
        driver: "igb".into(),
        queues: QueueCounts { rx: 4, tx: 4 },
        rss: Ok(rss),
        ntuple: Ok((0, 0)),
    };
    assert!(report(rss.clone()).conclusion().contains("source ports are chosen"));
    // Some drivers report a table but no key.
    assert!(report(Rss { key: Vec::new(), ..rss }).conclusion().contains("forwards them"));
}

#[test]
#[cfg_attr(miri, ignore = "asks the kernel")]
fn loopback_is_reported() {
    let report = report("lo").unwrap();
    assert_eq!(report.queues, QueueCounts { rx: 1, tx: 1 });
    let text = report.to_string();
    assert!(text.contains("RSS: not readable") && text.contains("ntuple rules: none possible"), "{text}");
    assert!(text.contains("one queue"), "{text}");
    assert!(matches!(super::report("fsx-none"), Err(XdpError::NoSuchDevice { .. })));
}
