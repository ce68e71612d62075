//! HTTP servers.

use super::{CLIENT_KILLED, DEATH};
use crate::compat::{Act, Fault, Place, Program, Server, until, watch};
use anyhow::Result;

pub(super) fn programs() -> Vec<Program> {
    let nginx_faults = || {
        vec![
            Fault { name: "reload", permits: &["stale"], act: Act::Do(nginx_reload) },
            CLIENT_KILLED,
            Fault { name: "worker killed", permits: DEATH, act: Act::Do(|_, server| server.kill_worker()) },
        ]
    };
    vec![
        Program {
            name: "nginx, 2 workers",
            needs: &["nginx"],
            ask: "http-files",
            clients: &[],
            start: |place| nginx(place, place.port, ""),
            faults: nginx_faults(),
        },
        Program {
            name: "nginx, 2 workers, reuseport",
            needs: &["nginx"],
            ask: "http-files",
            clients: &[],
            start: |place| nginx(place, place.port, "reuseport"),
            // Connections that wait at a worker's own listener are reset with it.
            faults: vec![
                Fault { name: "reload", permits: &["stale", "reset"], act: Act::Do(nginx_reload) },
                CLIENT_KILLED,
                Fault { name: "worker killed", permits: DEATH, act: Act::Do(|_, server| server.kill_worker()) },
            ],
        },
    ]
}

/// nginx with a master and two workers that offers the stage's files.
pub(super) fn nginx(place: &Place, port: u16, listen: &str) -> Result<Server> {
    let (host, files) = (place.stage.host, place.stage.files().display());
    let locations = format!("listen {host}:{port} {listen}; root {files};");
    nginx_with(place, &format!("nginx-{port}"), port, &locations)
}

/// The same with a server block of its own.
pub(super) fn nginx_with(place: &Place, name: &str, port: u16, block: &str) -> Result<Server> {
    let d = place.path(name);
    std::fs::create_dir_all(&d)?;
    let config = place.write(
        &format!("{name}/nginx.conf"),
        &format!(
            "user root;\nworker_processes 2;\ndaemon off;\npid {d}/pid;\nerror_log {d}/error.log;\n\
             events {{ worker_connections 1024; }}\nhttp {{\n  access_log off;\n  sendfile on;\n  client_max_body_size 0;\n\
             client_body_temp_path {d}/body;\n  proxy_temp_path {d}/t1;\n  fastcgi_temp_path {d}/t2;\n\
             uwsgi_temp_path {d}/t3;\n  scgi_temp_path {d}/t4;\n  server {{ {block} }}\n}}\n"
        ),
    )?;
    let mut command = place.stage.server("nginx");
    command.args(["-e", &format!("{d}/error.log"), "-c", &config]);
    Ok(place.serve(name, &mut command, port)?.into())
}

fn nginx_reload(_: &Place, server: &mut Server) -> Result<()> {
    let master = server.main()?.pid();
    let before = watch::children(master);
    server.signal("HUP")?;
    until("new workers", || watch::children(master).iter().filter(|child| !before.contains(child)).count() >= 2)
}
