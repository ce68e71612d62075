//! A proxy by Pingora, for the experiments' table of peers: one thread, all requests to one backend.
//!
//!   pingora-peer LISTEN:PORT BACKEND:PORT

use async_trait::async_trait;
use pingora_core::Result;
use pingora_core::server::Server;
use pingora_core::server::configuration::ServerConf;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_proxy::{ProxyHttp, Session, http_proxy_service};
use std::process::ExitCode;

struct All {
    backend: String,
}

#[async_trait]
impl ProxyHttp for All {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(&self, _session: &mut Session, _context: &mut ()) -> Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(&self.backend, false, String::new())))
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [listen, backend] = &arguments[..] else {
        eprintln!("usage: pingora-peer LISTEN:PORT BACKEND:PORT");
        return ExitCode::from(2);
    };
    // Exits at once on SIGTERM; the default is to wait for minutes.
    let configuration = ServerConf {
        threads: 1,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, configuration);
    server.bootstrap();
    let mut proxy = http_proxy_service(&server.configuration, All { backend: backend.clone() });
    proxy.add_tcp(listen);
    server.add_service(proxy);
    server.run_forever()
}
