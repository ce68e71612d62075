//! Calls of applications.

mod accept;
mod connect;
mod datagram;
mod datagram_batch;
mod fast_open;
mod forward;
mod info;
mod receive;
mod stream;
mod stream_options;
