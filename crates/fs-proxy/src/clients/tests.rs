use super::*;

fn clients(clients: usize) -> Rc<Clients> {
    Clients::new(Limits { clients, pooled: 2 })
}

fn config(mode: &str, more: &str) -> Config {
    let text = format!(
        "[[listener]]\naddress = '127.0.0.1:1'\nmode = '{mode}'\nupstream = 'x'\n\
         [[upstream]]\nname = 'x'\nservers = ['10.0.0.1:1', '10.0.0.2:1']\n{more}"
    );
    let mut config: Config = toml::from_str(&text).unwrap();
    config.look_up().unwrap();
    config
}

#[test]
fn everything_fits_at_once() {
    for mode in ["tcp", "http"] {
        for connections in [0, 1, 40, 200, 1000, 1 << 20] {
            for more in ["", "keepalive = { connections = 1 }", "health_check = {}"] {
                let config = config(mode, more);
                let Limits { clients, pooled } = Limits::new(&config, connections);
                assert!(clients >= 1 && pooled <= 512);
                let checks = if more.contains("health") { 2 } else { 0 };
                let all = 2 * clients + pooled + checks + LEAVING + 2;
                assert!(all <= connections.max(LEAVING + 6), "{mode} {connections} {more}: {all}");
            }
        }
    }
    // L4 keeps no connections, so their share is added to the clients'.
    assert_eq!(Limits::new(&config("tcp", ""), 1018), Limits { clients: 500, pooled: 0 });
    assert_eq!(Limits::new(&config("http", ""), 1818), Limits { clients: 644, pooled: 512 });
    assert_eq!(connections(StackKind::Kernel, 2, 1024, 0), 480);
    assert_eq!(connections(StackKind::Kernel, 2, 10, 0), 0);
    assert_eq!(connections(StackKind::Fastsock, 2, 10, 1000), 750);
}

#[test]
fn longest_idle_client_is_closed() {
    let clients = clients(3);
    let [(a, a_busy), (b, b_busy), (c, c_busy)] = [(); 3].map(|()| clients.enter());
    assert!(!clients.close_idlest(), "all are busy");
    drop((b_busy, c_busy, a_busy));
    // c gets another request, and is then idle behind the others.
    drop(c.busy());
    let under_way = b.busy();
    assert!(clients.close_idlest());
    assert_eq!([&a, &b, &c].map(|one| one.is_leaving()), [true, false, false]);
    assert!(clients.close_idlest());
    assert_eq!([&a, &b, &c].map(|one| one.is_leaving()), [true, false, true]);
    assert!(!clients.close_idlest());
    drop(under_way);
    assert!(clients.close_idlest() && b.is_leaving());
    drop((a, b, c));
    assert_eq!((clients.open.get(), clients.leaving.get()), (0, 0));
}

#[tokio::test]
async fn place_that_is_free_at_the_deadline_is_taken() {
    let clients = clients(2);
    let [(idle, idle_busy), (asks, _busy)] = [(); 2].map(|()| clients.enter());
    drop(idle_busy);
    let place = asks.another(Instant::now()).await;
    assert!(place.is_some() && idle.is_leaving());
    assert!(asks.another(Instant::now()).await.is_none());
}

#[test]
fn relay_is_idle_after_a_while_without_bytes() {
    let clients = clients(2);
    let server = "10.0.0.1:1".parse().unwrap();
    let relay = || {
        let (relay, busy) = clients.enter();
        relay.relays_to(server);
        relay.moved();
        drop(busy);
        relay
    };
    let (first, second) = (relay(), relay());
    assert!(!clients.close_idlest() && !clients.close_idlest_relay(server));
    // The silent client has only connected.
    let (silent, busy) = clients.enter();
    silent.relays_to(server);
    drop(busy);
    assert!(clients.close_idlest() && silent.is_leaving());
    for _ in 0..RELAY_IDLE {
        clients.tick();
        first.moved();
    }
    assert!(clients.close_idlest() && second.is_leaving() && !first.is_leaving());
    assert!(!clients.close_idlest());
    for _ in 0..RELAY_IDLE {
        clients.tick();
    }
    assert!(!clients.close_idlest_relay("10.0.0.2:1".parse().unwrap()));
    assert!(clients.close_idlest_relay(server) && first.is_leaving());
}

#[test]
fn ended_connections_do_not_accumulate() {
    let clients = clients(10);
    for _ in 0..10_000 {
        drop(clients.enter());
    }
    assert!(clients.idle.borrow().len() <= SLACK + 2, "{}", clients.idle.borrow().len());
    assert_eq!(clients.open.get(), 0);
}

#[test]
fn kept_connections_are_counted() {
    let clients = clients(1);
    assert_eq!([(); 3].map(|()| clients.pool()), [true, true, false]);
    clients.unpool(1);
    assert!(clients.pool() && !clients.pool());
}
