use super::*;

fn listener(at: &str, v6_only: bool, netns: Netns) -> Listener<()> {
    let at: SocketAddr = at.parse().unwrap();
    let cookie = u64::from(at.port()) + netns;
    Listener { netns, at, v6_only, backlog: 1, cookie, takes: Takes::All, holders: HashSet::new(), more: () }
}

fn found(listeners: &mut Listeners<()>, to: &str) -> Vec<u32> {
    listeners.find(1, to.parse().unwrap())
}

#[test]
fn an_address_beats_the_wildcard_and_ipv4_beats_dual_stack() {
    let mut all = Listeners::default();
    let dual = all.insert(listener("[::]:80", false, 1));
    assert_eq!(found(&mut all, "127.0.0.1:80"), [dual]);
    assert_eq!(found(&mut all, "[::1]:80"), [dual]);
    assert_eq!(found(&mut all, "[::ffff:127.0.0.1]:80"), [dual]);
    let any = all.insert(listener("0.0.0.0:80", false, 1));
    assert_eq!(found(&mut all, "127.0.0.1:80"), [any]);
    assert_eq!(found(&mut all, "[::1]:80"), [dual]);
    let exact = all.insert(listener("127.0.0.1:80", false, 1));
    assert_eq!(found(&mut all, "127.0.0.1:80"), [exact]);
    assert_eq!(found(&mut all, "[::ffff:127.0.0.1]:80"), [exact]);
    assert_eq!(found(&mut all, "127.0.0.2:80"), [any]);
    assert!(found(&mut all, "127.0.0.1:81").is_empty());
    assert!(all.find(2, "127.0.0.1:80".parse().unwrap()).is_empty(), "another namespace");
    all.remove(exact);
    all.remove(any);
    assert_eq!(found(&mut all, "127.0.0.1:80"), [dual]);
}

#[test]
fn a_mapped_address_is_an_ipv4_listener_and_v6_only_is_not() {
    let mut all = Listeners::default();
    let mapped = all.insert(listener("[::ffff:10.0.0.1]:1", false, 1));
    assert_eq!(found(&mut all, "10.0.0.1:1"), [mapped]);
    assert!(found(&mut all, "[::1]:1").is_empty());
    let only = all.insert(listener("[::]:2", true, 1));
    assert!(found(&mut all, "10.0.0.1:2").is_empty());
    assert_eq!(found(&mut all, "[::1]:2"), [only]);
}

#[test]
fn a_group_takes_turns() {
    let mut all = Listeners::default();
    let group: Vec<u32> = (0..3).map(|_| all.insert(listener("0.0.0.0:80", false, 1))).collect();
    all.insert(listener("[::]:80", true, 1));
    let firsts: Vec<u32> = (0..6).map(|_| found(&mut all, "127.0.0.1:80")[0]).collect();
    assert_eq!(firsts, [&group[..], &group[..]].concat());
    assert_eq!(found(&mut all, "127.0.0.1:80").len(), 3);
}

#[test]
fn a_group_of_which_one_is_the_kernels_is_the_kernels() {
    let mut all = Listeners::default();
    let group: Vec<u32> = (0..3).map(|_| all.insert(listener("0.0.0.0:80", false, 1))).collect();
    let exact = all.insert(listener("127.0.0.1:80", false, 1));
    all.get_mut(group[1]).unwrap().takes = Takes::Waiting;
    assert!(found(&mut all, "127.0.0.2:80").is_empty());
    assert_eq!(found(&mut all, "127.0.0.1:80"), [exact]);
    all.get_mut(group[1]).unwrap().takes = Takes::None;
    assert_eq!(found(&mut all, "127.0.0.2:80").len(), 2);
}

#[test]
fn a_placeholder_is_known_by_its_cookie() {
    let mut all = Listeners::default();
    let id = all.insert(listener("0.0.0.0:80", false, 1));
    assert_eq!(all.of_cookie(1, 80, 81), Some(id));
    assert_eq!(all.of_cookie(1, 80, 82), None);
    assert_eq!(all.of_cookie(2, 80, 81), None);
    assert_eq!(all.remove(id).unwrap().cookie, 81);
    assert_eq!(all.of_cookie(1, 80, 81), None);
    assert!(all.ports.is_empty());
}
