use super::*;
use crate::clients::Limits;
use crate::config::Config;

pub(super) fn upstream_of(text: &str) -> (Rc<Upstream>, Arc<Stats>) {
    upstream_after(text, None)
}

/// As after a reload, with the counters `before` it.
fn upstream_after(text: &str, before: Option<&Stats>) -> (Rc<Upstream>, Arc<Stats>) {
    let mut config: Config = toml::from_str(&format!("[[upstream]]\nname = 'x'\nhealth_check = {{}}\n{text}")).unwrap();
    config.look_up().unwrap();
    let stats = Arc::new(Stats::new(&config, 1, before));
    let clients = Clients::new(Limits { clients: 1, pooled: 1 });
    let upstream = Upstream::new(&config.upstreams[0], &clients, &Rc::default(), &stats, StackKind::Kernel, (0, 0));
    (Rc::new(upstream.unwrap()), stats)
}

fn upstream(balance: &str) -> (Rc<Upstream>, Arc<Stats>) {
    upstream_of(&format!("balance = '{balance}'\nservers = ['10.0.0.1:1', '10.0.0.2:1', '10.0.0.3:1']"))
}

fn used(upstream: &Rc<Upstream>, tried: &[usize], key: Option<u64>) -> Option<Use> {
    match upstream.pick(tried, key) {
        Pick::Used(used) => Some(used),
        Pick::Busy | Pick::Nobody => None,
    }
}

/// Returns how often each server is picked.
fn picks(upstream: &Rc<Upstream>, times: u64) -> Vec<u64> {
    let mut counts = vec![0; upstream.servers.len()];
    for key in 0..times {
        let key = upstream.hash.is_some().then_some(key);
        counts[used(upstream, &[], key).unwrap().index] += 1;
    }
    counts
}

#[test]
fn round_robin_skips_unhealthy_servers() {
    let (upstream, stats) = upstream("round_robin");
    let next = |tried: &[usize]| used(&upstream, tried, None).map(|used| used.index);
    assert_eq!([(); 4].map(|()| next(&[])), [Some(0), Some(1), Some(2), Some(0)]);
    stats.servers[0][1].set_healthy(false);
    assert_eq!([(); 3].map(|()| next(&[])), [Some(2), Some(0), Some(2)]);
    assert_eq!((next(&[0]), next(&[0, 2])), (Some(2), None));
}

#[test]
fn least_connections_follows_open_connections() {
    let (upstream, _) = upstream("least_connections");
    let [a, b, c] = [(); 3].map(|()| used(&upstream, &[], None).unwrap());
    assert_eq!([a.index, b.index, c.index], [0, 1, 2]);
    drop(b);
    let again = used(&upstream, &[], None).unwrap();
    assert_eq!(again.index, 1);
    drop((a, again));
    assert_ne!(used(&upstream, &[], None).unwrap().index, c.index);
    assert_eq!(upstream.servers[2].stats().active.value(), 1);
}

/// Connections that a reload leaves open are the server's load too.
#[test]
fn least_connections_counts_those_of_the_configuration_before() {
    let of = |servers: &str, before| {
        upstream_after(&format!("balance = 'least_connections'\nservers = [{servers}]"), before)
    };
    let (old, before) = of("'10.0.0.1:1', { address = '10.0.0.2:1', weight = 0 }", None);
    let open = [(); 2].map(|()| used(&old, &[], None).unwrap());
    for servers in ["'10.0.0.1:1', '10.0.0.2:1'", "{ address = '10.0.0.1:1', weight = 2 }, '10.0.0.2:1'"] {
        let (new, _) = of(servers, Some(&before));
        assert_eq!(used(&new, &[], None).unwrap().index, 1, "{servers}");
    }
    drop(open);
    assert_eq!(old.servers[0].stats().active.value(), 0);
}

#[test]
fn unreachable_server_comes_last() {
    let (upstream, before) = upstream("round_robin");
    upstream.servers[0].failed();
    assert_eq!(used(&upstream, &[], None).unwrap().index, 1);
    assert_eq!(used(&upstream, &[1, 2], None).unwrap().index, 0);
    // After a reload too.
    let (upstream, _) = upstream_after("servers = ['10.0.0.1:1', '10.0.0.2:1']", Some(&before));
    assert_eq!(used(&upstream, &[], None).unwrap().index, 1);
    upstream.servers[0].answered();
    assert_eq!(picks(&upstream, 2), [1, 1]);
}

const WEIGHTED: &str = "servers = [{ address = '10.0.0.1:1', weight = 5 }, '10.0.0.2:1', { address = '10.0.0.3:1', \
                        weight = 0 }, { address = '10.0.0.4:1', weight = 2, backup = true }]";

#[test]
fn weights_are_kept_and_turns_are_spread() {
    let (upstream, stats) = upstream_of(WEIGHTED);
    let turns: Vec<usize> = (0..6).map(|_| used(&upstream, &[], None).unwrap().index).collect();
    assert_eq!(turns, [0, 0, 1, 0, 0, 0]);
    assert_eq!(picks(&upstream, 600), [500, 100, 0, 0]);
    // A backup server is used if no other can be. One without weight never is.
    stats.servers[0][0].set_healthy(false);
    stats.servers[0][1].set_healthy(false);
    assert_eq!(picks(&upstream, 10), [0, 0, 0, 10]);
    stats.servers[0][3].set_healthy(false);
    assert!(used(&upstream, &[], None).is_none());
}

#[test]
fn least_connections_has_weights() {
    let (upstream, _) = upstream_of(&format!("balance = 'least_connections'\n{WEIGHTED}"));
    let open: Vec<Use> = (0..12).map(|_| used(&upstream, &[], None).unwrap()).collect();
    let of = |index| open.iter().filter(|used| used.index == index).count();
    assert_eq!([of(0), of(1), of(2), of(3)], [10, 2, 0, 0]);
}

/// A key keeps its server while that is usable, and only its keys move if it is not.
#[test]
fn hash_moves_only_the_keys_of_a_lost_server() {
    let (upstream, stats) = upstream("hash");
    let all = || (0..3000).map(|key| used(&upstream, &[], Some(key)).unwrap().index).collect::<Vec<_>>();
    let before = all();
    for index in 0..3 {
        let share = before.iter().filter(|picked| **picked == index).count();
        assert!((900..1100).contains(&share), "{index}: {share}");
    }
    stats.servers[0][1].set_healthy(false);
    for (before, after) in before.iter().zip(all()) {
        assert!(after != 1 && (*before == 1 || *before == after));
    }
    let (weighted, _) = upstream_of(&format!("balance = 'hash'\n{WEIGHTED}"));
    let counts = picks(&weighted, 6000);
    assert!((4850..5150).contains(&counts[0]) && counts[2..] == [0, 0], "{counts:?}");
}

#[test]
fn server_that_recovers_gets_its_share_slowly() {
    let (upstream, stats) = upstream_of("slow_start = '60m'\nservers = ['10.0.0.1:1', '10.0.0.2:1']");
    assert_eq!(picks(&upstream, 100), [50, 50]);
    stats.servers[0][0].set_healthy(false);
    stats.servers[0][0].set_healthy(true);
    let counts = picks(&upstream, 100);
    assert!(counts[0] <= 2, "{counts:?}");
    let (quick, stats) = upstream_of("slow_start = '1ms'\nservers = ['10.0.0.1:1', '10.0.0.2:1']");
    stats.servers[0][0].set_healthy(false);
    stats.servers[0][0].set_healthy(true);
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(picks(&quick, 100), [50, 50]);
}

/// Weights of the admin socket hold for all cores at once, and back.
#[test]
fn weights_change_at_run_time() {
    let (upstream, stats) = upstream("round_robin");
    assert_eq!(picks(&upstream, 30), [10, 10, 10]);
    stats.set_weight((0, 1), Some(0));
    assert_eq!(picks(&upstream, 30), [15, 0, 15]);
    stats.set_weight((0, 1), Some(4));
    assert_eq!(picks(&upstream, 60), [10, 40, 10]);
    stats.set_weight((0, 1), None);
    assert_eq!(picks(&upstream, 30), [10, 10, 10]);
}

/// Another thread can set a weight to 0 after a server was found usable.
#[test]
fn weight_that_becomes_0_during_a_choice_divides_nothing() {
    for balance in ["round_robin", "least_connections", "hash"] {
        let (upstream, stats) = upstream(balance);
        for server in 0..3 {
            stats.set_weight((0, server), Some(0));
        }
        assert!(upstream.choose(|_| true, Some(7)).is_some(), "{balance}");
    }
}
