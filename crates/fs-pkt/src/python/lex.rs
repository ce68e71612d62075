//! Tokens of Python.

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tok {
    Name(String),
    Int(i64),
    Float(f64),
    Str(String),
    /// An operator or bracket.
    Op(&'static str),
    /// End of a statement: a line end outside of brackets, or a semicolon.
    End,
}

/// Longer ones first.
const OPERATORS: &[&str] = &[
    "**=", "//=", "<<=", ">>=", "**", "//", "<<", ">>", "<=", ">=", "==", "!=", "+=", "-=", "*=", "/=", "%=", "&=",
    "|=", "^=", "(", ")", "[", "]", ",", ":", "+", "-", "*", "/", "%", "&", "|", "^", "~", "<", ">", "=", ".",
];

pub(super) fn lex(code: &str) -> Result<Vec<Tok>, String> {
    let mut tokens = Vec::new();
    let mut rest = code;
    let mut depth = 0usize;
    while let Some(c) = rest.chars().next() {
        let taken = match c {
            '\n' | ';' => {
                if c == ';' || depth == 0 {
                    tokens.push(Tok::End);
                }
                1
            }
            '\\' if rest[1..].trim_start_matches([' ', '\t', '\r']).starts_with('\n') => {
                rest.find('\n').map_or(rest.len(), |n| n + 1)
            }
            '#' => rest.find('\n').unwrap_or(rest.len()),
            _ if c.is_whitespace() => c.len_utf8(),
            '"' | '\'' => {
                let (text, n) = string(rest, c)?;
                tokens.push(Tok::Str(text));
                n
            }
            _ if c.is_ascii_digit() || c == '.' && rest[1..].starts_with(|d: char| d.is_ascii_digit()) => {
                let (tok, n) = number(rest)?;
                tokens.push(tok);
                n
            }
            _ if c.is_alphabetic() || c == '_' => {
                let n = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                tokens.push(Tok::Name(rest[..n].into()));
                n
            }
            _ => {
                let op = OPERATORS.iter().find(|op| rest.starts_with(**op));
                let op = op.ok_or_else(|| format!("Python: unexpected character '{c}'"))?;
                match *op {
                    "(" | "[" => depth += 1,
                    ")" | "]" => depth = depth.saturating_sub(1),
                    _ => {}
                }
                tokens.push(Tok::Op(op));
                op.len()
            }
        };
        rest = &rest[taken..];
    }
    tokens.push(Tok::End);
    Ok(tokens)
}

fn string(rest: &str, quote: char) -> Result<(String, usize), String> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1);
    while let Some((i, c)) = chars.next() {
        match c {
            _ if c == quote => return Ok((text, i + 1)),
            '\\' => match chars.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, other)) => text.push(other),
                None => break,
            },
            _ => text.push(c),
        }
    }
    Err("Python: string without end".into())
}

fn number(rest: &str) -> Result<(Tok, usize), String> {
    if let Some(hex) = rest.strip_prefix("0x").or(rest.strip_prefix("0X")) {
        let n = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
        let value = i64::from_str_radix(&hex[..n], 16).map_err(|e| format!("Python: {}: {e}", &rest[..n + 2]))?;
        return Ok((Tok::Int(value), n + 2));
    }
    let mut n = rest.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(rest.len());
    if rest[n..].starts_with(['e', 'E']) {
        let exponent = rest[n + 1..].trim_start_matches(['+', '-']);
        let sign = rest[n + 1..].len() - exponent.len();
        let digits = exponent.find(|c: char| !c.is_ascii_digit()).unwrap_or(exponent.len());
        if digits > 0 {
            n += 1 + sign + digits;
        }
    }
    let text = rest[..n].replace('_', "");
    let wrong = |e: &dyn std::fmt::Display| format!("Python: {text}: {e}");
    if text.contains(['.', 'e', 'E']) {
        Ok((Tok::Float(text.parse().map_err(|e| wrong(&e))?), n))
    } else {
        Ok((Tok::Int(text.parse().map_err(|e| wrong(&e))?), n))
    }
}
