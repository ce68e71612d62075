//! UDP in batches: many datagrams in one call, and one buffer split into datagrams of one size
//! (Linux's `sendmmsg`, `recvmmsg`, UDP_SEGMENT and UDP_GRO).

use crate::error::Error;
use crate::frame::FramePool;
use crate::socket::event::UdpId;
use crate::socket::udp::{SEGMENTS_MAX, UdpMeta};
use crate::stack::Stack;
use core::net::SocketAddr;

impl<P: FramePool> Stack<P> {
    /// Sends datagrams until one fails. Returns how many were sent, or an error if the first one
    /// failed.
    pub fn udp_send_batch(&mut self, id: UdpId, datagrams: &[(&[u8], Option<SocketAddr>)]) -> Result<usize, Error> {
        for (sent, (buf, to)) in datagrams.iter().enumerate() {
            if let Err(error) = self.udp_send(id, buf, *to) {
                return if sent > 0 { Ok(sent) } else { Err(error) };
            }
        }
        Ok(datagrams.len())
    }

    /// Sends `buf` as datagrams of `size` bytes, with the rest in the last one: all of them or
    /// none. Returns `buf.len()`.
    ///
    /// # Errors
    /// `InvalidInput` if `size` is 0, or for more than `SEGMENTS_MAX` datagrams; `MessageSize` if
    /// `size` does not fit the path.
    pub fn udp_send_segments(
        &mut self,
        id: UdpId,
        buf: &[u8],
        size: usize,
        to: Option<SocketAddr>,
    ) -> Result<usize, Error> {
        self.udp_send_segments_marked(id, buf, size, to, None)
    }

    /// Like [`Stack::udp_send_segments`], with the type of service or traffic class of these
    /// datagrams alone (sendmsg with IP_TOS or IPV6_TCLASS), including ECN bits. `None` uses the
    /// socket's.
    pub fn udp_send_segments_marked(
        &mut self,
        id: UdpId,
        buf: &[u8],
        size: usize,
        to: Option<SocketAddr>,
        tos: Option<u8>,
    ) -> Result<usize, Error> {
        if size == 0 || buf.len().div_ceil(size) > SEGMENTS_MAX {
            return Err(Error::InvalidInput);
        }
        let mut way = self.udp_way(id, to)?;
        way.marks.1 = tos.unwrap_or(way.marks.1);
        self.udp_send_by(&way, buf.chunks(size))?;
        Ok(buf.len())
    }

    /// Reads datagrams, one into each buffer, until no datagram or buffer is left. `metas` gets one
    /// entry for each. Returns their number, at least one; errors as `udp_recv`.
    pub fn udp_recv_batch(
        &mut self,
        id: UdpId,
        bufs: &mut [&mut [u8]],
        metas: &mut alloc::vec::Vec<UdpMeta>,
    ) -> Result<usize, Error> {
        for (done, buf) in bufs.iter_mut().enumerate() {
            match self.udp_recv(id, buf, false) {
                Ok(meta) => metas.push(meta),
                Err(error) => return if done > 0 { Ok(done) } else { Err(error) },
            }
        }
        Ok(bufs.len())
    }

    /// Reads consecutive datagrams of one sender, type of service and size into `buf`, as many as
    /// fit; the last may be shorter. `UdpMeta::len` is their total length, the second value the
    /// size of each.
    pub fn udp_recv_segments(&mut self, id: UdpId, buf: &mut [u8]) -> Result<(UdpMeta, usize), Error> {
        let mut meta = self.udp_recv(id, buf, false)?;
        let size = meta.len;
        if size == 0 || size > buf.len() {
            return Ok((meta, size));
        }
        while let Some(next) = self.udp.next_meta(id) {
            if (next.from, next.to, next.tos) != (meta.from, meta.to, meta.tos)
                || next.len > size
                || next.len == 0
                || meta.len + next.len > buf.len()
            {
                break;
            }
            let Ok(next) = self.udp_recv(id, &mut buf[meta.len..], false) else { break };
            meta.len += next.len;
            if next.len < size {
                break;
            }
        }
        Ok((meta, size))
    }
}
