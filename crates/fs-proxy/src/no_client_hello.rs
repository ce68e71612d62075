//! Replaces `client_hello` in a build without the feature `tls`, in which no route needs it.

use fs_stacks::Stream;
use std::io;

pub(crate) async fn read(_stream: &mut Stream) -> io::Result<(Vec<u8>, Option<String>)> {
    Ok((Vec::new(), None))
}
