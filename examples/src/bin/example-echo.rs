//! A TCP echo server. Each core accepts and serves the connections that its queue receives. SIGTERM
//! ends it.

use fastsock::local::{TcpListener, TcpStream};
use fastsock::{CoreCtx, Runtime};
use std::error::Error;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

/// Time for open connections to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Box<dyn Error>> {
    let at: SocketAddr = std::env::args().nth(1).as_deref().unwrap_or("127.0.0.1:7777").parse()?;
    // The devices of FASTSOCK_DEVICE. Without one, or without rights to it: kernel sockets.
    let runtime = Runtime::builder().devices_of_environment().or_kernel().build()?;
    // Runs once on each core. All cores listen at the same address.
    for result in runtime.run(move |core| serve(core, at))? {
        result?;
    }
    Ok(())
}

async fn serve(core: CoreCtx, at: SocketAddr) -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    fastsock::spawn_local(async move {
        terminate.recv().await;
        // Ends the listeners of all cores.
        core.handle().shutdown(GRACE);
    });
    let listener = TcpListener::bind(at).await?;
    loop {
        match listener.accept().await {
            // Not `tokio::spawn`: the stream stays on this core and is not `Send`.
            Ok((stream, peer)) => drop(fastsock::spawn_local(async move {
                if let Err(error) = echo(stream).await {
                    eprintln!("{peer}: {error}");
                }
            })),
            // The runtime shuts down.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return Ok(()),
            // Too many open files, or a connection that ended in the queue: the listener goes on.
            Err(error) => {
                eprintln!("accept: {error}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    // Each small response is sent at once.
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 16 << 10];
    loop {
        match stream.read(&mut buffer).await? {
            // The peer has sent FIN. Ours follows when the stream is dropped.
            0 => return Ok(()),
            len => stream.write_all(&buffer[..len]).await?,
        }
    }
}
