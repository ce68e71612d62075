//! Socket calls of applications: accept, connect, send, receive, options and TCP_INFO.

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
