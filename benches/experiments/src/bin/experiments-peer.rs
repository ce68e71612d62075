//! Echo servers on other stacks, for the experiments' table of peers.

use anyhow::{Context, Result};
use clap::Parser;
use monoio::io::{AsyncReadRent, AsyncWriteRentExt};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Medium, RawSocket, wait};
use smoltcp::socket::tcp;
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpCidr};
use std::os::fd::AsRawFd;

/// A socket of smoltcp serves one connection.
const SOCKETS: usize = 256;
const BUFFER: usize = 16 * 1024;

/// Runs an echo server on another stack, for the experiments' table of peers. It prints "ready"
/// once it listens, and runs until it is killed.
#[derive(Debug, Parser)]
#[command(name = "experiments-peer")]
enum Arguments {
    /// The kernel's TCP by io_uring, with one thread.
    Monoio {
        /// The listener's address.
        #[arg(value_name = "ADDRESS:PORT")]
        at: String,
    },
    /// smoltcp on an AF_PACKET socket, with one thread that polls.
    Smoltcp {
        /// The device.
        device: String,
        /// The server's own address, in addition to the kernel's.
        #[arg(value_name = "ADDRESS/PREFIX")]
        own: String,
        /// The listener's port.
        port: u16,
    },
}

fn main() -> Result<()> {
    match Arguments::parse() {
        Arguments::Monoio { at } => on_monoio(&at),
        Arguments::Smoltcp { device, own, port } => on_smoltcp(&device, &own, port),
    }
}

fn on_monoio(at: &str) -> Result<()> {
    let mut runtime = monoio::RuntimeBuilder::<monoio::IoUringDriver>::new()
        .build()
        .context("io_uring; /proc/sys/kernel/io_uring_disabled may forbid it")?;
    runtime.block_on(async {
        let listener = monoio::net::TcpListener::bind(at).with_context(|| format!("cannot listen at {at}"))?;
        println!("ready");
        loop {
            let (mut stream, _) = listener.accept().await?;
            let _ = stream.set_nodelay(true);
            monoio::spawn(async move {
                let mut buffer = Vec::with_capacity(BUFFER);
                loop {
                    let (read, full) = stream.read(buffer).await;
                    if !matches!(read, Ok(1..)) {
                        return;
                    }
                    let (written, empty) = stream.write_all(full).await;
                    if written.is_err() {
                        return;
                    }
                    buffer = empty;
                    buffer.clear();
                }
            });
        }
    })
}

fn on_smoltcp(device: &str, own: &str, port: u16) -> Result<()> {
    let own: IpCidr = own.parse().map_err(|()| anyhow::anyhow!("{own}: an address with a prefix length"))?;
    let mut wire = RawSocket::new(device, Medium::Ethernet).with_context(|| format!("AF_PACKET on {device}"))?;
    let fd = wire.as_raw_fd();
    // Its own address, in addition to the kernel's.
    let config = Config::new(HardwareAddress::Ethernet(EthernetAddress([2, 0, 0, 0, 0x5a, 9])));
    let mut interface = Interface::new(config, &mut wire, Instant::now());
    interface.update_ip_addrs(|addrs| {
        let _ = addrs.push(own);
    });
    let mut sockets = SocketSet::new(Vec::new());
    let handles: Vec<_> = (0..SOCKETS)
        .map(|_| {
            let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER]);
            let mut socket = tcp::Socket::new(buffer(), buffer());
            socket.set_nagle_enabled(false);
            sockets.add(socket)
        })
        .collect();
    println!("ready");
    let mut bytes = vec![0; BUFFER];
    loop {
        interface.poll(Instant::now(), &mut wire, &mut sockets);
        for handle in &handles {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(*handle);
            if !socket.is_open() {
                socket.listen(port).map_err(|error| anyhow::anyhow!("cannot listen at {port}: {error}"))?;
            }
            let room = socket.send_capacity() - socket.send_queue();
            if room > 0 && socket.can_recv() {
                let n = socket.recv_slice(&mut bytes[..room.min(BUFFER)]).unwrap_or(0);
                let _ = socket.send_slice(&bytes[..n]);
            } else if socket.may_send() && !socket.may_recv() && socket.send_queue() == 0 {
                socket.close();
            }
        }
        interface.poll(Instant::now(), &mut wire, &mut sockets);
        let pause = interface.poll_delay(Instant::now(), &sockets);
        wait(fd, pause)?;
    }
}
