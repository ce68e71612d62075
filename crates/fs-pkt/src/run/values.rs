//! Values of a script's expressions.

use crate::script::ast::Expr;
use crate::symbols;
use std::net::{IpAddr, SocketAddr};

/// Evaluates a number: a literal, a constant's name, or several joined by `|`.
pub(super) fn number(expr: &Expr) -> Result<i64, String> {
    match expr {
        Expr::Int(n) | Expr::Hex(n) => Ok(*n),
        Expr::Word(name) => symbols::value(name).ok_or_else(|| format!("unknown symbol: '{name}'")),
        Expr::Or(a, b) => Ok(number(a)? | number(b)?),
        Expr::Apply(name, args) => match (name.as_str(), &args[..]) {
            ("htons", [port]) => Ok(i64::from((number(port)? as u16).to_be())),
            ("htonl", [word]) => Ok(i64::from((number(word)? as u32).to_be())),
            _ => match expr.ip_literal() {
                Some(IpAddr::V4(a)) => Ok(i64::from(u32::from(a).to_be())),
                _ => Err(format!("bad value: {expr}")),
            },
        },
        other => Err(format!("bad type for expression {other}: expected an integer")),
    }
}

/// Evaluates a number of 32 bits, signed or unsigned.
pub(super) fn int(expr: &Expr) -> Result<i32, String> {
    let n = number(expr)?;
    if n < i64::from(i32::MIN) || n > i64::from(u32::MAX) {
        return Err(format!("Value out of range for 32-bit integer: {n}"));
    }
    Ok(n as i32)
}

/// `[n]`
pub(super) fn bracketed(expr: &Expr) -> Result<i32, String> {
    match expr {
        Expr::List(items) => match &items[..] {
            [item] => int(item),
            _ => Err(format!("expected [<integer>], found {expr}")),
        },
        _ => Err(format!("expected [<integer>], found {expr}")),
    }
}

/// Returns the bytes of a string, with C's escapes.
pub(super) fn bytes(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.extend(c.to_string().into_bytes());
            continue;
        }
        let digits = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>, radix: u32, max: usize| {
            let mut value = 0;
            for _ in 0..max {
                let Some(digit) = chars.peek().and_then(|c| c.to_digit(radix)) else { break };
                value = value * radix + digit;
                chars.next();
            }
            value as u8
        };
        match chars.next() {
            Some('n') => out.push(b'\n'),
            Some('r') => out.push(b'\r'),
            Some('t') => out.push(b'\t'),
            Some('x') => out.push(digits(&mut chars, 16, 2)),
            Some(c @ '0'..='7') => {
                let mut octal = c.to_string();
                while octal.len() < 3 && chars.peek().is_some_and(|c| c.is_digit(8)) {
                    octal.extend(chars.next());
                }
                out.push(u8::from_str_radix(&octal, 8).map_err(|e| format!("\\{octal}: {e}"))?);
            }
            Some(other) => out.extend(other.to_string().into_bytes()),
            None => return Err("string ends in a backslash".into()),
        }
    }
    Ok(out)
}

/// Returns an address given as a structure, or `None` for `...`.
pub(super) fn address(expr: &Expr) -> Result<Option<SocketAddr>, String> {
    if *expr == Expr::Ellipsis {
        return Ok(None);
    }
    let bad = || format!("bad address: {expr}");
    let port = match &expr.field("sin_port").ok_or_else(bad)?.value {
        Expr::Apply(name, args) if name == "htons" => number(args.first().ok_or_else(bad)?)?,
        other => number(other)?,
    };
    let ip = expr.field("sin_addr").and_then(|f| f.value.ip_literal()).ok_or_else(bad)?;
    let port = u16::try_from(port).map_err(|_| bad())?;
    Ok(Some(SocketAddr::new(ip, port)))
}

/// `[{..., 1000}, {..., 2000}]`: returns the lengths.
pub(super) fn buffers(expr: &Expr) -> Result<Vec<usize>, String> {
    let Expr::List(items) = expr else { return Err(format!("expected an array of struct iovec, found {expr}")) };
    let one = |item: &Expr| match item {
        Expr::Struct(fields) => match &fields[..] {
            [base, len] if base.value == Expr::Ellipsis => length(&len.value),
            _ => Err(format!("bad struct iovec: {item}")),
        },
        _ => Err(format!("bad struct iovec: {item}")),
    };
    items.iter().map(one).collect()
}

/// Evaluates a size.
pub(super) fn length(expr: &Expr) -> Result<usize, String> {
    let n = number(expr)?;
    usize::try_from(n).map_err(|_| format!("bad size: {n}"))
}
