//! The report: one self-contained HTML file.

use crate::{Sample, Setting, pairs};
use anyhow::Result;
use fs_benches::plot::{self, SCHEMES};
use fs_tests::apps::LinkChoice;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

const STYLE: &str = "
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem;
  background: var(--paper); color: var(--ink); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--faint); }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left; }
pre { background: color-mix(in srgb, var(--ink) 7%, transparent); padding: .8rem; overflow-x: auto; }
figure { margin: 1.5rem 0; } .ours { color: var(--ours); } .kernel { color: var(--kernel); }
svg text { font-family: system-ui, sans-serif; }";

/// Writes the report.
pub(crate) fn write(path: &Path, samples: &[Sample], setting: &Setting) -> Result<()> {
    let link = match setting.link {
        LinkChoice::Xdp => "AF_XDP",
        LinkChoice::Packet => "AF_PACKET (no root: AF_XDP receives only with BPF)",
    };
    let mut page = String::new();
    write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>fastsock: demo</title>\n\
         <style>{SCHEMES}{STYLE}\n</style></head><body>\n<h1>One proxy, two stacks</h1>\n\
         <p>The same proxy between the same clients (curl, wrk) and the same nginx, over veth pairs between network \
         namespaces: once on <b class=\"ours\">fastsock over {link}</b>, once on <b class=\"kernel\">kernel sockets</b>. \
         Proxy, clients and backend share the machine's cores, so requests per second also hold what wrk and nginx cost; \
         requests per CPU second count the proxy's own.</p>\n"
    )?;
    page.push_str("<p>Compared first, with curl:</p>\n<ul>\n");
    for line in &setting.compared {
        writeln!(page, "<li>{}</li>", escape(line))?;
    }
    page.push_str("</ul>\n");
    table(&mut page, samples)?;
    for (title, value) in charts() {
        let rows: Vec<_> = pairs(samples).map(|(ours, kernel)| (ours.load(), value(ours), value(kernel))).collect();
        writeln!(page, "<figure>{}</figure>", plot::bars(title, &rows)?)?;
    }
    writeln!(page, "<h2>Machine</h2>\n<pre>{}</pre>", escape(&machine()))?;
    let commands = setting.commands.join("\n");
    writeln!(page, "<h2>Commands</h2>\n<pre>{}</pre>", escape(&commands))?;
    writeln!(page, "<h2>The proxy's configuration</h2>\n<pre>{}</pre>", escape(&setting.config))?;
    page.push_str("</body></html>\n");
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(path, page)?;
    Ok(())
}

type Value = fn(&Sample) -> f64;

fn charts() -> [(&'static str, Value); 4] {
    [
        ("Requests per second", |sample| sample.wrk.rate()),
        ("Requests per CPU second of the proxy", Sample::per_cpu_second),
        ("Median latency, µs", |sample| sample.wrk.p50_us),
        ("99th percentile of latency, µs", |sample| sample.wrk.p99_us),
    ]
}

fn table(page: &mut String, samples: &[Sample]) -> Result<()> {
    page.push_str(
        "<table><tr><th>load</th><th>stack</th><th>requests/s</th><th>connections/s</th><th>p50 µs</th>\
         <th>p99 µs</th><th>proxy's CPU s</th><th>requests per CPU s</th></tr>\n",
    );
    for (ours, kernel) in pairs(samples) {
        for (sample, class) in [(ours, "ours"), (kernel, "kernel")] {
            let rate = sample.wrk.rate();
            writeln!(
                page,
                "<tr><td>{}</td><td class=\"{class}\">{}</td><td>{rate:.0}</td><td>{}</td><td>{:.0}</td>\
                 <td>{:.0}</td><td>{:.2}</td><td>{:.0}</td></tr>",
                sample.load(),
                sample.stack.name(),
                if sample.close { format!("{rate:.0}") } else { "–".into() },
                sample.wrk.p50_us,
                sample.wrk.p99_us,
                sample.cpu_seconds,
                sample.per_cpu_second()
            )?;
        }
    }
    page.push_str("</table>\n");
    Ok(())
}

/// Describes the machine. A container may lack some of the values; those are omitted.
fn machine() -> String {
    let mut text = String::new();
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    if let Ok(output) = Command::new("uname").arg("-srm").output() {
        text += &String::from_utf8_lossy(&output.stdout);
    }
    if let Some(name) = read("/etc/os-release").lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")) {
        text += &format!("{}\n", name.trim_matches('"'));
    }
    let cpus = read("/proc/cpuinfo");
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let count = cpus.lines().filter(|line| line.starts_with("processor")).count();
    text += &format!("{count} CPUs: {}\n", model.trim_start_matches([' ', '\t', ':']));
    if let Some(memory) = read("/proc/meminfo").lines().next() {
        text += memory;
    }
    text
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
