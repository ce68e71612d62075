//! One core: its listeners, and the configuration that they serve.

use crate::clients::{Clients, Limits};
use crate::handover::{Inherited, Role, Starting};
use crate::http1::per_core::Core as LeanCore;
use crate::reload::{Generation, Lent, Order, Orders};
use crate::site::Site;
use crate::socket::{Socket, Target};
use crate::{health, serve, service};
use anyhow::Context;
use fs_stacks::{Core, Listener, LocalStop, StackKind, cores};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Time for handshakes that have begun when another process takes over: a lost SYN-ACK is sent again
/// after 1 s. Shorter: such a client is reset. Longer: new connections stay with the kernel for
/// longer, since the device is this process's.
const HANDSHAKES: Duration = Duration::from_secs(3);
/// Limit for the last bytes of connections that are closed. Shorter: slow clients lose them. Longer: a
/// client that takes none keeps the process for longer.
const LAST_BYTES: Duration = Duration::from_secs(60);

/// Runs the proxy on one core, until the stop and the end of its open connections.
///
/// `budget` is its limit of connections of all kinds.
pub(crate) async fn run(
    core: Core,
    budget: usize,
    first: Arc<Generation>,
    mut orders: Orders,
    inherited: Arc<Inherited>,
    successor: Starting,
) -> anyhow::Result<()> {
    let (failed, mut failure) = mpsc::unbounded_channel();
    let clients = Clients::new(Limits::new(&first.config, budget));
    let lean = Rc::new(LeanCore::default());
    tokio::task::spawn_local(lean.clock.clone().run());
    let mut worker = Worker {
        core,
        budget,
        clients,
        lean,
        site: None,
        sockets: Vec::new(),
        retired: Vec::new(),
        failed,
        leaves_at: None,
    };
    let prepared = worker.prepare(&first, &inherited).await?;
    drop(first);
    worker.switch(prepared);
    worker.announce(&inherited, &orders)?;
    let mut pending = None;
    let result = loop {
        tokio::select! {
            () = worker.core.stop_requested() => {
                if worker.core.index == 0 && !worker.sockets.is_empty() && worker.leaves_at.is_none() {
                    service::stopping();
                }
                break Ok(());
            }
            () = worker.finished() => break Ok(()),
            () = worker.handshakes_ended() => worker.leave(),
            Some(error) = failure.recv() => break Err(error),
            order = orders.next() => match order {
                Order::Stay => {}
                Order::Prepare(next) => match worker.prepare(&next, &Inherited::default()).await {
                    Ok(prepared) => {
                        pending = Some(prepared);
                        orders.answer(Ok(()));
                    }
                    Err(error) => orders.answer(Err(error)),
                },
                Order::Switch => {
                    if let Some(prepared) = pending.take() {
                        worker.switch(prepared);
                    }
                    orders.answer(Ok(()));
                }
                Order::Lend(sockets) => orders.answer(worker.lend(&sockets)),
                Order::Leave => {
                    worker.begin_to_leave();
                    orders.answer(Ok(()));
                }
                Order::Cancel => {
                    pending = None;
                    orders.answer(Ok(()));
                }
            },
        }
    };
    // Before the drain, which takes as long as connections are open.
    successor.end();
    worker.drain().await;
    result
}

struct Worker {
    core: Core,
    budget: usize,
    clients: Rc<Clients>,
    lean: Rc<LeanCore>,
    /// `None` only before the first configuration.
    site: Option<Rc<Site>>,
    sockets: Vec<Rc<Socket>>,
    /// Sites of earlier configurations. They live as long as their connections.
    retired: Vec<Weak<Site>>,
    failed: mpsc::UnboundedSender<anyhow::Error>,
    /// Another process accepts. This one still accepts handshakes until then.
    leaves_at: Option<Instant>,
}

/// Sockets and connections for a new configuration, open but not used yet.
struct Prepared {
    site: Rc<Site>,
    sockets: Vec<Opened>,
}

enum Opened {
    /// This one of the current sockets.
    Kept(usize),
    New(Vec<Rc<Listener>>, SocketAddr, usize),
}

impl Worker {
    /// Opens the sockets that are not open already, in this process or before it. Accepts nothing
    /// from them yet.
    async fn prepare(&self, generation: &Generation, inherited: &Inherited) -> anyhow::Result<Prepared> {
        let site = Rc::new(Site::new(&self.core, &self.clients, &self.lean, generation)?);
        let mut kept: Vec<usize> = Vec::new();
        let mut sockets = Vec::new();
        for (number, listener) in generation.config.listeners.iter().enumerate() {
            let address = *listener.address.get_ref();
            let same = |at: &usize| !kept.contains(at) && self.sockets[*at].address == address;
            if let Some(at) = (0..self.sockets.len()).find(same) {
                kept.push(at);
                sockets.push(Opened::Kept(at));
                continue;
            }
            let before = &generation.config.listeners[..number];
            let occurrence = before.iter().filter(|other| *other.address.get_ref() == address).count();
            let role = Role::Listener(address, occurrence);
            let mut listeners = inherited.listeners(role, (self.core.index, self.core.count), self.core.stack)?;
            if listeners.is_empty() {
                let opened = self.core.listen_as(generation.number, number, address).await;
                listeners.push(opened.with_context(|| format!("cannot listen on {address}"))?);
            }
            let local_addr = listeners[0].local_addr()?;
            sockets.push(Opened::New(listeners.into_iter().map(Rc::new).collect(), local_addr, occurrence));
        }
        Ok(Prepared { site, sockets })
    }

    /// Gives all new connections to the prepared site. The old one keeps its connections.
    fn switch(&mut self, prepared: Prepared) {
        let Prepared { site, sockets } = prepared;
        let before = std::mem::take(&mut self.sockets);
        for (number, opened) in sockets.into_iter().enumerate() {
            let target = Target { site: site.clone(), number };
            self.sockets.push(match opened {
                Opened::Kept(at) => {
                    before[at].target.replace(target);
                    before[at].clone()
                }
                Opened::New(opened, local_addr, occurrence) => {
                    let address = *site.config.listeners[number].address.get_ref();
                    let (target, stop) = (RefCell::new(target), LocalStop::default());
                    let listeners = opened.iter().map(Rc::downgrade).collect();
                    let socket = Rc::new(Socket { address, local_addr, occurrence, listeners, target, stop });
                    opened.into_iter().for_each(|listener| self.start(socket.clone(), listener));
                    socket
                }
            });
        }
        for gone in before.iter().filter(|old| !self.sockets.iter().any(|kept| Rc::ptr_eq(kept, old))) {
            gone.stop.request();
        }
        self.clients.set_limits(Limits::new(&site.config, self.budget));
        if self.core.index == 0 {
            health::start(&site);
        }
        site.start_clock();
        self.retired.retain(|site| site.strong_count() > 0);
        if let Some(old) = self.site.replace(site) {
            self.retired.push(Rc::downgrade(&old));
            old.retire();
            self.say_new(&before);
        }
    }

    fn start(&self, socket: Rc<Socket>, listener: Rc<Listener>) {
        let failed = self.failed.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = serve::accept(&socket, &listener).await {
                // Without a receiver the core is ending.
                let _ = failed.send(error);
            }
        });
    }

    fn announce(&self, inherited: &Inherited, orders: &Orders) -> anyhow::Result<()> {
        if self.core.index == 0 {
            for socket in &self.sockets {
                service::say(format_args!("listening {} {}", socket.local_addr, socket.name()));
            }
        }
        if self.core.is_last_ready() {
            inherited.serving()?;
            orders.serving();
            service::say(format_args!("ready"));
            service::ready();
        }
        Ok(())
    }

    /// Adds further descriptors of its sockets, for another process. On fastsock, the cores' listeners
    /// at an address share one.
    fn lend(&self, sockets: &Lent) -> anyhow::Result<()> {
        if self.core.stack == StackKind::Fastsock && self.core.index > 0 {
            return Ok(());
        }
        let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
        for socket in &self.sockets {
            sockets.extend(socket.passed()?.into_iter().map(|passed| (self.core.index, passed)));
        }
        Ok(())
    }

    /// Another process accepts from now on. On a device, the packets of handshakes that have begun
    /// still come here.
    fn begin_to_leave(&mut self) {
        let listeners = self.sockets.iter().flat_map(|socket| &socket.listeners).filter_map(Weak::upgrade);
        // Each must leave.
        if listeners.map(|listener| listener.leave()).fold(false, |any, goes_on| any | goes_on) {
            self.leaves_at = Some(Instant::now() + HANDSHAKES);
        } else {
            self.leave();
        }
    }

    /// Completes when no handshake is expected any more.
    async fn handshakes_ended(&self) {
        match self.leaves_at {
            Some(at) => tokio::time::sleep_until(at).await,
            None => std::future::pending().await,
        }
    }

    /// Accepts nothing any more. Open connections run to their end, without a deadline.
    fn leave(&mut self) {
        self.leaves_at = None;
        self.sockets.drain(..).for_each(|socket| socket.stop.request());
        if let Some(site) = self.site.take() {
            self.retired.push(Rc::downgrade(&site));
            site.retire();
        }
    }

    /// Completes when another process accepts and all connections have ended.
    async fn finished(&self) {
        if self.site.is_some() {
            std::future::pending::<()>().await;
        }
        for site in self.retired.iter().filter_map(Weak::upgrade) {
            site.stop.drained().await;
        }
        // An error means that a peer takes none of the last bytes.
        let _ = tokio::time::timeout(LAST_BYTES, cores::connections_ended(self.core.stack)).await;
    }

    /// Standard output may have no reader any more, so later listeners are logged.
    fn say_new(&self, before: &[Rc<Socket>]) {
        let new = |socket: &&Rc<Socket>| self.core.index == 0 && !before.iter().any(|old| Rc::ptr_eq(old, socket));
        for socket in self.sockets.iter().filter(new) {
            tracing::info!("listening {} {}", socket.local_addr, socket.name());
        }
    }

    /// Lets open requests and connections finish, within the deadline.
    async fn drain(&mut self) {
        // tokio accepts from a socket only if it has seen its event. Without this turn, events since the last
        // one are unseen, and the connections would be reset.
        tokio::task::yield_now().await;
        self.sockets.drain(..).for_each(|socket| socket.stop.request());
        let mut sites: Vec<Rc<Site>> = self.retired.iter().filter_map(Weak::upgrade).collect();
        sites.extend(self.site.take());
        let limit = sites.iter().map(|site| site.config.timeouts.drain).next_back().unwrap_or(Duration::ZERO);
        // Connections in the sockets' queues are accepted first: one turn for each socket.
        tokio::task::yield_now().await;
        sites.iter().for_each(|site| site.stop.request());
        self.lean.clock.wake_all();
        let all = async {
            for site in &sites {
                site.stop.drained().await;
            }
        };
        if tokio::time::timeout(limit, all).await.is_err() {
            let open: usize = sites.iter().map(|site| site.stop.open_count()).sum();
            let core = self.core.index;
            tracing::warn!("{open} connections still open on core {core} after {limit:?}: closing them");
        }
        sites.iter().for_each(|site| site.end());
    }
}
