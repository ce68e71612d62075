//! A UDP echo server, on one core.

use fastsock::Runtime;
use fastsock::local::UdpSocket;
use std::error::Error;
use std::net::SocketAddr;

/// The longest datagram of IPv4 and IPv6.
const DATAGRAM_MAX: usize = 65_535;

fn main() -> Result<(), Box<dyn Error>> {
    let at: SocketAddr = std::env::args().nth(1).as_deref().unwrap_or("127.0.0.1:7777").parse()?;
    // The devices of FASTSOCK_DEVICE. Without one, or without rights to it: kernel sockets. One core, on
    // any CPU.
    let runtime = Runtime::builder().devices_of_environment().or_kernel().cores([0]).pin(false).build()?;
    for result in runtime.run(move |_core| serve(at))? {
        result?;
    }
    Ok(())
}

async fn serve(at: SocketAddr) -> std::io::Result<()> {
    let socket = UdpSocket::bind(at).await?;
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        let (len, from) = match socket.recv_from(&mut buffer).await {
            Ok(received) => received,
            // An ICMP error that an earlier datagram caused. Others are not affected.
            Err(error) => {
                eprintln!("receive: {error}");
                continue;
            }
        };
        if let Err(error) = socket.send_to(&buffer[..len], from).await {
            eprintln!("{from}: {error}");
        }
    }
}
