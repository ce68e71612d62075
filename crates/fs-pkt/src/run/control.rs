//! Flags and control messages of recvmsg(2), compared with the script's.

use super::call::{Control, Out, Outcome};
use super::values::{int, number};
use crate::script::ast::Expr;

/// Compares a received message's flags and control messages.
pub(super) fn check_message(header: &Expr, outcome: &Outcome, at: TimeCheck<'_>) -> Result<(), String> {
    let Out::Message { flags, control } = &outcome.out else { return Err("recvmsg returned no flags".into()) };
    let expected = header.field("msg_flags").map_or(Ok(0), |f| int(&f.value))?;
    if expected != *flags {
        return Err(format!("Expected msg_flags {expected:#010X} but got {flags:#010X}"));
    }
    let Some(field) = header.field("msg_control") else { return Ok(()) };
    let Expr::List(items) = &field.value else { return Err(format!("bad msg_control: {}", field.value)) };
    if items.len() != control.len() {
        return Err(format!("Expected {} control messages but got {}: {control:?}", items.len(), control.len()));
    }
    items.iter().zip(control).try_for_each(|(item, actual)| check_control(item, actual, at))
}

/// Compares a wall clock time, in seconds and nanoseconds, with one of the script in microseconds.
pub(super) type TimeCheck<'a> = &'a mut dyn FnMut(i64, (i64, i64)) -> Result<(), String>;

fn check_control(item: &Expr, actual: &Control, at: TimeCheck<'_>) -> Result<(), String> {
    let part = |name: &str| item.field(name).map(|f| &f.value).ok_or_else(|| format!("bad cmsg: {item}"));
    let (level, kind) = (int(part("cmsg_level")?)?, int(part("cmsg_type")?)?);
    if (level, kind) != (actual.level, actual.kind) {
        return Err(format!(
            "Bad control message: expected: level {level} type {kind} actual: level {} type {}",
            actual.level, actual.kind
        ));
    }
    match part("cmsg_data")? {
        Expr::Ellipsis => Ok(()),
        data @ (Expr::Int(_) | Expr::Hex(_) | Expr::Word(_)) => {
            let expected = int(data)?.to_ne_bytes();
            if actual.data == expected {
                return Ok(());
            }
            Err(format!("Bad control message data: expected: {data} actual: {:?}", actual.data))
        }
        data if data.field("ee_errno").is_some() => check_extended_error(data, &actual.data),
        data if data.field("scm_sec").is_some() => {
            let part = |name: &str| data.field(name).map_or(Ok(0), |f| number(&f.value));
            let expected = part("scm_sec")? * 1_000_000 + part("scm_nsec")? / 1000;
            let long = |at: usize| actual.data.get(at..at + 8)?.try_into().ok().map(i64::from_ne_bytes);
            let (Some(seconds), Some(nanos)) = (long(0), long(8)) else {
                return Err(format!("scm_timestamping of {} bytes", actual.data.len()));
            };
            at(expected, (seconds, nanos))
        }
        other => Err(format!("control message data {other} is not supported")),
    }
}

/// Compares `struct sock_extended_err` of linux/errqueue.h in the fields that the script names.
fn check_extended_error(expected: &Expr, actual: &[u8]) -> Result<(), String> {
    for (name, at, len) in [
        ("ee_errno", 0, 4),
        ("ee_origin", 4, 1),
        ("ee_type", 5, 1),
        ("ee_code", 6, 1),
        ("ee_info", 8, 4),
        ("ee_data", 12, 4),
    ] {
        let Some(field) = expected.field(name) else { continue };
        let bytes: &[u8] = actual.get(at..at + len).ok_or("a short sock_extended_err")?;
        let found = match *bytes {
            [a, b, c, d] => i64::from(u32::from_ne_bytes([a, b, c, d])),
            _ => i64::from(bytes[0]),
        };
        let wanted = number(&field.value)?;
        if wanted != found {
            return Err(format!("Bad {name} in sock_extended_err: expected: {wanted} actual: {found}"));
        }
    }
    Ok(())
}
