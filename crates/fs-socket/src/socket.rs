//! One socket of this process.
//!
//! 1. The memory of a `Socket` is a `Socket`'s for ever; what it stands for changes, and `identity` with it (0: nothing).
//! 2. `holds` counts: one for all descriptors of this process together, one for each call that waits or keeps it
//!    ([`crate::descriptor::table::SocketRef`]). Who takes it to 0 tears the socket down, as the kernel does with a file.
//! 3. Calls that do not wait hold nothing: they copy what they need ([`Socket::channel`]), and the channel's generation,
//!    checked under its lock, tells them when it is not theirs any more (EBADF).
//! 4. Nothing here allocates from the heap, nothing is locked: a signal handler may do anything at any point.

mod holds;
mod pool;

use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
    fence,
};

use fs_shm::Channel;

pub(crate) use pool::{grow, next_identity};

use crate::{
    descriptor::kept,
    process::arenas::Mapped,
    stream::channel,
    sys::{call, pointer::Pointer},
    types::Fd,
};

/// What is ready, in the bits of `poll(2)`/`epoll(7)` (`EPOLLIN` 1, `PRI` 2, `OUT` 4, `ERR` 8, `HUP` 0x10, `RDHUP` 0x2000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness(pub u32);

impl Readiness {
    /// Bytes, a connection, an end or an error to read.
    pub const IN: u32 = 0x1;
    /// Urgent data.
    pub const PRI: u32 = 0x2;
    /// Room to write (or an error).
    pub const OUT: u32 = 0x4;
    /// A pending error.
    pub const ERR: u32 = 0x8;
    /// Both directions are over.
    pub const HUP: u32 = 0x10;
    /// The peer has shut its sending side down.
    pub const RDHUP: u32 = 0x2000;
}

/// What a poller has to watch to learn of a socket's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The kernel only: put the descriptor into a kernel epoll/poll.
    Kernel,
    /// A channel only: nothing happens on the placeholder.
    Channel,
    /// A listener: our inboxes and the kernel's queue, both.
    Listener,
}

/// What a socket is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Memory in reserve.
    Free = 0,
    /// Neither connected nor listening: the kernel's, and may become ours.
    Fresh = 1,
    /// The kernel's for good.
    Kernel = 2,
    /// A connection through shared memory.
    Channel = 3,
    /// A listener that is announced (the kernel listens too).
    Listener = 4,
    /// An epoll instance of [`crate::poll`].
    Epoll = 5,
    /// A descriptor of this library's own.
    Internal = 6,
}

impl Kind {
    fn from_word(word: u32) -> Self {
        match word {
            1 => Kind::Fresh,
            2 => Kind::Kernel,
            3 => Kind::Channel,
            4 => Kind::Listener,
            5 => Kind::Epoll,
            6 => Kind::Internal,
            _ => Kind::Free,
        }
    }
}

/// One socket as this process knows it, shared by all its descriptors here; never moves, memory is reused for other sockets only.
#[derive(Debug)]
#[repr(C, align(128))]
pub struct Socket {
    kind: AtomicU32,
    /// Domain: AF_INET or AF_INET6.
    family: AtomicU32,
    identity: AtomicU64,
    arena: Pointer<Mapped>,
    /// Slot | generation << 32.
    slot: AtomicU64,
    /// SO_RCVTIMEO and SO_SNDTIMEO in nanoseconds; 0: for ever.
    receive_timeout: AtomicU64,
    send_timeout: AtomicU64,
    /// Of which attachment it is ([`crate::process::Attachment::life`]).
    life: AtomicU32,
    /// Kind's own number: the listener's place in [`crate::listen`], the epoll instance's index, the port that is still shown.
    index: AtomicU32,

    // Second line: what changes.
    holds: AtomicU32,
    descriptors: AtomicU32,
    marks: AtomicU32,
    /// SO_LINGER in seconds + 1; 0: off.
    linger: AtomicU32,
    next_free: AtomicU32,
    low_water: AtomicU32,
    receive_buffer: AtomicU32,
    send_buffer: AtomicU32,
    /// Options that accepted sockets inherit: how many, and level << 40 | name << 32 | value.
    options_count: AtomicU32,
    /// Its seat, and when its placeholder was made ([`crate::descriptor::kept`]).
    kept: AtomicU32,
    options: [AtomicU64; OPTIONS],
    /// O_NONBLOCK, while it is no channel (a channel's is in shared memory).
    status: AtomicU32,
    /// One descriptor number of it, any; what the placeholder is asked through.
    number: AtomicU32,
    /// Options of TCP that were set before it was connected: bits by `fs_shm::channel::Options::number`.
    wishes: AtomicU32,
    made: AtomicU32,
}

// All fields are atomics or pointers.
crate::sys::array::zeroed!(Socket);

/// Options remembered for accepted sockets; programs set three or four. As many as fit into the two lines.
const OPTIONS: usize = 18;

/// Bits of `marks`.
pub(crate) mod mark {
    /// bind was called.
    pub(crate) const BOUND: u32 = 1;
    /// Accepted (side B) rather than opened.
    pub(crate) const ACCEPTED: u32 = 2;
    /// A non-blocking connect's success has not been told yet (EINPROGRESS, then EALREADY…).
    pub(crate) const CONNECTING: u32 = 4;
    /// An option that only the kernel can honour was set before connect or listen, or it was shut down before it listened.
    pub(crate) const KERNEL_ONLY: u32 = 8;
    /// bind was called with a port and without an address. Over the wire that port would be another one.
    pub(crate) const PORT: u32 = 16;
    /// SO_OOBINLINE is set.
    pub(crate) const OOB_INLINE: u32 = 32;
    /// connect(AF_UNSPEC) ended a connection: ECONNRESET is told once.
    pub(crate) const DISCONNECTED: u32 = 64;
    /// Accepted, and what the listener had set has been set on the placeholder.
    pub(crate) const SYNCED: u32 = 128;
    /// Its connection has ended, and the port that it came from is still shown ([`Socket::named`]).
    pub(crate) const NAMED: u32 = 256;
    /// What recvmsg(2) tells besides ([`crate::stream::ancillary`]): TCP_INQ, SO_TIMESTAMP, as a timespec, by the name of the new form.
    pub(crate) const INQ: u32 = 512;
    pub(crate) const STAMP: u32 = 1024;
    pub(crate) const STAMP_NS: u32 = 2048;
    pub(crate) const STAMP_NEW: u32 = 4096;
    /// TCP_CORK.
    pub(crate) const CORK: u32 = 8192;
    /// It was bound after its connection had ended: getsockname says where to.
    pub(crate) const MOVED: u32 = 16384;
    /// Another process may have it too.
    pub(crate) const SHARED: u32 = 32768;
    /// shutdown(2) of what was not connected, by direction: in vain, but a connection that is made of it later has it (sk_shutdown
    /// of the kernel, which inet_shutdown() sets in any state and tcp_disconnect() takes away).
    pub(crate) const SHUT_READ: u32 = 65536;
    pub(crate) const SHUT_WRITE: u32 = 131_072;
    /// A connection that is over, whose bind(2) was refused: it has its port still, and no address.
    pub(crate) const NAMELESS: u32 = 262_144;
    /// A listener that this process has closed and watches ([`crate::listen::last_number_gone`]).
    pub(crate) const WATCHED: u32 = 524_288;
    /// SO_REUSEADDR was set on a listener since it listens, or taken away, and on what was accepted since then. Neither: the daemon
    /// knows it from listen(2).
    pub(crate) const SHARES: u32 = 1 << 20;
    pub(crate) const SHARES_NOT: u32 = 1 << 21;
    /// Its placeholder may be used again, and SO_LINGER has not been set on that yet ([`crate::descriptor::kept`]).
    pub(crate) const CLEAN: u32 = 1 << 22;
    pub(crate) const LINGERS: u32 = 1 << 23;
    /// It has had more than one number: a registration may be under another than [`Socket::number`](super::Socket::number).
    pub(crate) const SEVERAL: u32 = 1 << 24;
}

impl Socket {
    /// Which open socket this is, never repeated in this process (what epoll's key of file and number needs); 0: none.
    #[inline]
    pub fn identity(&self) -> u64 {
        self.identity.load(Acquire)
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        Kind::from_word(self.kind.load(Acquire))
    }

    /// What to watch.
    pub fn watch(&self) -> Watch {
        match self.kind() {
            Kind::Channel => Watch::Channel,
            // One that is not announced is the kernel's alone.
            Kind::Listener if crate::listen::object(self).is_some() => Watch::Listener,
            _ => Watch::Kernel,
        }
    }

    /// The channel, if it is one: a consistent copy. A few loads of one line.
    #[inline]
    pub fn channel(&self) -> Option<Channel<'static>> {
        if self.kind.load(Acquire) != Kind::Channel as u32 {
            return None;
        }
        let identity = self.identity.load(Acquire);
        let mapped = self.arena.load()?;
        let slot = self.slot.load(Relaxed);
        fence(Acquire);
        // Changed under our hands: closed by another thread.
        (identity == self.identity.load(Relaxed)).then_some(())?;
        mapped.channel(slot as u32, (slot >> 32) as u32)
    }

    /// Makes it a channel. Before this the arena's slot is ours.
    pub(crate) fn become_channel(&self, mapped: &'static Mapped, channel: &Channel<'static>) {
        mapped.record_use(channel.slot());
        self.arena.store(Some(mapped));
        self.slot.store(u64::from(channel.slot()) | u64::from(channel.generation()) << 32, Relaxed);
        self.kind.store(Kind::Channel as u32, Release);
    }

    /// The channel of a descriptor that was inherited or received: everything that was set is in shared memory already.
    pub(crate) fn resume_channel(&self, life: u32, mapped: &'static Mapped, channel: &Channel<'static>) {
        self.set_life(life);
        self.become_channel(mapped, channel);
    }

    pub(crate) fn become_kind(&self, kind: Kind) {
        self.kind.store(kind as u32, Release);
    }

    pub(crate) fn epoll_index(&self) -> u32 {
        self.index.load(Relaxed)
    }

    pub(crate) fn set_epoll_index(&self, index: u32) {
        self.index.store(index, Relaxed);
    }

    pub(crate) fn listener(&self) -> u32 {
        self.index.load(Relaxed)
    }

    pub(crate) fn set_listener(&self, place: u32) {
        self.index.store(place, Relaxed);
    }

    /// It is connected no more, and was from a port of the daemon's choice.
    pub(crate) fn leave_port(&self, port: u16) {
        self.index.store(port.into(), Relaxed);
        self.mark(mark::NAMED);
    }

    /// The port that getsockname(2) shows although it is another's to use: inet_sport of the kernel, which tcp_disconnect() leaves.
    pub(crate) fn named(&self) -> Option<u16> {
        let is_named = self.kind() == Kind::Fresh && self.marked(mark::NAMED) && !self.marked(mark::BOUND);
        is_named.then(|| self.index.load(Relaxed) as u16)
    }

    /// What was set before the connection was made, in the channel.
    pub(crate) fn apply_to(&self, channel: &Channel<'static>) {
        channel.set_status(channel::O_NONBLOCK, self.status.load(Relaxed));
        if self.low_water.load(Relaxed) > 1 {
            channel.set_rcvlowat(self.low_water.load(Relaxed));
        }
        if self.marked(mark::OOB_INLINE) {
            channel.set_oob_inline(true);
        }
        for sending in [false, true] {
            let timeout = self.own_timeout(sending).load(Relaxed);
            if timeout != 0 {
                timeout_of(channel, sending).store(timeout, Relaxed);
            }
        }
        for (sending, bytes) in [(false, &self.receive_buffer), (true, &self.send_buffer)] {
            let bytes = match bytes.load(Relaxed) {
                0 => crate::stream::buffers::system(sending),
                bytes => bytes,
            };
            channel.set_buffer(sending, bytes);
        }
        crate::stream::ancillary::apply(self, channel);
        if self.marked(mark::CORK) && !channel.is_wire() {
            channel.set_cork(true);
        }
        channel.begin_shut(self.marked(mark::SHUT_READ), self.marked(mark::SHUT_WRITE));
        if self.marked(mark::SHARES | mark::SHARES_NOT) {
            // Who binds its port when the listener is gone meets it.
            channel.set_shares(self.marked(mark::SHARES));
        }
        crate::options::tcp_options::record_linger(self, channel);
        crate::options::tcp_options::limit_unsent(channel);
    }

    /// What an accepted socket has of its listener (sk_clone_lock() of the kernel).
    pub(crate) fn inherit(&self, listener: &Socket) {
        for (own, theirs) in
            [(&self.receive_timeout, &listener.receive_timeout), (&self.send_timeout, &listener.send_timeout)]
        {
            own.store(theirs.load(Relaxed), Relaxed);
        }
        for (own, theirs) in [
            (&self.linger, &listener.linger),
            (&self.low_water, &listener.low_water),
            (&self.receive_buffer, &listener.receive_buffer),
            (&self.send_buffer, &listener.send_buffer),
            (&self.options_count, &listener.options_count),
        ] {
            own.store(theirs.load(Relaxed), Relaxed);
        }
        if listener.marked(mark::OOB_INLINE) {
            self.mark(mark::OOB_INLINE);
        }
        crate::stream::ancillary::inherit(self, listener);
        let marks = mark::CORK | mark::SHARES | mark::SHARES_NOT;
        self.mark(listener.marks() & marks);
        let count = (listener.options_count.load(Relaxed) as usize).min(OPTIONS);
        for (own, theirs) in self.options.iter().zip(&listener.options).take(count) {
            own.store(theirs.load(Relaxed), Relaxed);
        }
    }

    /// Remembers an option that sockets accepted from this one have too.
    pub(crate) fn remember_option(&self, level: i32, name: i32, value: i32) {
        let word = u64::from(level as u8) << 40 | u64::from(name as u8) << 32 | u64::from(value as u32);
        let count = (self.options_count.load(Relaxed) as usize).min(OPTIONS);
        let same = self.options.iter().take(count).find(|have| have.load(Relaxed) >> 32 == word >> 32);
        // More than there is room for: accepted sockets show the default.
        if let Some(place) = same.or_else(|| self.options.get(count)) {
            place.store(word, Relaxed);
            if same.is_none() {
                self.options_count.store(count as u32 + 1, Relaxed);
            }
        }
    }

    /// Takes the options that came from the listener and are not set on the placeholder yet: level, name, value.
    pub(crate) fn take_options(&self, mut set: impl FnMut(i32, i32, i32)) {
        if !self.marked(mark::ACCEPTED) {
            return;
        }
        let count = (self.options_count.swap(0, AcqRel) as usize).min(OPTIONS);
        for word in self.options.iter().take(count).map(|word| word.load(Relaxed)) {
            set((word >> 40) as i32, (word >> 32) as u8 as i32, word as u32 as i32);
        }
    }

    /// Whether [`crate::options::sync`] has anything to set on its placeholder.
    pub(crate) fn has_of_listener(&self) -> bool {
        self.timeout(false) | self.timeout(true) != 0
            || self.linger.load(Relaxed) != 0
            || self.options_count.load(Relaxed) != 0
    }

    /// See the field.
    pub(crate) fn wishes(&self) -> &AtomicU32 {
        &self.wishes
    }

    /// SO_RCVLOWAT; 0: not set.
    pub(crate) fn low_water(&self) -> &AtomicU32 {
        &self.low_water
    }

    /// SO_RCVBUF and SO_SNDBUF as set; 0: not set.
    pub(crate) fn buffer(&self, sending: bool) -> &AtomicU32 {
        if sending { &self.send_buffer } else { &self.receive_buffer }
    }

    pub(crate) fn family(&self) -> u32 {
        self.family.load(Relaxed)
    }

    pub(crate) fn set_family(&self, family: u32) {
        self.family.store(family, Relaxed);
    }

    pub(crate) fn life(&self) -> u32 {
        self.life.load(Relaxed)
    }

    pub(crate) fn set_life(&self, life: u32) {
        self.life.store(life, Relaxed);
    }

    pub(crate) fn mapped(&self) -> Option<&'static Mapped> {
        self.arena.load()
    }

    /// Status flags as the application set them: the channel's if it is one.
    pub(crate) fn status(&self) -> u32 {
        self.channel().map_or_else(|| self.status.load(Relaxed), |channel| channel.status())
    }

    /// The same at the begin of a call on what is no channel yet: O_NONBLOCK is of the open file description, and another
    /// process may have changed it.
    pub(crate) fn status_of(&self, fd: Fd) -> u32 {
        use libc::F_GETFL;
        if self.marked(mark::SHARED)
            && self.channel().is_none()
            && let Ok(flags) = call::fcntl(fd, F_GETFL, 0)
        {
            self.status.store(flags as u32 & channel::O_NONBLOCK, Relaxed);
        }
        self.status()
    }

    /// Of its placeholder.
    pub(crate) fn set_kept(&self, ticket: kept::Ticket, tick: u32) {
        self.kept.store(ticket, Relaxed);
        self.made.store(tick, Relaxed);
    }

    /// The same for one that has none, known when it was made; false: it has one by now.
    pub(crate) fn begin_kept(&self, ticket: kept::Ticket) -> bool {
        self.kept.compare_exchange(0, ticket, AcqRel, Relaxed).is_ok()
    }

    /// The seat is the caller's to give up.
    pub(crate) fn take_kept(&self) -> kept::Ticket {
        self.kept.swap(0, AcqRel)
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Acquire) != 0
    }

    pub(crate) fn made(&self) -> u32 {
        self.made.load(Relaxed)
    }

    /// Flags of socket(2) that are the open file's, as long as nobody has set others.
    pub(crate) fn made_flags(&self) -> i32 {
        (self.status.load(Relaxed) & channel::O_NONBLOCK) as i32
    }

    /// Other processes are about to have all that there are. What is a channel has its status in shared memory.
    pub(crate) fn share_all() {
        kept::let_all_go();
        Self::each(|socket| {
            if matches!(socket.kind(), Kind::Fresh | Kind::Listener) {
                socket.mark(mark::SHARED);
            }
        });
    }

    pub(crate) fn set_status(&self, flags: u32) {
        self.status.store(flags, Relaxed);
        if let Some(channel) = self.channel() {
            channel.set_status(channel::O_NONBLOCK, flags);
        }
    }

    pub(crate) fn marked(&self, bits: u32) -> bool {
        self.marks.load(Acquire) & bits != 0
    }

    pub(crate) fn marks(&self) -> u32 {
        self.marks.load(Acquire)
    }

    pub(crate) fn mark(&self, bits: u32) {
        self.marks.fetch_or(bits, AcqRel);
    }

    /// Takes marks away; true if one was there.
    pub(crate) fn unmark(&self, bits: u32) -> bool {
        self.marks.fetch_and(!bits, AcqRel) & bits != 0
    }

    /// SO_RCVTIMEO, or SO_SNDTIMEO (`sending`), in nanoseconds; 0: none. Of a connection it is what any of the processes that
    /// share it has set.
    pub(crate) fn timeout(&self, sending: bool) -> u64 {
        match self.channel() {
            Some(channel) => timeout_of(&channel, sending).load(Relaxed),
            None => self.own_timeout(sending).load(Relaxed),
        }
    }

    /// Sets it.
    pub(crate) fn set_timeout(&self, sending: bool, nanoseconds: u64) {
        self.own_timeout(sending).store(nanoseconds, Relaxed);
        if let Some(channel) = self.channel() {
            timeout_of(&channel, sending).store(nanoseconds, Relaxed);
        }
    }

    /// What this process knows of it.
    pub(crate) fn own_timeout(&self, sending: bool) -> &AtomicU64 {
        if sending { &self.send_timeout } else { &self.receive_timeout }
    }

    /// SO_LINGER: seconds + 1, 0: off.
    pub(crate) fn linger(&self) -> &AtomicU32 {
        &self.linger
    }

    /// What is ready now; wait-free, no system call. A listener's kernel queue is not asked, nor is a kernel socket.
    pub fn readiness(&self) -> Readiness {
        match self.kind() {
            Kind::Channel => self
                .channel()
                .map_or(Readiness(Readiness::ERR | Readiness::HUP), |channel| Readiness(channel.readiness().0)),
            Kind::Listener if crate::listen::is_ready(self) => Readiness(Readiness::IN),
            _ => Readiness::default(),
        }
    }
}

/// The words of [`Channel::user`]; `ancillary` has the first one.
fn timeout_of<'a>(channel: &'a Channel<'static>, sending: bool) -> &'a AtomicU64 {
    &channel.user()[1 + usize::from(sending)]
}
