//! Bodies of any length that every process can generate, and their digests.

use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use sha2::{Digest as _, Sha256};
use std::fmt::Write;

/// No multiple of a buffer size.
const CHUNK: u64 = 60_013;

/// Returns the body of `len` bytes, in pieces.
pub(crate) fn body(len: u64) -> impl Stream<Item = Bytes> + Send + Unpin + 'static {
    stream::iter(pieces(len))
}

fn pieces(len: u64) -> impl Iterator<Item = Bytes> + Send + 'static {
    let mut random = fastrand::Rng::with_seed(len);
    (0..len.div_ceil(CHUNK)).map(move |n| {
        let size = CHUNK.min(len - n * CHUNK) as usize;
        let mut piece = vec![0; size];
        random.fill(&mut piece);
        piece.into()
    })
}

/// Returns the SHA-256 of the body of `len` bytes.
pub(crate) fn digest(len: u64) -> String {
    let mut digest = Digest::default();
    pieces(len).for_each(|piece| digest.add(&piece));
    digest.end()
}

/// The digest of an echo.
#[derive(Default)]
pub(crate) struct Digest(Sha256);

impl Digest {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(crate) fn end(self) -> String {
        self.0.finalize().iter().fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Of a stream.
    pub(crate) async fn of<E>(mut stream: impl Stream<Item = Result<Bytes, E>> + Unpin) -> Result<String, E> {
        let mut digest = Self::default();
        while let Some(piece) = stream.next().await {
            digest.add(&piece?);
        }
        Ok(digest.end())
    }
}
