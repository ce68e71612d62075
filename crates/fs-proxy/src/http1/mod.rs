//! HTTP/1.1 without hyper, for its common case.
//!
//! One task per client connection serves both sides. A head is parsed in the buffer into which it
//! was read, edited, and sent with one write. A body passes through the core's scratch buffer. A
//! request needs no task, map or timer, and one allocation: its own state, so that an idle connection
//! has none.
//!
//! Only certainly plain requests are served here. An odd request is not consumed: the connection
//! goes to `odd`, on hyper, with the bytes that were read, and comes back after the response.
//!
//! | file | content |
//! |---|---|
//! | `head`, `target`, `body` | pure functions: bytes in, a verdict and bytes out |
//! | `waiting`, `exchange`, `io` | the only modules that poll: between requests, and during one |
//! | `requests` | a connection's requests: servers, retries, refusals, the log |
//! | `client` | the state of a connection and of its request |
//! | `pool` | connections to a server that wait for the next request |
//! | `clock` | deadlines without timers |
//! | `buffers` | bytes that must be kept, counted |
//! | `per_core` | the clock and the buffers of a core |

pub mod body;
pub(crate) mod buffers;
mod client;
pub(crate) mod clock;
mod exchange;
pub mod head;
mod io;
pub(crate) mod per_core;
pub(crate) mod pool;
mod requests;
pub mod target;
mod waiting;

use crate::clients::Connection;
use crate::odd;
use crate::site::Site;
use crate::socket::{From, Socket};
use bytes::Bytes;
use client::Client;
use fs_stacks::Stream;
use std::rc::Rc;

/// Serves a connection that `socket` accepted, until its end.
///
/// No `async fn`: each of its arguments has two places in the future's memory.
pub(crate) fn serve<'a>(
    site: &'a Rc<Site>,
    socket: Rc<Socket>,
    from: From,
    stream: Stream,
    connection: &'a Rc<Connection>,
) -> impl Future<Output = ()> + use<'a> {
    let mut client = Client::new(site, connection, from, stream);
    async move {
        loop {
            let prefix = match site.is_lean(client.from.listener) {
                true => client.serve().await,
                false => Some(Bytes::new()),
            };
            let Some(prefix) = prefix else { return };
            let (from, stream) = (client.from, client.stream);
            // Boxed, because it is far larger than the common case.
            let served = Box::pin(odd::serve(site.clone(), socket.clone(), from, stream, prefix, connection));
            let Some(back) = served.await else { return };
            client = Client::new(site, connection, from, back);
        }
    }
}
