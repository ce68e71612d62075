//! Listeners: they are announced, listened for on the wire, shut and closed.

use super::Server;
use super::arenas::{Acceptor, Opener};
use super::events::Token;
use super::place::{Placeholder, backlog};
use super::ports::Shares;
use super::requests::Answer;
use super::room::AGAIN;
use super::waits::Waits;
use crate::access::Call;
use crate::listeners::{Listener, Takes, unmapped};
use crate::wire::{ListenerOptions, WireListener};
use fs_shm::Side;
use fs_shm::control::{KernelReason, Reply};
use fs_shm::pages::ListenerPage;
use fs_shm::sleepers::Sleepers;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What belongs to a listener beside its place.
pub(super) struct ListenerMemory {
    pub(super) page: ListenerPage,
    pub(super) memory: Arc<OwnedFd>,
    /// The socket itself, so that nobody else can have its place in the kernel while connections are led here, whatever the process
    /// does with its own descriptors. The control thread's epoll set tells when it listens no more.
    pub(super) placeholder: OwnedFd,
    /// Why new connections of it are the kernel's, where they are.
    pub(super) left_for: KernelReason,
    /// TCP_DEFER_ACCEPT in seconds.
    pub(super) defer: u32,
    /// The cores listen for it too.
    pub(super) on_wire: bool,
    /// Who has listened first.
    pub(super) uid: u32,
    pub(super) shares: Shares,
    /// The arenas that it had when it was closed or shut.
    pub(super) ended: Vec<u32>,
    /// What its connections over the wire have.
    pub(super) options: ListenerOptions,
    /// Connections that have ended and wait, in arenas that are gone.
    pub(super) waits: Waits,
    /// The poller that all who accept share, and what they sleep on.
    pub(super) poller: Option<(u32, Arc<OwnedFd>)>,
    /// In which order they sleep; made with the poller.
    pub(super) sleepers: Option<(Sleepers, Arc<OwnedFd>)>,
    /// The same of all epoll sets that watch it with EPOLLEXCLUSIVE.
    pub(super) exclusive: Option<(u32, Arc<OwnedFd>)>,
    /// Attachments that have closed it and say that they have it in an epoll set: they see its arenas on, and keep nothing open.
    pub(super) watchers: HashSet<u32>,
    /// Those whose watch has ended because a holder is apart from them, and who have not said so yet.
    pub(super) former_watchers: HashSet<u32>,
    /// Until then its room is not shared again.
    pub(super) shared_until: Option<Instant>,
    /// How long it is not shared again after that gave nobody anything.
    pub(super) pause: Duration,
}

impl ListenerMemory {
    /// The pollers that several share: each ring is for one of them.
    pub(super) fn shared(&self) -> impl Iterator<Item = u32> + '_ {
        [&self.poller, &self.exclusive].into_iter().flatten().map(|(poller, _)| *poller)
    }
}

impl Server {
    pub(super) fn listen(&mut self, me: u32, socket: OwnedFd) -> Result<Answer, Errno> {
        if self.draining.is_some() {
            return Ok(self.kernel(KernelReason::Draining));
        }
        let place = match self.placeholder(me, &socket) {
            Ok(place) => place,
            Err(reason) => return Ok(self.kernel(reason)),
        };
        if !place.listens {
            return Err(Errno::INVAL);
        }
        if !self.may(me, Call::Bind, place.local.port())? {
            return Ok(self.refused(Errno::ACCESS));
        }
        if self.is_taken_by_own(&place) {
            return Ok(self.refused(Errno::ADDRINUSE));
        }
        if self.is_left(me, Call::Bind, place.local) {
            return Ok(self.kernel(KernelReason::Policy));
        }
        if self.is_ruled_by_cgroup(me) {
            return Ok(self.kernel(KernelReason::Firewall));
        }
        if let Some(id) = self.listeners.moved(place.netns, place.local, place.cookie) {
            self.listens_no_more(id);
        }
        if let Some(id) = self.listeners.again(place.netns, place.local, place.cookie) {
            return self.listen_again(me, id, &place, &socket);
        }
        let limit = self.config.limits.listeners;
        let uid = self.attachments.get(me).ok_or(Errno::NOTCONN)?.who.uid;
        let of_user = self.attachments.values().filter(|attachment| self.is_one_user(attachment.who.uid, uid));
        let theirs = || of_user.map(|attachment| attachment.listeners.len()).sum();
        if self.listeners.len() >= limit || !self.has_room(uid, limit, self.listeners.len(), theirs) {
            return Ok(self.kernel(KernelReason::Limit));
        }
        let backlog = backlog(socket.as_fd());
        let (memory, page) = ListenerPage::create()?;
        let memory = Arc::new(memory);
        page.set_holders(1);
        let options = self.default_options.changed_on(socket.as_fd());
        let defer = options.defer_accept;
        let Placeholder { netns, cookie, local: at, v6_only, shares, .. } = place;
        let more = ListenerMemory {
            page,
            memory: memory.clone(),
            placeholder: socket,
            left_for: KernelReason::Option,
            defer,
            on_wire: false,
            uid,
            shares,
            ended: Vec::new(),
            options,
            waits: Waits::default(),
            poller: None,
            sleepers: None,
            exclusive: None,
            watchers: HashSet::new(),
            former_watchers: HashSet::new(),
            shared_until: None,
            pause: AGAIN,
        };
        let holders = HashSet::from([me]);
        let id =
            self.listeners.insert(Listener { netns, at, v6_only, backlog, cookie, takes: Takes::All, holders, more });
        self.attachments.get_mut(me).ok_or(Errno::NOTCONN)?.listeners.insert(id);
        if let Err(error) = self.watch_placeholder(id) {
            self.close_listener(id);
            return Err(error);
        }
        self.listen_on_wire(id);
        self.bump();
        Ok(Answer::with(Reply::Listener { listener: id }, [memory]))
    }

    /// A socket listens that is known: its backlog and options may be others, or it was shut before.
    fn listen_again(&mut self, me: u32, id: u32, place: &Placeholder, socket: &OwnedFd) -> Result<Answer, Errno> {
        let listener = self.listeners.get_mut(id).ok_or(Errno::NOENT)?;
        let was_shut = listener.takes == Takes::None;
        if was_shut {
            (listener.takes, listener.v6_only) = (Takes::All, place.v6_only);
            listener.more.page.open();
        }
        listener.backlog = backlog(socket.as_fd());
        listener.holders.insert(me);
        listener.count_lookers();
        self.end_apart_watches(id);
        let listener = self.listeners.get_mut(id).ok_or(Errno::NOENT)?;
        let memory = listener.more.memory.clone();
        let options = self.default_options.changed_on(socket.as_fd());
        listener.more.defer = options.defer_accept;
        (listener.more.shares, listener.more.options) = (place.shares, options);
        if let (Some(wire), true) = (&self.wire, listener.more.on_wire) {
            wire.change(wire_listener(id, listener, options));
        }
        self.resume_listener(id);
        self.share_room_now(id);
        self.attachments.get_mut(me).ok_or(Errno::NOTCONN)?.listeners.insert(id);
        if was_shut {
            self.watch_placeholder(id)?;
            self.listen_on_wire(id);
            self.bump();
        }
        Ok(Answer::with(Reply::Listener { listener: id }, [memory]))
    }

    /// The kernel is to tell when a listener listens no more.
    fn watch_placeholder(&self, id: u32) -> Result<(), Errno> {
        let Some(listener) = self.listeners.get(id) else { return Ok(()) };
        let socket = &listener.more.placeholder;
        // That somebody waits in its queue is not asked.
        match self.events.watch_end(socket.as_fd(), Token::Listener(id)) {
            // It listens again before its end was seen.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        // Or it was shut down just before.
        if !listener.is_at_its_place() {
            self.events.unwatch(socket.as_fd());
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// The placeholder of a listener was shut down or connected, by whatever system call: its place may be another's soon.
    pub(super) fn listens_no_more(&mut self, id: u32) {
        let Some(listener) = self.listeners.get(id).filter(|listener| !listener.is_at_its_place()) else { return };
        self.events.unwatch(listener.more.placeholder.as_fd());
        let Some(listener) = self.listeners.get_mut(id) else { return };
        if std::mem::replace(&mut listener.takes, Takes::None) != Takes::None {
            self.end_listener(id);
            self.list_arenas(id);
        }
    }

    /// The cores listen too, for addresses that the device has.
    pub(super) fn listen_on_wire(&mut self, id: u32) {
        let Some(wire) = self.wire.clone() else { return };
        let own = self.namespaces.own();
        let Some(listener) = self.listeners.get(id).filter(|listener| listener.netns == own) else { return };
        if unmapped(listener.at.ip()).is_loopback() {
            return;
        }
        if self.is_ruled(own) {
            self.counters.kernel(KernelReason::Firewall);
            return;
        }
        let Some(listener) = self.listeners.get_mut(id) else { return };
        listener.more.on_wire = true;
        let wanted = wire_listener(id, listener, listener.more.options);
        for core in 0..wire.cores() {
            match self.arena_of(Opener::Core(core), Acceptor::Listener(id)) {
                Ok((arena, memory, _)) => wire.listen(core, wanted.clone(), arena, memory),
                Err(error) => {
                    tracing::warn!(
                        %error,
                        listener = id,
                        "cannot create an arena for a listener: the kernel takes its connections from the wire"
                    )
                }
            }
        }
    }

    pub(super) fn listen_failed(&mut self, id: u32, errno: i32) {
        self.counters.kernel(KernelReason::Port);
        if let Some(listener) = self.listeners.get_mut(id) {
            let error = std::io::Error::from_raw_os_error(errno);
            tracing::warn!(
                at = %listener.at,
                %error,
                "the cores cannot listen at this address: the kernel takes its connections from the wire"
            );
            listener.more.on_wire = false;
        }
        // Another core may have been luckier, by an address that came or went just then.
        if let Some(wire) = &self.wire {
            wire.unlisten(id);
        }
    }

    pub(super) fn listener_page(&mut self, me: u32, id: u32) -> Result<Answer, Errno> {
        let listener = self.listeners.get(id).ok_or(Errno::NOENT)?;
        if !listener.holders.contains(&me) {
            return Err(Errno::ACCESS);
        }
        Ok(Answer::with(Reply::Listener { listener: id }, [listener.more.memory.clone()]))
    }

    /// `true`: its connections keep its port in use.
    pub(super) fn unlisten(&mut self, me: u32, id: u32) -> bool {
        self.lets_go(me, id);
        if let Some(attachment) = self.attachments.get_mut(me) {
            attachment.listeners.remove(&id);
        }
        self.release_listener(me, id)
    }

    /// One holder less; the last one closes the listener. `true`: its connections keep its port in use.
    pub(super) fn release_listener(&mut self, me: u32, id: u32) -> bool {
        let Some(listener) = self.listeners.get_mut(id) else { return false };
        listener.holders.remove(&me);
        listener.count_lookers();
        if listener.holders.is_empty() && !self.is_shared_listener(id) {
            return self.close_listener(id);
        }
        self.release_sleepers(me, id);
        self.wake_another(id);
        self.suspend_if_bare(id);
        false
    }

    /// Nobody holds it any more. `true`: its connections keep its port in use.
    pub(super) fn close_listener(&mut self, id: u32) -> bool {
        if let Some(listener) = self.listeners.get(id) {
            // Before it is closed: who watches would take it for one that was shut down.
            listener.more.page.end();
        }
        self.end_listener(id);
        let Some(listener) = self.listeners.remove(id) else { return false };
        self.pollers.ring_all(|looker| listener.more.watchers.contains(&looker), id, |_| false);
        self.events.unwatch(listener.more.placeholder.as_fd());
        for watcher in listener.more.watchers.iter().chain(&listener.more.former_watchers) {
            if let Some(attachment) = self.attachments.get_mut(*watcher) {
                attachment.watched.remove(&id);
            }
        }
        self.keep_port(listener)
    }

    /// Answers [`fs_shm::control::Request::Watch`].
    pub(super) fn watch_listener(&mut self, me: u32, id: u32) -> Result<Answer, Errno> {
        if self.held_listener(me, id)?.holders.len() == 1 {
            return Err(Errno::NOENT);
        }
        if self.is_apart_from_holders(me, id)? {
            return Err(Errno::ACCESS);
        }
        let times = self.attachments.get_mut(me).ok_or(Errno::NOTCONN)?.watched.entry(id).or_default();
        *times = times.saturating_add(1);
        let more = &mut self.held_listener(me, id)?.more;
        more.former_watchers.remove(&me);
        more.watchers.insert(me);
        // Others hold it: its port is theirs.
        let _in_use = self.unlisten(me, id);
        Ok(Reply::Done.into())
    }

    /// [`fs_shm::control::Request::Unwatch`], which has no answer.
    pub(super) fn unwatch_listener(&mut self, connection: u64, id: u32) {
        self.counters.requests += 1;
        let Some(me) = self.connections.attachment(connection) else { return };
        let Some(attachment) = self.attachments.get_mut(me) else { return };
        let Some(times) = attachment.watched.get_mut(&id) else { return };
        *times -= 1;
        if *times == 0 {
            attachment.watched.remove(&id);
            self.is_not_watched_by(me, id);
        }
    }

    pub(super) fn is_not_watched_by(&mut self, me: u32, id: u32) {
        if let Some(listener) = self.listeners.get_mut(id) {
            listener.more.watchers.remove(&me);
            listener.more.former_watchers.remove(&me);
            listener.count_lookers();
        }
        // It may have been rung for a connection that it has not seen to.
        self.wake_another(id);
    }

    /// A process has forgotten all that it watches.
    pub(super) fn watches_none(&mut self, me: u32) {
        let watched = self.attachments.get_mut(me).map(|attachment| std::mem::take(&mut attachment.watched));
        for &id in watched.iter().flat_map(|watched| watched.keys()) {
            self.is_not_watched_by(me, id);
        }
    }

    /// Whether a process may have what those share who look at a listener.
    pub(super) fn may_look(&self, me: u32, id: u32) -> Result<(), Errno> {
        let listener = self.listeners.get(id).ok_or(Errno::NOENT)?;
        let watches = || listener.more.watchers.contains(&me) && self.is_apart_from_holders(me, id) == Ok(false);
        if listener.holders.contains(&me) || watches() { Ok(()) } else { Err(Errno::ACCESS) }
    }

    /// Answers [`fs_shm::control::Request::Shut`].
    pub(super) fn shut_listener(&mut self, me: u32, id: u32) -> Result<Answer, Errno> {
        self.held_listener(me, id)?.takes = Takes::None;
        self.end_listener(id);
        self.list_arenas(id);
        Ok(Reply::Done.into())
    }

    /// Answers [`fs_shm::control::Request::Leave`].
    pub(super) fn leave_listener(&mut self, me: u32, id: u32) -> Result<Answer, Errno> {
        self.held_listener(me, id)?;
        self.leave_to_kernel(id, KernelReason::Option);
        Ok(Reply::Done.into())
    }

    fn held_listener(&mut self, me: u32, id: u32) -> Result<&mut Listener<ListenerMemory>, Errno> {
        let listener = self.listeners.get_mut(id).ok_or(Errno::NOENT)?;
        if listener.holders.contains(&me) { Ok(listener) } else { Err(Errno::ACCESS) }
    }

    pub(super) fn leave_wire(&mut self, id: u32) {
        let on_wire = self.listeners.get_mut(id).is_some_and(|listener| core::mem::take(&mut listener.more.on_wire));
        if let (Some(wire), true) = (&self.wire, on_wire) {
            wire.unlisten(id);
        }
    }

    fn end_listener(&mut self, id: u32) {
        let Some(listener) = self.listeners.get_mut(id) else { return };
        listener.more.page.close();
        self.leave_wire(id);
        self.end_arenas(id);
        self.bump();
    }

    /// No new connection comes by the arenas that lead to a listener. Those that nobody accepted are reset, as the kernel does.
    fn end_arenas(&mut self, id: u32) {
        let of_it: Vec<u32> = self.arenas_of(id).collect();
        of_it.into_iter().for_each(|arena| self.end_arena(id, arena));
    }

    /// The same of one of them.
    pub(super) fn end_arena(&mut self, listener: u32, arena: u32) {
        let Some(listener) = self.listeners.get_mut(listener) else { return };
        listener.more.ended.retain(|arena| self.arenas.get(*arena).is_some());
        listener.more.ended.push(arena);
        if let Some(mapped) = self.map(arena, Side::B) {
            mapped.close();
            mapped.refuse_pending();
        }
        if let Some(entry) = self.arenas.get_mut(arena) {
            (entry.acceptor, entry.is_emptied) = (None, false);
        }
        self.look_soon(arena);
    }

    /// Rules are others: what processes were given before is no way around them. What is open goes on.
    pub(super) fn end_denied(&mut self) {
        let ways: Vec<(u32, u32, u32)> = self
            .arenas
            .iter()
            .filter_map(|(arena, entry)| match (entry.opener, entry.acceptor) {
                (Some(Opener::Process(process)), Some(Acceptor::Listener(listener))) => {
                    Some((arena, process, listener))
                }
                _ => None,
            })
            .collect();
        for (arena, process, listener) in ways {
            let Some(port) = self.listeners.get(listener).map(|listener| listener.at.port()) else { continue };
            if !self.may(process, Call::Connect, port).unwrap_or(false) {
                self.end_arena(listener, arena);
                self.list_arenas(listener);
            }
        }
    }
}

impl Listener<ListenerMemory> {
    /// Whether a process holds it, or watches it.
    pub(super) fn is_looked_at_by(&self, attachment: u32) -> bool {
        self.holders.contains(&attachment) || self.more.watchers.contains(&attachment)
    }

    /// Tells all of them how many there are; one that has received again what it watches is both.
    pub(super) fn count_lookers(&self) {
        self.more.page.set_holders((self.holders.len() + self.more.watchers.len()) as u32);
    }

    /// Whether its socket listens, and where it was announced: one that was disconnected may listen at another place by now.
    pub(super) fn is_at_its_place(&self) -> bool {
        let socket = self.more.placeholder.as_fd();
        let at = rustix::net::getsockname(socket).ok().and_then(|at| SocketAddr::try_from(at).ok());
        at == Some(self.at) && sockopt::socket_acceptconn(socket).unwrap_or(false)
    }
}

pub(super) fn wire_listener(id: u32, listener: &Listener<ListenerMemory>, options: ListenerOptions) -> WireListener {
    let at = match unmapped(listener.at.ip()) {
        // With its scope.
        IpAddr::V6(_) => listener.at,
        ip => SocketAddr::new(ip, listener.at.port()),
    };
    WireListener { listener: id, at, v6_only: listener.v6_only, backlog: listener.backlog, options }
}
