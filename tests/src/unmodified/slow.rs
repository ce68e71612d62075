//! A client that reads a file slowly, to observe events during its connection.

use super::Stage;
use crate::process::Proc;
use anyhow::{Result, ensure};
use std::process::Command;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// Reads 10 MiB in at least four seconds, a little at a time.
const TAKES: &str = "import socket, sys, time
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
s.settimeout(50)
s.connect((sys.argv[1], int(sys.argv[2])))
s.sendall(b'GET /10m HTTP/1.0\\r\\n\\r\\n')
answer = s.recv(1)
print('begun', flush=True)
while piece := s.recv(65536):
    answer += piece
    time.sleep(len(piece) / 2500000)
head, _, body = answer.partition(b'\\r\\n\\r\\n')
print(head.split()[1].decode(), len(body))
";

/// It runs.
pub struct Slow(Proc);

impl Slow {
    /// Asks a server of the stage for its 10 MiB; `python` is [`Stage::client`] or
    /// [`Stage::endless_client`] of python3. It has begun, and not ended, when this returns.
    pub fn start(stage: &Stage<'_>, name: &str, mut python: Command, port: u16) -> Result<Slow> {
        python.args(["-c", TAKES, stage.host, &port.to_string()]);
        let mut client = stage.lab.spawn(name, &mut python)?;
        let log = client.log_path().to_owned();
        client
            .wait_for("answer", PATIENCE, || std::fs::read_to_string(&log).is_ok_and(|said| said.contains("begun")))?;
        ensure!(client.ended()?.is_none(), "{name} was too fast: {}", client.log());
        Ok(Slow(client))
    }

    /// Checks that everything arrived, and nothing else.
    pub fn whole(mut self) -> Result<()> {
        let status = self.0.wait_end(PATIENCE)?;
        let said = self.0.log();
        ensure!(status.success() && said.trim() == "begun\n200 10485760", "{status}: {said}");
        Ok(())
    }
}
