//! UDP echo.

use fs_stacks::Core;
use std::net::SocketAddr;

/// Largest datagram.
const DATAGRAM_MAX: usize = 65_535;

/// Echoes datagrams until the stop, on one core: there are no connections to distribute.
pub(crate) async fn serve(core: Core, addr: SocketAddr) -> anyhow::Result<()> {
    anyhow::ensure!(core.count == 1, "--udp runs on one core, not on {}", core.count);
    let socket = core.bind_udp(addr).await?;
    crate::announce(&core, socket.local_addr()?);
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                // May be an ICMP error of an earlier datagram, which does not affect others.
                Err(error) => tracing::debug!("receive: {error}"),
                Ok((len, from)) => {
                    if let Err(error) = socket.send_to(&buffer[..len], from).await {
                        tracing::debug!("{from}: {error}");
                    }
                }
            },
            () = core.stop_requested() => return Ok(()),
        }
    }
}
