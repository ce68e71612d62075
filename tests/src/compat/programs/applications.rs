//! Application servers, each echoing its requests, and clients in other languages.

use super::web::{nginx, nginx_with, worker_killed};
use super::{CLIENT_KILLED, DEATH, fault, restart};
use crate::apps::{target_dir, workspace};
use crate::compat::{Act, Place, Program, Server, kill_child, signal, until, watch};
use crate::unmodified::programs::java_classes;
use crate::unmodified::stage::finish;
use anyhow::{Context, Result};
use std::process::Command;

pub(super) fn programs() -> Vec<Program> {
    let replaced = || fault("workers replaced", &["stale"], Act::Do(replace_workers));
    let reload = |permits| fault("reload", permits, Act::Do(hang_up));
    vec![
        Program::new(
            "php-fpm behind nginx",
            &["nginx", "/etc/php"],
            "http-echo",
            php,
            vec![
                fault("php-fpm reloads", &["answer 502", "answer 504"], Act::Do(php_reload)),
                CLIENT_KILLED,
                fault("php-fpm's worker killed", &["answer 502", "answer 504"], Act::Do(php_kill)),
            ],
        ),
        Program::new(
            "gunicorn, 3 workers",
            &["gunicorn"],
            "http-echo",
            gunicorn,
            vec![reload(DEATH), CLIENT_KILLED, worker_killed()],
        )
        .carried("one request per connection"),
        Program::new(
            "uvicorn, 2 workers",
            &["/usr/lib/python3/dist-packages/uvicorn"],
            "http-echo",
            uvicorn,
            vec![CLIENT_KILLED, fault("killed and started again", DEATH, Act::Restart(restart!(uvicorn)))],
        ),
        Program {
            client: python_client,
            ..Program::new(
                "Python's socketserver, 3 processes, and Python's client",
                &["/usr/bin/python3"],
                "",
                prefork,
                vec![reload(DEATH), CLIENT_KILLED, worker_killed()],
            )
            .carried("one request per connection")
        },
        Program::new(
            "Node cluster, the primary accepts",
            &["node"],
            "http-echo",
            |place| cluster(place, "rr"),
            // A connection that is being passed to a killed worker hangs on the kernel as well.
            vec![replaced(), CLIENT_KILLED],
        )
        .carried("passes sockets on"),
        Program::new(
            "Node cluster, the workers accept",
            &["node"],
            "http-echo",
            |place| cluster(place, "none"),
            vec![replaced(), CLIENT_KILLED, worker_killed()],
        ),
        Program {
            client: go_client,
            carried: Some("Go calls no C library"),
            ..Program::new(
                "Go's client, nginx",
                &["nginx", "go"],
                "",
                |place| nginx(place, place.port, ""),
                vec![reload(&["closed", "stale"]), CLIENT_KILLED, worker_killed()],
            )
        },
        Program {
            client: java_client,
            ..Program::new(
                "Java's client, nginx",
                &["nginx", "java", "javac"],
                "",
                |place| nginx(place, place.port, ""),
                vec![reload(&["closed", "stale"]), CLIENT_KILLED, worker_killed()],
            )
        },
    ]
}

/// Its name has the version in it.
fn php_fpm() -> Result<String> {
    let mut all = std::fs::read_dir("/usr/sbin")?.flatten().map(|entry| entry.path().display().to_string());
    all.find(|path| path.starts_with("/usr/sbin/php-fpm")).context("no php-fpm in /usr/sbin")
}

fn php(place: &Place) -> Result<Server> {
    let (host, port) = (place.stage.host, place.port);
    let config = place.write(
        "fpm.conf",
        &format!(
            "[global]\ndaemonize = no\nerror_log = {}\n[www]\nuser = www-data\ngroup = www-data\nlisten = {host}:{}\n\
             pm = dynamic\npm.max_children = 12\npm.start_servers = 3\npm.min_spare_servers = 2\npm.max_spare_servers = 6\n\
             pm.max_requests = 500\n",
            place.path("fpm.log"),
            port + 1
        ),
    )?;
    let mut command = place.stage.server(&php_fpm()?);
    command.args(["-n", "-F", "-y", &config]);
    let fpm = place.serve("php-fpm", &mut command, port + 1)?;
    let script = place.path("echo.php");
    std::fs::copy(place.stage.script("echo.php"), &script)?;
    // Without php.ini POST is limited to 8 MiB, which is enough.
    let block = format!(
        "listen {host}:{port}; location / {{ include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME {script}; \
         fastcgi_pass {host}:{}; }}",
        port + 1
    );
    let Server(mut all) = nginx_with(place, "nginx", port, &block)?;
    all.push(fpm);
    Ok(Server(all))
}

fn fpm(server: &Server) -> Result<u32> {
    Ok(server.0.get(1).context("no php-fpm")?.pid())
}

fn php_reload(_: &Place, server: &mut Server) -> Result<()> {
    let master = fpm(server)?;
    let before = watch::children(master);
    signal(master, "USR2")?;
    until("new workers", || watch::children(master).iter().any(|child| !before.contains(child)))
}

fn php_kill(_: &Place, server: &mut Server) -> Result<()> {
    kill_child(fpm(server)?)
}

fn python(place: &Place) -> Command {
    let mut command = place.stage.server("/usr/bin/python3");
    command.current_dir(workspace().join("tests/unmodified")).env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

fn gunicorn(place: &Place) -> Result<Server> {
    let mut command = python(place);
    command.args(["/usr/bin/gunicorn", "--workers", "3", "--max-requests", "2000", "--log-level", "warning"]);
    command.args(["--bind", &format!("{}:{}", place.stage.host, place.port), "echo_app:wsgi"]);
    Ok(place.serve("gunicorn", &mut command, place.port)?.into())
}

fn uvicorn(place: &Place) -> Result<Server> {
    let mut command = python(place);
    command.args(["-m", "uvicorn", "--workers", "2", "--log-level", "warning", "--no-access-log"]);
    command.args(["--host", place.stage.host, "--port", &place.port.to_string(), "echo_app:app"]);
    Ok(place.serve("uvicorn", &mut command, place.port)?.into())
}

fn prefork(place: &Place) -> Result<Server> {
    let mut command = python(place);
    command.args(["prefork.py", "3", place.stage.host, &place.port.to_string()]);
    Ok(place.serve("prefork", &mut command, place.port)?.into())
}

fn python_client(place: &Place) -> Result<Command> {
    let mut command = place.stage.endless_client("/usr/bin/python3");
    command.arg(place.stage.script("load_client.py"));
    Ok(command)
}

fn cluster(place: &Place, scheduling: &str) -> Result<Server> {
    let mut command = place.stage.server("node");
    command.arg(place.stage.script("cluster.js")).args([scheduling, place.stage.host, &place.port.to_string()]);
    Ok(place.serve("node", &mut command, place.port)?.into())
}

fn replace_workers(_: &Place, server: &mut Server) -> Result<()> {
    let primary = server.main()?.pid();
    let before = watch::children(primary);
    server.signal("USR2")?;
    until("new workers", || watch::children(primary).iter().filter(|child| !before.contains(child)).count() >= 2)
}

fn hang_up(_: &Place, server: &mut Server) -> Result<()> {
    let master = server.main()?.pid();
    let before = watch::children(master);
    server.signal("HUP")?;
    until("new workers", || watch::children(master).iter().filter(|child| !before.contains(child)).count() >= 2)
}

fn go_client(place: &Place) -> Result<Command> {
    let client = target_dir().join("go-client");
    let source = workspace().join("tests/go-client/main.go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&client).arg(source);
    finish(&mut build, "go build")?;
    Ok(place.stage.endless_client(&client.display().to_string()))
}

fn java_client(place: &Place) -> Result<Command> {
    let classes = java_classes(place.stage)?;
    let mut command = place.stage.endless_client("java");
    command.args(["-cp", &classes, "LoadClient"]);
    Ok(command)
}
