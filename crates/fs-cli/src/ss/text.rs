//! Text of a listing: columns, names, addresses.

use std::net::SocketAddr;

/// Lines with columns as wide as their longest cell.
pub(super) fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        let cells: Vec<String> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text += cells.join(" ").trim_end();
        text.push('\n');
    }
    text
}

/// Removes control characters from a process's name, which the process chooses itself.
pub(super) fn printable(name: &str) -> String {
    name.chars().map(|c| if c.is_control() || c == '"' { '?' } else { c }).collect()
}

/// Formats an address as ss does: `*` if it is unknown.
pub(super) fn addr(addr: SocketAddr) -> String {
    let port = |port: u16| if port == 0 { "*".to_owned() } else { port.to_string() };
    match addr {
        addr if addr.ip().is_unspecified() && addr.port() == 0 => "*:*".into(),
        SocketAddr::V4(v4) => format!("{}:{}", v4.ip(), port(v4.port())),
        SocketAddr::V6(v6) => format!("[{}]:{}", v6.ip(), port(v6.port())),
    }
}
