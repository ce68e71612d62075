//! Options of hyper.

use crate::config::Timeouts;
use crate::http1::head::LINES_MAX;
use fs_stacks::http::ServeOptions;
use hyper::server::conn::http1::Builder;
use hyper_util::rt::TokioTimer;

/// Limit of hyper's buffers per direction and connection: a head must fit, and a body waits.
pub(super) const BUFFER_MAX: usize = 64 << 10;

/// Returns the options for client connections.
pub(crate) fn serve_options(timeouts: &Timeouts) -> ServeOptions {
    let mut builder = Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(timeouts.idle).max_buf_size(BUFFER_MAX).max_headers(LINES_MAX);
    // A client that ends its stream behind a request gets the response, as on the lean path.
    builder.half_close(true);
    ServeOptions { builder, idle_timeout: Some(timeouts.idle), ..ServeOptions::default() }
}
