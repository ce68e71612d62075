//! SIGHUP again and again while clients ask. Over loopback on kernel sockets; `af_xdp` repeats it on
//! fastsock. `FS_PROXY_RELOADS` sets how often.

mod common;
#[path = "common/load.rs"]
mod load;

use common::*;
use fs_stacks::testing::{Signal, eventually};
use load::{Client, load, times};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[test]
fn reloads_lose_no_request() {
    let servers = [(); 2].map(|()| http_backend(|_| ok("short")));
    let text = |number: usize| {
        let listener =
            |mode| format!("[[listener]]\naddress = \"{}:0\"\nmode = \"{mode}\"\nupstream = \"u\"\n", proxy_ip());
        let server = servers[number % 2];
        format!("{}{}[[upstream]]\nname = \"u\"\nservers = [\"{server}\"]\n", listener("http"), listener("tcp"))
    };
    let config = write_config(&text(0));
    let proxy = Proxy { program: start_program(&config), config };
    let (http, tcp) = (proxy.program.addrs[0], proxy.program.addrs[1]);
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let reloads = times("FS_PROXY_RELOADS", 10);
    std::thread::scope(|scope| {
        let clients = [Client::Kept, Client::Kept, Client::New, Client::New, Client::Tcp];
        let clients = clients.map(|client| {
            let to = if matches!(client, Client::Tcp) { tcp } else { http };
            let (stop, count) = (&stop, &count);
            scope.spawn(move || load(client, to, stop, count))
        });
        for number in 1..=reloads {
            std::fs::write(&proxy.config, text(number)).unwrap();
            proxy.program.signal(Signal::HangUp);
            let (before, mut is_used) = (count.load(Ordering::SeqCst), false);
            eventually("it is in use, and requests are answered", || {
                assert!(!clients.iter().any(|client| client.is_finished()), "a client has failed");
                is_used = is_used || proxy.program.log().matches("is in use;").count() == number;
                is_used && count.load(Ordering::SeqCst) > before + 20
            });
        }
        stop.store(true, Ordering::SeqCst);
    });
    println!("{reloads} reloads, {} requests", count.load(Ordering::SeqCst));
}
