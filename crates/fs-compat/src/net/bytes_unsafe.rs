//! Reads from a socket into the ring of a connection.
#![allow(unsafe_code)]

use rtrb::Producer;
use tokio::io::ReadBuf;

/// Lets `f` write into the first contiguous free bytes of the ring, and hands the filled part to the
/// reader.
pub(super) fn fill<R>(ring: &mut Producer<u8>, f: impl FnOnce(&mut ReadBuf<'_>) -> R) -> R {
    let free = ring.slots();
    let Ok(mut chunk) = ring.write_chunk_uninit(free) else {
        // Not reached: the reader can only free more.
        return f(&mut ReadBuf::new(&mut []));
    };
    let (together, _) = chunk.as_mut_slices();
    let (start, most) = (together.as_ptr(), together.len());
    let mut buf = ReadBuf::uninit(together);
    let answer = f(&mut buf);
    // `f` may have replaced the buffer.
    assert!(std::ptr::eq(buf.filled().as_ptr(), start.cast()) && buf.filled().len() <= most, "a strange buffer");
    let filled = buf.filled().len();
    // SAFETY: the first `filled` bytes of the buffer are initialised (ReadBuf), and they are the
    // chunk's first.
    unsafe { chunk.commit(filled) };
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use rtrb::RingBuffer;

    #[test]
    fn bytes_keep_their_order_across_the_wrap() {
        let (mut writer, mut reader) = RingBuffer::new(8);
        let mut put = |bytes: &[u8]| {
            fill(&mut writer, |buf| {
                let n = bytes.len().min(buf.remaining());
                buf.put_slice(&bytes[..n]);
                n
            })
        };
        assert_eq!(put(b"abcdef"), 6);
        reader.read_chunk(5).unwrap().commit_all();
        // Up to the end of the memory, then from its beginning.
        assert_eq!((put(b"ghij"), put(b"ijklmnop"), put(b"x")), (2, 5, 0));
        let chunk = reader.read_chunk(8).unwrap();
        assert_eq!(chunk.as_slices(), (&b"fgh"[..], &b"ijklm"[..]));
    }

    #[test]
    #[should_panic(expected = "a strange buffer")]
    fn buffer_cannot_be_replaced() {
        let (mut writer, _reader) = RingBuffer::new(8);
        // An empty one has no memory to leak.
        fill(&mut writer, |buf| *buf = ReadBuf::new(&mut []));
    }
}
