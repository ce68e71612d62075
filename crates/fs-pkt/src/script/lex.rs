//! Tokens of the language: packetdrill's longest-match rules over a few character classes.

use super::syntax_error::SyntaxError;
use std::iter::Peekable;
use std::str::CharIndices;

/// A token and its first line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) line: u32,
    pub(crate) tok: Tok,
    /// The token's source text.
    pub(crate) text: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tok {
    /// Letters, digits and underscores that are not a number.
    Word(String),
    Int(i64),
    Hex(i64),
    /// A decimal fraction, and its text: `.5` is ACK with an ACE field after flags.
    Float(f64, String),
    /// Text between double quotes, unescaped.
    Str(String),
    /// Text between back quotes: a command.
    Back(String),
    /// Text between `%{` and `}%`.
    Code(String),
    Ip(String),
    /// `--name` (without the dashes).
    Option(String),
    Ellipsis,
    Ch(char),
}

impl Tok {
    /// Returns its name for error messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Tok::Word(w) => format!("'{w}'"),
            Tok::Int(n) => format!("'{n}'"),
            Tok::Hex(n) => format!("'{n:#x}'"),
            Tok::Float(_, text) | Tok::Ip(text) => format!("'{text}'"),
            Tok::Str(s) => format!("\"{s}\""),
            Tok::Back(s) => format!("`{s}`"),
            Tok::Code(_) => "a code block".into(),
            Tok::Option(name) => format!("'--{name}'"),
            Tok::Ellipsis => "'...'".into(),
            Tok::Ch(c) => format!("'{c}'"),
        }
    }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: u32,
    file: &'a str,
}

/// Returns all tokens of a script.
pub(crate) fn lex(text: &str, file: &str) -> Result<Vec<Token>, SyntaxError> {
    let mut lexer = Lexer { text, at: 0, line: 1, file };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_space()?;
        let (line, from) = (lexer.line, lexer.at);
        match lexer.next()? {
            Some(tok) => tokens.push(Token { line, tok, text: text[from..lexer.at].to_string() }),
            None => return Ok(tokens),
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

impl Lexer<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn error(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError { file: self.file.into(), line: self.line, message: message.into() }
    }

    fn advance(&mut self, n: usize) {
        self.line += self.text[self.at..self.at + n].matches('\n').count() as u32;
        self.at += n;
    }

    fn skip_space(&mut self) -> Result<(), SyntaxError> {
        loop {
            let rest = self.rest();
            let space = rest.len() - rest.trim_start().len();
            if space > 0 {
                self.advance(space);
            } else if rest.starts_with("//") {
                let n = rest.find('\n').unwrap_or(rest.len());
                self.advance(n);
            } else if rest.starts_with("/*") {
                let n = rest.find("*/").ok_or_else(|| self.error("comment without end"))?;
                self.advance(n + 2);
            } else {
                return Ok(());
            }
        }
    }

    /// Returns the text between two delimiters of one character; a backslash escapes the next
    /// character.
    fn delimited(&mut self, delimiter: char) -> Result<String, SyntaxError> {
        let mut chars: Peekable<CharIndices<'_>> = self.text[self.at + 1..].char_indices().peekable();
        while let Some((i, c)) = chars.next() {
            if c == '\\' {
                chars.next();
            } else if c == delimiter {
                let inner = self.text[self.at + 1..self.at + 1 + i].to_string();
                self.advance(i + 2);
                return Ok(inner);
            }
        }
        Err(self.error(format!("no closing {delimiter}")))
    }

    fn next(&mut self) -> Result<Option<Tok>, SyntaxError> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(None) };
        if first == '"' {
            return self.delimited('"').map(|s| Some(Tok::Str(s)));
        }
        if first == '`' {
            return self.delimited('`').map(|s| Some(Tok::Back(s)));
        }
        if let Some(code) = rest.strip_prefix("%{") {
            let n = code.find("}%").ok_or_else(|| self.error("no closing }%"))?;
            let inner = code[..n].trim_matches([' ', '\t']).to_string();
            self.advance(n + 4);
            return Ok(Some(Tok::Code(inner)));
        }
        if rest.starts_with("...") {
            self.advance(3);
            return Ok(Some(Tok::Ellipsis));
        }
        if let Some(name) = rest.strip_prefix("--") {
            let n = name.find(|c| !is_word(c)).unwrap_or(name.len());
            if n > 0 {
                let name = name[..n].to_string();
                self.advance(n + 2);
                return Ok(Some(Tok::Option(name)));
            }
        }
        if let Some(n) = address(rest) {
            let text = rest[..n].to_string();
            self.advance(n);
            return Ok(Some(Tok::Ip(text)));
        }
        if let Some((tok, n)) = self.number()? {
            self.advance(n);
            return Ok(Some(tok));
        }
        if is_word(first) {
            let n = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            let word = rest[..n].to_string();
            self.advance(n);
            return Ok(Some(Tok::Word(word)));
        }
        self.advance(first.len_utf8());
        Ok(Some(Tok::Ch(first)))
    }

    /// Reads a number here, if it is at least as long as a word would be.
    fn number(&self) -> Result<Option<(Tok, usize)>, SyntaxError> {
        let rest = self.rest();
        let too_large = || self.error("number out of range");
        if let Some(hex) = rest.strip_prefix("0x") {
            let n = hex.bytes().take_while(u8::is_ascii_hexdigit).count();
            if n > 0 && !hex[n..].starts_with(is_word) {
                let value = u64::from_str_radix(&hex[..n], 16).map_err(|_| too_large())?;
                return Ok(Some((Tok::Hex(value as i64), n + 2)));
            }
        }
        let sign = usize::from(rest.starts_with('-'));
        let whole = digits(&rest[sign..]);
        let after = &rest[sign + whole..];
        if let Some(fraction) = after.strip_prefix('.') {
            let n = digits(fraction);
            if n > 0 {
                let text = &rest[..sign + whole + 1 + n];
                let value = text.parse().map_err(|_| too_large())?;
                return Ok(Some((Tok::Float(value, text.to_string()), text.len())));
            }
        }
        if whole == 0 || after.starts_with(is_word) {
            return Ok(None);
        }
        // Longer ones are hexadecimal bytes that happen to contain no letters.
        Ok(rest[..sign + whole].parse().ok().map(|value| (Tok::Int(value), sign + whole)))
    }
}

/// Returns the length of an IP address at the start of `text`. A range of sequence numbers
/// (`1:1001`) is not an address.
fn address(text: &str) -> Option<usize> {
    let dotted = text.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let v4 = text[..dotted].trim_end_matches('.');
    if v4.parse::<std::net::Ipv4Addr>().is_ok() {
        return Some(v4.len());
    }
    let n = text.bytes().take_while(|b| b.is_ascii_hexdigit() || matches!(b, b':' | b'.')).count();
    let v6 = text[..n].trim_end_matches('.');
    (v6.contains("::") || v6.matches(':').count() == 7)
        .then(|| v6.parse::<std::net::Ipv6Addr>().is_ok().then_some(v6.len()))
        .flatten()
}
