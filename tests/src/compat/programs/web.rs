//! HTTP servers that offer files.

use super::{CLIENT_KILLED, DEATH, fault, restart};
use crate::compat::{Act, Fault, Place, Program, Server, until, watch};
use anyhow::Result;

pub(super) fn programs() -> Vec<Program> {
    let reload = |permits| Fault { name: "reload", permits, act: Act::Do(nginx_reload) };
    let graceful = || Fault { name: "graceful restart", permits: &["stale"], act: Act::Do(apache_graceful) };
    vec![
        Program::new(
            "nginx, 2 workers",
            &["nginx"],
            "http-files",
            |place| nginx(place, place.port, ""),
            vec![reload(&["stale"]), CLIENT_KILLED, worker_killed()],
        ),
        Program::new(
            "nginx, 2 workers, reuseport",
            &["nginx"],
            "http-files",
            |place| nginx(place, place.port, "reuseport"),
            // Connections that wait at a worker's own listener are reset with it.
            vec![reload(&["stale", "reset"]), CLIENT_KILLED, worker_killed()],
        ),
        Program::new(
            "Apache, prefork",
            &["apache2"],
            "http-files",
            |place| apache(place, "prefork"),
            vec![graceful(), CLIENT_KILLED, worker_killed()],
        ),
        Program::new(
            "Apache, event",
            &["apache2"],
            "http-files",
            |place| apache(place, "event"),
            vec![graceful(), CLIENT_KILLED, worker_killed()],
        ),
        Program::new(
            "lighttpd, 2 workers",
            &["lighttpd"],
            "http-files",
            lighttpd,
            vec![
                worker_killed(),
                CLIENT_KILLED,
                fault("killed and started again", DEATH, Act::Restart(restart!(lighttpd))),
            ],
        ),
    ]
}

pub(super) fn worker_killed() -> Fault {
    fault("worker killed", DEATH, Act::Do(|_, server| server.kill_worker()))
}

/// nginx with a master and two workers that serves the stage's files.
pub(super) fn nginx(place: &Place, port: u16, listen: &str) -> Result<Server> {
    let (host, files) = (place.stage.host, place.stage.files().display());
    let locations = format!("listen {host}:{port} {listen}; root {files};");
    nginx_with(place, &format!("nginx-{port}"), port, &locations)
}

/// Like [`nginx`], with its own server block.
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

/// Apache with one of its models; workers end after a number of connections, too.
fn apache(place: &Place, model: &str) -> Result<Server> {
    let (host, port, d) = (place.stage.host, place.port, place.dir.display());
    let modules = "/usr/lib/apache2/modules";
    let size = if model == "prefork" {
        "StartServers 4\nMaxRequestWorkers 40\nMinSpareServers 4\nMaxSpareServers 20\n"
    } else {
        "StartServers 2\nThreadsPerChild 16\nMaxRequestWorkers 64\nMinSpareThreads 16\nMaxSpareThreads 48\n"
    };
    let config = place.write(
        "apache.conf",
        &format!(
            "ServerRoot {d}\nServerName lab\nListen {host}:{port}\nPidFile {d}/pid\nErrorLog {d}/error.log\nDefaultRuntimeDir {d}\n\
             LoadModule mpm_{model}_module {modules}/mod_mpm_{model}.so\n\
             LoadModule authz_core_module {modules}/mod_authz_core.so\n{size}MaxConnectionsPerChild 2000\n\
             User www-data\nGroup www-data\nKeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 5\n\
             DocumentRoot {files}\n<Directory {files}>\nRequire all granted\n</Directory>\n",
            files = place.stage.files().display()
        ),
    )?;
    let mut command = place.stage.server("apache2");
    command.args(["-DFOREGROUND", "-f", &config]);
    Ok(place.serve("apache", &mut command, port)?.into())
}

fn apache_graceful(_: &Place, server: &mut Server) -> Result<()> {
    let parent = server.main()?.pid();
    let before = watch::children(parent);
    server.signal("USR1")?;
    until("new workers", || watch::children(parent).iter().any(|child| !before.contains(child)))
}

fn lighttpd(place: &Place) -> Result<Server> {
    let config = place.write(
        "lighttpd.conf",
        &format!(
            "server.document-root = \"{}\"\nserver.bind = \"{}\"\nserver.port = {}\nserver.max-worker = 2\n\
             server.max-keep-alive-requests = 1000\nserver.errorlog = \"{}\"\n",
            place.stage.files().display(),
            place.stage.host,
            place.port,
            place.path("error.log")
        ),
    )?;
    let mut command = place.stage.server("lighttpd");
    command.args(["-D", "-f", &config]);
    Ok(place.serve("lighttpd", &mut command, place.port)?.into())
}
