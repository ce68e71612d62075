//! Exim and vsftpd: a process, or several, for each connection.

use super::{CLIENT_KILLED, DEATH, fault, restart};
use crate::compat::{Act, Place, Program, Server};
use crate::unmodified::stage::finish;
use anyhow::Result;
use std::process::Command;

pub(super) fn programs() -> Vec<Program> {
    vec![
        Program::new(
            "Exim",
            &["exim4"],
            "smtp",
            exim,
            // No SIGHUP: Exim executes itself, with more rights than its user has, and the loader
            // ignores LD_PRELOAD.
            vec![
                CLIENT_KILLED,
                fault("process of a connection killed", DEATH, Act::Do(|_, server| server.kill_worker())),
            ],
        )
        .carried("a process per connection"),
        Program::new(
            "vsftpd, passive and active",
            &["vsftpd"],
            "ftp",
            vsftpd,
            vec![
                CLIENT_KILLED,
                fault("killed and started again", DEATH, Act::Restart(restart!(vsftpd))),
                fault("process of a connection killed", DEATH, Act::Do(|_, server| server.kill_worker())),
            ],
        )
        .carried("a process per connection"),
    ]
}

/// Accepts every message and discards it.
fn exim(place: &Place) -> Result<Server> {
    let d = place.dir.display();
    let config = place.write(
        "exim.conf",
        &format!(
            "primary_hostname = lab\nlocal_interfaces = {}\ndaemon_smtp_ports = {}\nspool_directory = {d}/spool\n\
             log_file_path = {d}/%slog\npid_file_path = {d}/pid\nsmtp_accept_max = 200\nsmtp_accept_max_per_host = 200\n\
             smtp_accept_max_per_connection = 100000\nsmtp_accept_queue_per_connection = 0\n\
             host_lookup =\nrfc1413_query_timeout = 0s\nhelo_allow_chars = _\nkeep_environment = LD_PRELOAD : FASTSOCK_CONTROL\n\
             acl_smtp_rcpt = all\nacl_smtp_data = none\nbegin acl\nall:\n  accept\nnone:\n  discard\n",
            place.stage.host, place.port
        ),
    )?;
    std::fs::create_dir_all(place.dir.join("spool"))?;
    finish(Command::new("chown").args(["-R", "Debian-exim:Debian-exim"]).arg(&place.dir), "chown")?;
    finish(Command::new("chown").arg("root:root").arg(&config), "chown")?;
    let mut command = place.stage.server("exim4");
    command.args(["-bdf", "-C", &config]);
    Ok(place.serve("exim", &mut command, place.port)?.into())
}

fn vsftpd(place: &Place) -> Result<Server> {
    std::fs::create_dir_all(place.dir.join("empty"))?;
    let config = place.write(
        "vsftpd.conf",
        &format!(
            "listen=YES\nlisten_address={}\nlisten_port={}\nbackground=NO\nanonymous_enable=YES\nanon_root={}\n\
             local_enable=NO\nwrite_enable=NO\nsecure_chroot_dir={}\nftp_username=bin\nconnect_from_port_20=NO\n\
             pasv_min_port=20000\npasv_max_port=29999\nxferlog_enable=NO\n",
            place.stage.host,
            place.port,
            place.stage.files().display(),
            place.path("empty")
        ),
    )?;
    let mut command = place.stage.server("vsftpd");
    command.arg(config);
    Ok(place.serve("vsftpd", &mut command, place.port)?.into())
}
