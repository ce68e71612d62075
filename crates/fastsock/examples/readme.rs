//! README's program: an echo server.

use fastsock::{Runtime, local::TcpListener};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A core for each queue of the device; the kernel's sockets where there is none, or no right to it.
    let runtime = Runtime::builder().device("eth0").or_kernel().build()?;
    // Runs once on each core; each has a listener of its own on the same port.
    runtime.run(|_core| async {
        let listener = TcpListener::bind("0.0.0.0:7777").await.expect("port 7777");
        while let Ok((mut stream, _peer)) = listener.accept().await {
            fastsock::spawn_local(async move {
                let (mut reader, mut writer) = stream.split();
                tokio::io::copy(&mut reader, &mut writer).await
            });
        }
    })?;
    Ok(())
}
