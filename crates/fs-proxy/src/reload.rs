//! SIGHUP: another configuration without an interruption. SIGUSR2: another process. SIGUSR1: the
//! access log is reopened.
//!
//! One thread of the process gets the signals. Another one reads and checks the file, and looks up
//! names; an error changes nothing. The rest
//! has two steps, and every core replies to each: open what is new (a failure of any core cancels
//! the reload), and switch. So all cores use the old configuration, or all use the new one. A
//! listener whose address stays is kept, with the connections in its queue.

use crate::access_log;
use crate::admin::{Admin, Opened};
use crate::config::{Config, ConfigError, LookedUp};
use crate::handover::{Passed, Starting};
use crate::metrics::Metrics;
use crate::service;
use crate::stats::Stats;
use anyhow::{Context, bail, ensure};
use fs_stacks::StackKind;
use fs_stacks::cores::StackCounters;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};

/// A configuration, and the objects that live while it is used.
pub(crate) struct Generation {
    /// 0 is the configuration at the start. Counts attempts: no two have the same number.
    pub(crate) number: u64,
    pub(crate) config: Arc<Config>,
    pub(crate) stats: Arc<Stats>,
    pub(crate) log: Option<access_log::Sender>,
}

/// Orders to the cores. Each is answered before the next is given, so none is overwritten unseen.
#[derive(Clone)]
pub(crate) enum Order {
    /// Go on.
    Stay,
    /// Open what this configuration needs and the current one does not have.
    Prepare(Arc<Generation>),
    /// Use what was prepared.
    Switch,
    /// Close what was prepared.
    Cancel,
    /// Add further descriptors of the listening sockets.
    Lend(Lent),
    /// Another process accepts from now on.
    Leave,
}

/// Sockets for another process, with the core of each.
pub(crate) type Lent = Arc<Mutex<Vec<(usize, Passed)>>>;

/// A core's side of the channel.
#[derive(Clone)]
pub(crate) struct Orders {
    orders: watch::Receiver<Order>,
    answers: mpsc::UnboundedSender<anyhow::Result<()>>,
}

impl Orders {
    /// Returns the next order, or never if there will be none.
    pub(crate) async fn next(&mut self) -> Order {
        match self.orders.changed().await {
            Ok(()) => self.orders.borrow_and_update().clone(),
            Err(_) => std::future::pending().await,
        }
    }

    /// Reports that all cores serve. No order is given before.
    pub(crate) fn serving(&self) {
        self.answer(Ok(()));
    }

    pub(crate) fn answer(&self, answer: anyhow::Result<()>) {
        // Without a receiver the process is ending.
        let _ = self.answers.send(answer);
    }
}

/// The giver's side, and the signals, caught from the creation of this value on.
pub(crate) struct Channel {
    runtime: tokio::runtime::Runtime,
    hang_up: Signal,
    reopen: Signal,
    succeed: Signal,
    orders: watch::Sender<Order>,
    answers: Answers,
}

/// An admin socket that is not served yet. A process that ends before drops it, which removes its file.
pub(crate) type Unserved = Arc<Mutex<Option<Opened>>>;

/// The cores' replies to an order.
type Answers = mpsc::UnboundedReceiver<anyhow::Result<()>>;

impl Channel {
    /// Creates the two sides. Each core gets a clone of the second.
    pub(crate) fn open() -> anyhow::Result<(Self, Orders)> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let entered = runtime.enter();
        let hang_up = signal(SignalKind::hangup()).context("SIGHUP")?;
        let reopen = signal(SignalKind::user_defined1()).context("SIGUSR1")?;
        let succeed = signal(SignalKind::user_defined2()).context("SIGUSR2")?;
        drop(entered);
        let (sender, orders) = watch::channel(Order::Stay);
        let (answer, answers) = mpsc::unbounded_channel();
        Ok((Self { runtime, hang_up, reopen, succeed, orders: sender, answers }, Orders { orders, answers: answer }))
    }
}

/// The state of reloads.
pub(crate) struct Reloader {
    pub(crate) file: PathBuf,
    pub(crate) stack: StackKind,
    pub(crate) below: StackCounters,
    pub(crate) cores: usize,
    pub(crate) current: Arc<Generation>,
    /// The time until names are looked up again.
    pub(crate) lookup_interval: Option<Duration>,
    pub(crate) metrics: Metrics,
    pub(crate) admin: Option<Admin>,
    pub(crate) logs: Logs,
    pub(crate) successor: Starting,
    /// Another process has taken over.
    pub(crate) is_succeeded: bool,
}

impl Reloader {
    /// Starts the thread that waits for signals, and serves `admin` once all cores serve. It ends
    /// with the process.
    pub(crate) fn start(mut self, channel: Channel, admin: Unserved) -> anyhow::Result<()> {
        let Channel { runtime, mut hang_up, mut reopen, mut succeed, orders, mut answers } = channel;
        let run = move || {
            runtime.block_on(async {
                // Before, the socket of another process would be replaced by one that may not serve.
                if !matches!(answers.recv().await, Some(Ok(()))) {
                    return;
                }
                self.start_admin(&admin);
                let (mut lookup, mut reading) = (None, None);
                // SIGHUP came while the file was read.
                let mut again = false;
                loop {
                    let interval = self.lookup_interval.filter(|_| !self.is_succeeded && lookup.is_none());
                    tokio::select! {
                        () = after(interval) => lookup = Some(self.look_up()),
                        found = finished(&mut lookup) => self.looked_up(found, &orders, &mut answers).await,
                        read = finished(&mut reading) => {
                            self.on_read(read, &orders, &mut answers).await;
                            let again = std::mem::take(&mut again) && !self.is_succeeded;
                            reading = again.then(|| self.read());
                        }
                        _ = hang_up.recv() => match reading {
                            Some(_) => again = true,
                            None => reading = self.on_hang_up(),
                        },
                        _ = reopen.recv() => self.logs.reopen(),
                        _ = succeed.recv() => self.on_succeed(&orders, &mut answers).await,
                    }
                }
            });
        };
        std::thread::Builder::new().name("reload".into()).spawn(run)?;
        Ok(())
    }

    /// The lock is held until the socket is at its path: a process that ends removes it before, or not.
    fn start_admin(&mut self, admin: &Unserved) {
        let mut opened = admin.lock().unwrap_or_else(PoisonError::into_inner);
        self.admin = opened.take().and_then(|admin| admin.start(self.metrics.shown()));
    }

    fn on_hang_up(&self) -> Option<JoinHandle<Read>> {
        if self.is_succeeded {
            tracing::warn!("SIGHUP: another process serves, and this one ends with its last connection");
            return None;
        }
        tracing::info!("SIGHUP: reading {}", self.file.display());
        service::reloading();
        Some(self.read())
    }

    /// Reads the file in another thread: names are looked up, which takes as long as name servers do.
    fn read(&self) -> JoinHandle<Read> {
        let (file, stack) = (self.file.clone(), self.stack);
        tokio::task::spawn_blocking(move || {
            let config = Config::load(&file)?;
            config.check_stack(&file, stack).map(|()| config)
        })
    }

    async fn on_read(&mut self, read: Result<Read, JoinError>, orders: &watch::Sender<Order>, answers: &mut Answers) {
        if self.is_succeeded {
            // The successor serves the listeners, with the file as it was at its start.
            return;
        }
        let name = self.file.display().to_string();
        let result = match read.map(|read| read.map_err(anyhow::Error::from)).map_err(anyhow::Error::from).flatten() {
            Ok(config) => self.replace(config, orders, answers).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => tracing::info!("{name} is in use; open connections keep the previous one"),
            Err(error) => {
                // logrotate does not wait until the file is fixed.
                self.logs.reopen();
                tracing::error!(
                    "{error:#}: nothing has changed, the previous configuration stays in use; fix the file and send \
                     SIGHUP again"
                );
            }
        }
        service::ready();
    }

    /// Looks up the names of servers in another thread.
    fn look_up(&self) -> JoinHandle<Found> {
        let (current, file) = (self.current.clone(), self.file.clone());
        tokio::task::spawn_blocking(move || (current.number, current.config.looked_up_again(&file)))
    }

    /// Uses the current addresses of servers that are given by name.
    async fn looked_up(
        &mut self,
        found: Result<Found, JoinError>,
        orders: &watch::Sender<Order>,
        answers: &mut Answers,
    ) {
        let result = match found {
            // An answer for a configuration other than the current one.
            Ok((number, _)) if number != self.current.number || self.is_succeeded => return,
            Ok((_, LookedUp { config, failed, interval })) => {
                self.lookup_interval = interval;
                for error in failed {
                    tracing::warn!("{error}: the previous addresses stay in use");
                }
                match config {
                    Ok(None) => return,
                    Ok(Some(config)) => self.replace(config, orders, answers).await,
                    Err(error) => Err(error.into()),
                }
            }
            Err(error) => Err(error.into()),
        };
        match result {
            Ok(()) => tracing::info!("names of servers have other addresses, which are in use"),
            Err(error) => tracing::warn!("{error:#}: the previous addresses stay in use"),
        }
    }

    async fn on_succeed(&mut self, orders: &watch::Sender<Order>, answers: &mut Answers) {
        tracing::info!("SIGUSR2: starting another process");
        if let Err(error) = self.succeed(orders, answers).await {
            let said = format!("{error:#}: nothing has changed, this process goes on");
            tracing::error!("{said}");
            service::not_succeeded(&said);
        }
    }

    /// Starts another process and passes the listening sockets to it.
    async fn succeed(&mut self, orders: &watch::Sender<Order>, answers: &mut Answers) -> anyhow::Result<()> {
        ensure!(!self.is_succeeded, "another process has taken over already");
        if let Some(reason) = self.below.refuses_successor() {
            bail!("{reason}");
        }
        let lent = Lent::default();
        ask(orders, answers, Order::Lend(lent.clone()), self.cores).await?;
        let mut sockets = std::mem::take(&mut *lent.lock().unwrap_or_else(PoisonError::into_inner));
        sockets.sort_by_key(|(core, _)| *core);
        let mut sockets: Vec<Passed> = sockets.into_iter().map(|(_, passed)| passed).collect();
        sockets.extend(self.metrics.passed()?);
        // Blocks this thread, which serves no connection: other signals wait until it is decided.
        let process = self.successor.give(&sockets, &self.current.stats.other_weights())?;
        self.is_succeeded = true;
        service::succeeded_by(process);
        self.metrics.leave();
        self.below.succeeded();
        // Logged before the order, because without connections this process ends at once.
        tracing::info!("process {process} serves; this one ends with its last connection");
        if self.stack == StackKind::Fastsock {
            tracing::info!("until then new connections are the kernel's: a device has one process");
        }
        if let Err(error) = ask(orders, answers, Order::Leave, self.cores).await {
            tracing::debug!("{error:#}");
        }
        Ok(())
    }

    /// Uses another configuration on all cores, or on none.
    async fn replace(
        &mut self,
        config: Config,
        orders: &watch::Sender<Order>,
        answers: &mut Answers,
    ) -> anyhow::Result<()> {
        let (number, config) = (self.current.number + 1, Arc::new(config));
        // A file that logrotate has renamed is opened again too.
        let log = config.access_log.as_deref().map(access_log::Writer::start).transpose()?;
        let metrics = self.metrics.prepare(config.metrics)?;
        let path = config.admin.as_deref();
        let has_other_admin = path != self.admin.as_ref().map(|admin| &*admin.path);
        let admin = path.filter(|_| has_other_admin).map(Opened::new).transpose()?;
        let stats = Arc::new(Stats::new(&config, self.cores, Some(&self.current.stats)));
        let sender = log.as_ref().map(access_log::Writer::sender);
        let next = Arc::new(Generation { number, config, stats, log: sender });
        let prepared = ask(orders, answers, Order::Prepare(next.clone()), self.cores).await;
        if prepared.is_err() {
            // The number is used up: cores may have requested ports for it.
            let Generation { config, stats, log, .. } = &*self.current;
            let (config, stats, log) = (config.clone(), stats.clone(), log.clone());
            self.current = Arc::new(Generation { number, config, stats, log });
            ask(orders, answers, Order::Cancel, self.cores).await?;
            return prepared;
        }
        ask(orders, answers, Order::Switch, self.cores).await?;
        self.lookup_interval = next.config.lookup_interval();
        self.metrics.switch(metrics, next.stats.clone());
        if has_other_admin {
            self.admin = admin.and_then(|admin| admin.start(self.metrics.shown()));
        }
        self.logs.add(log);
        self.current = next;
        Ok(())
    }
}

/// A file that was read.
type Read = Result<Config, ConfigError>;
/// The number of a configuration, and what a look-up of its names has found.
type Found = (u64, LookedUp);

/// Waits for a task, if there is one.
async fn finished<T>(task: &mut Option<JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(handle) => {
            let result = handle.await;
            *task = None;
            result
        }
        None => std::future::pending().await,
    }
}

async fn after(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Gives an order and waits for all replies. Returns the first error.
async fn ask(orders: &watch::Sender<Order>, answers: &mut Answers, order: Order, cores: usize) -> anyhow::Result<()> {
    orders.send_replace(order);
    let mut result = Ok(());
    for _ in 0..cores {
        let answer = answers.recv().await.context("the program is ending")?;
        result = result.and(answer);
    }
    // The channel must not keep a configuration that its cores have left.
    orders.send_if_modified(|order| {
        *order = Order::Stay;
        false
    });
    result
}

/// The threads that write access logs: the current one and those of configurations with open
/// connections.
#[derive(Clone, Default)]
pub(crate) struct Logs(Arc<Mutex<Vec<access_log::Writer>>>);

impl Logs {
    pub(crate) fn add(&self, log: Option<access_log::Writer>) {
        let mut logs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (used, unused) = logs.drain(..).chain(log).partition(access_log::Writer::is_used);
        *logs = used;
        drop(logs);
        finish(unused);
    }

    fn reopen(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(access_log::Writer::reopen);
    }

    /// Writes all lines that were sent.
    pub(crate) fn finish(&self) {
        finish(std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner)));
    }
}

fn finish(logs: Vec<access_log::Writer>) {
    logs.into_iter().for_each(access_log::Writer::finish);
}
