//! docs/plots/top.svg: `fastsock top` drawn from two made-up samples. `WRITE_TOP_PICTURE=1` writes
//! it. The test fails if the screen has changed.

use super::report::Report;
use super::sample::Sample;
use super::screen::{State, draw};
use crate::control::Status;
use fs_shm::control::{CounterRow, KernelReason, Kind, SocketRow, Text};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::Modifier;
use std::fmt::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Columns and lines.
const SIZE: (u16, u16) = (124, 28);

/// Width and height of a character cell, and of the margin, in the picture's units.
const CELL: (f64, f64) = (8.4, 18.0);
const MARGIN: f64 = 12.0;

fn counters(rows: &[(&str, &str, u64)]) -> Vec<CounterRow> {
    let row = |&(name, label, value): &(&str, &str, u64)| CounterRow {
        name: Text::new(name.as_bytes()),
        label: Text::new(label.as_bytes()),
        gauge: false,
        value,
    };
    rows.iter().map(row).collect()
}

/// Two samples, a second apart, of a daemon that serves a web server and its database.
fn looks() -> (Sample, Sample) {
    let status = || Status { pid: 812, cores: 2, draining: false, device: "eth0".into() };
    let nginx = SocketRow {
        state: 1,
        kind: Kind::Wire,
        core: Some(0),
        reason: None,
        recv_queue: 0,
        send_queue: 14_480,
        local: "192.0.2.10:80".parse().unwrap(),
        peer: Some("198.51.100.7:51342".parse().unwrap()),
        pid: 901,
        fd: 12,
        name: Text::new(b"nginx"),
    };
    let local = SocketRow {
        kind: Kind::Local,
        core: None,
        send_queue: 0,
        local: "127.0.0.1:6379".parse().unwrap(),
        peer: Some("127.0.0.1:28701".parse().unwrap()),
        pid: 640,
        fd: 9,
        name: Text::new(b"redis-server"),
        ..nginx
    };
    let sockets = vec![
        nginx,
        SocketRow {
            core: Some(1),
            fd: 14,
            peer: Some("203.0.113.44:40110".parse().unwrap()),
            recv_queue: 517,
            send_queue: 0,
            ..nginx
        },
        SocketRow { core: Some(1), fd: 15, peer: Some("203.0.113.45:58224".parse().unwrap()), send_queue: 0, ..nginx },
        SocketRow {
            state: 10,
            core: None,
            fd: 6,
            peer: None,
            send_queue: 511,
            local: "0.0.0.0:80".parse().unwrap(),
            ..nginx
        },
        local,
        SocketRow {
            pid: 955,
            fd: 7,
            local: local.peer.unwrap(),
            peer: Some(local.local),
            name: Text::new(b"python3"),
            ..local
        },
        SocketRow { state: 10, fd: 6, peer: None, send_queue: 511, ..local },
        SocketRow {
            kind: Kind::Kernel,
            reason: Some(KernelReason::NotServed),
            pid: 955,
            fd: 11,
            local: "10.8.0.2:43120".parse().unwrap(),
            peer: Some("10.8.0.1:5432".parse().unwrap()),
            name: Text::new(b"python3"),
            ..local
        },
    ];
    let before = [
        ("requests", "", 48_200),
        ("local_connections", "", 18_211),
        ("local_bytes", "", 91_400_000_000),
        ("wire_connections", "", 1_204_510),
        ("wire_bytes", "", 642_000_000_000),
        ("link_rx_packets", "0", 410_000_000),
        ("link_tx_packets", "0", 395_000_000),
        ("link_rx_packets", "1", 402_000_000),
        ("link_tx_packets", "1", 391_000_000),
        ("runtime_sleeps", "0", 90_000),
        ("runtime_sleeps", "1", 91_000),
        ("drops_bad_checksum", "0", 3),
        ("drops_listen_overflow", "1", 120),
        ("kernel_fallbacks", "not-served", 41),
    ];
    let now = [
        ("attachments", "", 9),
        ("requests", "", 48_212),
        ("refused", "", 0),
        ("local_connections", "", 18_214),
        ("local_bytes", "", 91_520_000_000),
        ("wire_connections", "", 1_205_930),
        ("wire_bytes", "", 642_310_000_000),
        ("core_connections", "0", 1),
        ("core_connections", "1", 2),
        ("core_time_waits", "0", 702),
        ("core_time_waits", "1", 689),
        ("core_frames_in_use", "0", 1_310),
        ("core_frames_in_use", "1", 1_298),
        ("link_rx_packets", "0", 410_121_000),
        ("link_tx_packets", "0", 395_113_000),
        ("link_rx_packets", "1", 402_118_400),
        ("link_tx_packets", "1", 391_109_800),
        ("runtime_sleeps", "0", 90_140),
        ("runtime_sleeps", "1", 91_155),
        ("drops_bad_checksum", "0", 3),
        ("drops_listen_overflow", "1", 124),
        ("kernel_fallbacks", "not-served", 42),
        ("accept_wait_buckets", "0,10240", 700),
        ("accept_wait_buckets", "1,163840", 20),
        ("connect_time_buckets", "1,327680", 6),
        ("turn_time_buckets", "0,10240", 80_500),
        ("turn_time_buckets", "1,20480", 76_200),
        ("turn_time_buckets", "1,163840", 900),
    ];
    let at = Instant::now();
    (
        Sample { at, status: status(), counters: counters(&before), sockets: Vec::new() },
        Sample { at: at + Duration::from_secs(1), status: status(), counters: counters(&now), sockets },
    )
}

/// Draws a screen as SVG: a text for each run of cells with the same style, over a bar if they are
/// reversed.
fn svg(buffer: &Buffer) -> String {
    let area = buffer.area();
    let (width, height) = (f64::from(area.width), f64::from(area.height));
    let mut out = format!(
        "<svg width=\"100%\" role=\"img\" viewBox=\"0 0 {:.0} {:.0}\" xmlns=\"http://www.w3.org/2000/svg\"><style>\n\
         :root {{ color-scheme: light dark; --faint: #dcdfe4; --paper: #fff; --ink: #1b1e23; --alarm: #c92a2a; }}\n\
         @media (prefers-color-scheme: dark) {{\n  \
         :root {{ --faint: #3a3f47; --paper: #16181c; --ink: #e6e8eb; --alarm: #ff8787; }}\n\
         }}\n\
         text {{ font: 14px ui-monospace, monospace; fill: var(--ink); white-space: pre; }}\n\
         .bold {{ font-weight: bold; }} .dim {{ opacity: 0.65; }} .reversed {{ fill: var(--paper); }}\n\
         </style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"var(--paper)\" stroke=\"var(--faint)\"/>\n",
        width * CELL.0 + 2.0 * MARGIN,
        height * CELL.1 + 2.0 * MARGIN,
    );
    for (line, cells) in buffer.content().chunks(usize::from(area.width)).enumerate() {
        let mut column = 0;
        for run in cells.chunk_by(|a, b| a.modifier == b.modifier) {
            run_of_cells(&mut out, run, (column, line));
            column += run.len();
        }
    }
    out + "</svg>\n"
}

fn run_of_cells(out: &mut String, run: &[Cell], (column, line): (usize, usize)) {
    let (x, y) = (MARGIN + column as f64 * CELL.0, MARGIN + line as f64 * CELL.1);
    let modifier = run[0].modifier;
    let reversed = modifier.contains(Modifier::REVERSED);
    if reversed {
        let width = run.len() as f64 * CELL.0;
        writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"var(--ink)\"/>",
            CELL.1
        )
        .unwrap();
    }
    let text: String = run.iter().map(Cell::symbol).collect();
    let said = text.trim_end();
    if said.is_empty() {
        return;
    }
    let classes: Vec<&str> = [(Modifier::BOLD, "bold"), (Modifier::DIM, "dim"), (Modifier::REVERSED, "reversed")]
        .into_iter()
        .filter_map(|(bit, class)| modifier.contains(bit).then_some(class))
        .collect();
    let class = if classes.is_empty() { String::new() } else { format!(" class=\"{}\"", classes.join(" ")) };
    // Columns keep their positions with any font.
    let length = said.chars().count() as f64 * CELL.0;
    let escaped = said.replace('&', "&amp;").replace('<', "&lt;");
    writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{length:.1}\" xml:space=\"preserve\"{class}>{escaped}</text>",
        y + 13.5
    )
    .unwrap();
}

#[test]
fn picture_in_docs_is_current() {
    let (before, now) = looks();
    let mut state = State { report: Report::between(&before, &now), error: None, paused: false, first: 0 };
    let mut terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1)).unwrap();
    terminal.draw(|frame| draw(frame, &mut state)).unwrap();
    let drawn = svg(terminal.backend().buffer());
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/plots/top.svg");
    if std::env::var_os("WRITE_TOP_PICTURE").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == drawn,
        "docs/plots/top.svg is out of date: WRITE_TOP_PICTURE=1 cargo test -p fs-cli picture_in_docs"
    );
    // The last table is complete.
    assert!(drawn.contains("redis-server") && drawn.contains("10.8.0.1:5432"), "{drawn}");
}
