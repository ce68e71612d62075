//! Several datagrams in one call.

use super::*;

impl UdpSocket {
    /// Sends `buf` as datagrams of `size` bytes (UDP_SEGMENT), the last one with the rest: all of
    /// them or none. `target: None` is the peer that was set. They are not fragmented.
    pub fn try_send_segments(&self, buf: &[u8], size: usize, target: Option<SocketAddr>) -> io::Result<usize> {
        self.try_send_segments_marked(buf, size, target, None)
    }

    /// Like [`UdpSocket::try_send_segments`], with an IP_TOS or IPV6_TCLASS for these datagrams only
    /// (as a control message of sendmsg), including the ECN bits. `None` uses the socket's.
    pub fn try_send_segments_marked(
        &self,
        buf: &[u8],
        size: usize,
        target: Option<SocketAddr>,
        tos: Option<u8>,
    ) -> io::Result<usize> {
        let sent = match self.only_kernel(target) {
            None => self.call(|stack, id| {
                check_leaves(stack, id, target)?;
                stack.udp_send_segments_marked(id, buf, size, target, tos)
            }),
            Some(_) => Err(to_io_error(Error::InvalidInput)),
        };
        let Err(refused) = &sent else { return sent };
        // A caller that asks for segments prefers a lost datagram to a fragmented one.
        let way = self.other_way(refused, target).filter(|_| refused.raw_os_error() != Some(libc::EMSGSIZE));
        let Some((kernel, target)) = way else { return sent };
        let mut all = buf.chunks(size.max(1));
        kernel.try_send_whole(all.next().unwrap_or_default(), target)?;
        // A datagram for which the kernel has no room is lost, as on the network.
        all.for_each(|datagram| drop(kernel.try_send_whole(datagram, target)));
        Ok(buf.len())
    }

    /// Sends datagrams until one fails (sendmmsg) and returns how many were sent. Returns an error
    /// only if the first one fails.
    pub fn try_send_batch(&self, datagrams: &[(&[u8], Option<SocketAddr>)]) -> io::Result<usize> {
        let ours = self.call(|stack, id| {
            let leave = datagrams.iter().take_while(|(_, to)| check_leaves(stack, id, *to).is_ok()).count();
            match (leave, datagrams.first()) {
                (0, Some(_)) => Err(Error::InvalidInput),
                _ if self.elsewhere.get() => Err(Error::InvalidInput),
                _ => stack.udp_send_batch(id, &datagrams[..leave]),
            }
        });
        match (ours, datagrams.first()) {
            (Err(refused), Some((buf, target))) if self.other_way(&refused, *target).is_some() => {
                self.send_now(buf, *target).map(|_| 1)
            }
            (ours, _) => ours,
        }
    }

    /// Receives queued datagrams, one into each buffer (recvmmsg): at least one, or `WouldBlock`.
    /// Adds an entry to `metas` for each.
    pub fn try_recv_batch(&self, bufs: &mut [&mut [u8]], metas: &mut Vec<UdpMeta>) -> io::Result<usize> {
        self.receive_by_turns(
            &mut (bufs, metas),
            false,
            |(bufs, metas)| self.call(|stack, id| stack.udp_recv_batch(id, bufs, metas)),
            |(bufs, metas), kernel| {
                let Some(buf) = bufs.first_mut() else { return Err(io::ErrorKind::WouldBlock.into()) };
                metas.push(self.receive_with_meta(kernel, buf)?);
                Ok(1)
            },
        )
    }

    /// Receives as many datagrams of one sender, size and type of service as fit into `buf`
    /// (UDP_GRO). Returns the description of all bytes, and the size of each datagram (the last may
    /// be shorter).
    pub fn try_recv_segments(&self, buf: &mut [u8]) -> io::Result<(UdpMeta, usize)> {
        self.receive_by_turns(
            buf,
            false,
            |buf| self.call(|stack, id| stack.udp_recv_segments(id, buf)),
            |buf, kernel| self.receive_with_meta(kernel, buf).map(|meta| (meta, meta.len)),
        )
    }

    fn receive_with_meta(&self, kernel: &KernelSide, buf: &mut [u8]) -> io::Result<UdpMeta> {
        let (len, from, tos) = kernel.try_recv(buf, false, self.peer_addr().ok())?;
        let mut meta = UdpMeta::new(len, from, self.local_addr()?);
        meta.tos = tos;
        Ok(meta)
    }
}
