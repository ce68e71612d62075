//! The messages of processes.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use fs_carrier::exact::Carried;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{Client, MESSAGES_PER_TURN, POSTPONED, Report, Service};
use crate::closing::User;
use crate::counters;
use crate::facts::Seen;
use crate::inbox::Message;
use crate::listing;
use crate::message::{Answer, Reason};
use crate::registry::{Again, Key, Outcome};

impl Service {
    /// Reads a client's messages. Disconnects a client that breaks the protocol.
    pub(super) fn serve(&mut self, client: u64, events: EventFlags) {
        let Some(Client { outbox, user, is_paused, .. }) = self.clients.get(&client) else { return };
        if user.is_stuck() || (*is_paused && events.contains(EventFlags::HUP)) {
            return self.drop_client(client);
        }
        if *is_paused {
            return self.watch(client);
        }
        let user = Arc::clone(user);
        let mut messages = Vec::new();
        while messages.len() < MESSAGES_PER_TURN && !messages.last().is_some_and(Message::is_last) {
            match Message::receive(outbox, &user) {
                Ok(message) => messages.push(message),
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => return self.drop_client(client),
            }
        }
        if !messages.iter().any(|message| matches!(message, Message::Offer { .. })) || !user.may_ask() {
            return self.handle_messages(client, messages);
        }
        if let Some(Client { is_paused, .. }) = self.clients.get_mut(&client) {
            *is_paused = true;
        }
        let is_asked = self.ask(&user, move || {
            for message in &mut messages {
                if let Message::Offer { carried, fd, seen, .. } = message {
                    *seen = Some(Seen::read(fd.as_fd(), *carried));
                }
            }
            Report::Offers(client, messages)
        });
        if !is_asked {
            self.drop_client(client);
        }
    }

    /// Runs `job`, which may wait, in a thread of this user. Returns false if there can be no thread.
    fn ask(&self, user: &Arc<User>, job: impl FnOnce() -> Report + Send + 'static) -> bool {
        let (reports, shared) = (self.reports.clone(), Arc::clone(&self.shared));
        user.ask(move || {
            // If the service has ended, the descriptors are closed.
            let _unheard = reports.send(job());
            shared.wake();
        })
    }

    /// Handles what threads have read.
    pub(super) fn resume(&mut self) {
        let mut count = [0; 8];
        let _empty = rustix::io::read(&self.shared.wake, &mut count);
        while let Ok(report) = self.inbox.try_recv() {
            match report {
                Report::Offers(client, messages) => {
                    if let Some(Client { is_paused, .. }) = self.clients.get_mut(&client) {
                        *is_paused = false;
                        self.handle_messages(client, messages);
                        self.watch(client);
                    }
                }
                Report::Again(again, seen) => self.seen_again(again, seen),
            }
        }
    }

    fn seen_again(&mut self, again: Again, seen: Result<Seen, Reason>) {
        for (key, outcome) in self.registry.seen_again(again, seen, Instant::now()) {
            self.settle(key, outcome);
        }
    }

    pub(super) fn settle(&mut self, key: Key, outcome: Outcome) {
        match outcome {
            Outcome::Waits => {}
            // The library offers no TCP socket to wait for the answers to its earlier offers.
            Outcome::Refused(Reason::NotTcp)
                if self.registry.is_deciding(key.client) && self.postponed.len() < POSTPONED =>
            {
                self.postponed.push(key);
            }
            Outcome::Refused(reason) => self.refuse(key, reason),
            Outcome::Matched(other) => self.connect([other, key]),
            Outcome::Again(again, socket) => {
                let user = Arc::clone(socket.user());
                let job = move || {
                    let seen = Seen::read(socket.as_fd(), Carried::default());
                    // If its offer has ended: before the report, because the client may wait for that.
                    if let Some(socket) = Arc::into_inner(socket) {
                        socket.close_quickly();
                    }
                    Report::Again(again, seen)
                };
                if !user.may_ask() || !self.ask(&user, job) {
                    self.seen_again(again, Err(Reason::Limit));
                }
            }
        }
    }

    fn handle_messages(&mut self, client: u64, messages: Vec<Message>) {
        for message in messages {
            if !self.clients.contains_key(&client) {
                return;
            }
            match message {
                Message::Offer { number, fd, seen, .. } => {
                    let key = Key { client, number };
                    let seen = seen.unwrap_or(Err(Reason::Limit));
                    let outcome = self.registry.offer(key, fd, seen, Instant::now());
                    self.settle(key, outcome);
                }
                Message::Lost(number) => self.refuse(Key { client, number }, Reason::Failed),
                Message::Forget(number) => {
                    // Every offer gets one answer, because the client counts them.
                    if self.registry.forget(Key { client, number }) {
                        let _sent = self.answer(client, Answer::Refused { number, reason: Reason::NoPeer }, None);
                    } else if let Some(Client { outbox, .. }) = self.clients.get_mut(&client) {
                        outbox.withdraw(number);
                    }
                }
                Message::List { after } => self.list(client, after),
                Message::Count => self.count(client),
                Message::Device => self.hand_over(client),
                Message::End => self.drop_client(client),
                Message::Broken => self.cut_off(client),
            }
        }
    }

    /// Hands a client's connection over to the broker, or closes it if there is no broker.
    fn hand_over(&mut self, client: u64) {
        if self.broker.is_none() {
            return self.drop_client(client);
        }
        let process = self.registry.process(client);
        let outbox = self.take_client(client);
        let (Some(broker), Some(process), Some(outbox)) = (&self.broker, process, outbox) else { return };
        if let Some(socket) = outbox.into_socket().into_owned() {
            broker(socket, process);
        }
    }

    /// Sends a record of the rows that a client may see.
    fn list(&mut self, client: u64, after: u64) {
        let Some(own) = self.registry.user(client) else { return };
        let is_all = own == 0 || own == geteuid().as_raw();
        let (rows, next) = self.registry.rows(after, Instant::now(), |uid| is_all || uid == own);
        // After an error the client is disconnected.
        let _sent = self.send(client, &listing::record(&rows, next));
    }

    fn count(&mut self, client: u64) {
        let counters = self.registry.counters(Instant::now());
        // After an error the client is disconnected.
        let _sent = self.send(client, &counters::record(&counters));
    }
}
