//! The grammar, by recursive descent: options, events, system calls and expressions. Packets are in
//! [`super::parse_packet`].

use super::ast::*;
use super::lex::{Tok, Token, lex};
use super::syntax_error::SyntaxError;
use std::collections::BTreeMap;

/// Symbols set by `--define` and `-D`, to numbers, words, strings or commands.
pub type Defines = BTreeMap<String, String>;

pub(crate) struct Parser<'a> {
    tokens: Vec<Token>,
    at: usize,
    file: &'a str,
}

/// Words of the grammar that are never symbols.
const KEYWORDS: &[&str] = &[
    "sa_family",
    "sin_port",
    "sin_addr",
    "msg_name",
    "msg_iov",
    "msg_flags",
    "msg_control",
    "cmsg_data",
    "cmsg_level",
    "cmsg_type",
    "ee_errno",
    "ee_origin",
    "ee_type",
    "ee_code",
    "ee_info",
    "ee_data",
    "scm_sec",
    "scm_nsec",
    "fd",
    "u32",
    "u64",
    "ptr",
    "events",
    "revents",
    "onoff",
    "linger",
    "htons",
    "ipv4",
    "ipv6",
    "icmp",
    "udp",
    "gre",
    "raw",
    "mpls",
    "label",
    "tc",
    "ttl",
    "inet_addr",
    "inet6_addr",
    "ack",
    "eol",
    "ecr",
    "mss",
    "mtu",
    "nop",
    "sack",
    "sackOK",
    "md5",
    "TS",
    "FO",
    "FOEXP",
    "ECN",
    "e0b",
    "e1b",
    "ceb",
    "tos",
    "flowlabel",
    "flags",
    "Flags",
    "val",
    "win",
    "urg",
    "wscale",
    "ect01",
    "ect0",
    "ect1",
    "noecn",
    "ce",
    "id",
];

/// Functions that expressions may call.
const FUNCTIONS: &[&str] = &["htons", "htonl", "inet_addr", "inet6_addr"];

/// Parses a script. `defines` are symbols in addition to the script's own, which take precedence.
pub fn parse(text: &str, file: &str, defines: &Defines) -> Result<Script, SyntaxError> {
    let tokens = lex(text, file)?;
    let mut parser = Parser { tokens, at: 0, file };
    let mut options = Vec::new();
    while let Some(Tok::Option(_)) = parser.peek() {
        options.push(parser.option()?);
    }
    let mut all = defines.clone();
    for value in options.iter().filter(|(name, _)| name == "define").filter_map(|(_, value)| value.as_ref()) {
        let (symbol, value) = value.split_once('=').ok_or_else(|| parser.error("expected --define=SYMBOL=VALUE"))?;
        all.insert(symbol.into(), value.into());
    }
    parser.substitute(&all);
    let init = parser.command();
    let mut events = Vec::new();
    let mut cleanup = None;
    while parser.peek().is_some() {
        if let Some(command) = parser.command() {
            cleanup = Some(command);
            if let Some(tok) = parser.peek() {
                return Err(parser
                    .error(format!("expected the script's end after its clean-up command, found {}", tok.describe())));
            }
            break;
        }
        events.push(parser.event()?);
    }
    if events.is_empty() {
        return Err(parser.error("no events"));
    }
    Ok(Script { options, init, events, cleanup })
}

impl Parser<'_> {
    /// Replaces symbols by their values, as the original's lexer does.
    fn substitute(&mut self, defines: &Defines) {
        for token in &mut self.tokens[self.at..] {
            let Tok::Word(word) = &token.tok else { continue };
            if KEYWORDS.contains(&word.as_str()) {
                continue;
            }
            let Some(value) = defines.get(word) else { continue };
            let quoted = |q: char| value.strip_prefix(q).and_then(|v| v.strip_suffix(q)).map(str::to_string);
            let number = match value.strip_prefix("0x") {
                Some(hex) => i64::from_str_radix(hex, 16).ok(),
                None => value.parse().ok(),
            };
            token.tok = if let Some(text) = quoted('"') {
                Tok::Str(text)
            } else if let Some(text) = quoted('`') {
                Tok::Back(text)
            } else if let Some(number) = number {
                Tok::Int(number)
            } else {
                Tok::Word(value.clone())
            };
            token.text = value.clone();
        }
    }

    pub(crate) fn peek(&self) -> Option<&Tok> {
        self.tokens.get(self.at).map(|t| &t.tok)
    }

    pub(crate) fn peek_at(&self, ahead: usize) -> Option<&Tok> {
        self.tokens.get(self.at + ahead).map(|t| &t.tok)
    }

    pub(crate) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    pub(crate) fn error(&self, message: impl Into<String>) -> SyntaxError {
        SyntaxError { file: self.file.into(), line: self.line(), message: message.into() }
    }

    pub(crate) fn unexpected(&self, wanted: &str) -> SyntaxError {
        let found = self.peek().map_or("the end of the script".into(), Tok::describe);
        self.error(format!("expected {wanted}, found {found}"))
    }

    pub(crate) fn bump(&mut self) -> Option<Tok> {
        let tok = self.tokens.get(self.at).map(|t| t.tok.clone());
        self.at += 1;
        tok
    }

    pub(crate) fn eat(&mut self, c: char) -> bool {
        let found = self.peek() == Some(&Tok::Ch(c));
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, c: char) -> Result<(), SyntaxError> {
        if self.eat(c) { Ok(()) } else { Err(self.unexpected(&format!("'{c}'"))) }
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Tok::Word(w)) if w == word)
    }

    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        self.at += usize::from(found);
        found
    }

    pub(crate) fn int(&mut self, what: &str) -> Result<i64, SyntaxError> {
        match self.peek() {
            Some(&(Tok::Int(n) | Tok::Hex(n))) => {
                self.at += 1;
                Ok(n)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    /// Parses a number that must fit its field.
    pub(crate) fn number<T: TryFrom<i64>>(&mut self, what: &str) -> Result<T, SyntaxError> {
        let line = self.line();
        let value = self.int(what)?;
        T::try_from(value).map_err(|_| SyntaxError {
            file: self.file.into(),
            line,
            message: format!("{what} out of range: {value}"),
        })
    }

    pub(crate) fn word(&mut self, what: &str) -> Result<String, SyntaxError> {
        match self.peek() {
            Some(Tok::Word(w)) => {
                let word = w.clone();
                self.at += 1;
                Ok(word)
            }
            _ => Err(self.unexpected(what)),
        }
    }

    fn command(&mut self) -> Option<Command> {
        let line = self.line();
        match self.peek() {
            Some(Tok::Back(text)) => {
                let text = text.clone();
                self.at += 1;
                Some(Command { line, text })
            }
            _ => None,
        }
    }

    /// `--name=value`; the value of `--define` is `SYMBOL=VALUE`.
    fn option(&mut self) -> Result<(String, Option<String>), SyntaxError> {
        let Some(Tok::Option(name)) = self.bump() else { return Err(self.unexpected("an option")) };
        if !self.eat('=') {
            return Ok((name, None));
        }
        if name == "define" {
            let symbol = self.word("a symbol")?;
            self.expect('=')?;
            let value = match self.bump() {
                Some(Tok::Ch(_) | Tok::Ellipsis | Tok::Option(_) | Tok::Code(_)) | None => {
                    return Err(self.error("expected --define=SYMBOL=VALUE"));
                }
                Some(_) => self.tokens[self.at - 1].text.clone(),
            };
            return Ok((name, Some(format!("{symbol}={value}"))));
        }
        let mut value = self.option_value()?;
        // Words joined by dashes, as in ipv4-mapped-ipv6.
        while self.eat('-') {
            value = format!("{value}-{}", self.option_value()?);
        }
        Ok((name, Some(value)))
    }

    fn option_value(&mut self) -> Result<String, SyntaxError> {
        match self.bump() {
            Some(Tok::Str(text)) => Ok(text),
            Some(Tok::Word(_) | Tok::Int(_) | Tok::Hex(_) | Tok::Float(..) | Tok::Ip(_)) => {
                Ok(self.tokens[self.at - 1].text.clone())
            }
            _ => Err(self.error("expected an option's value")),
        }
    }

    /// Returns the text of the next token.
    pub(crate) fn text(&self) -> String {
        self.tokens.get(self.at).map_or(String::new(), |t| t.text.clone())
    }

    fn event(&mut self) -> Result<Event, SyntaxError> {
        let line = self.line();
        let time = self.time()?;
        let action = match self.peek() {
            Some(Tok::Ch('<' | '>')) => Action::Packet(self.packet()?),
            Some(Tok::Back(text)) => {
                let text = text.clone();
                self.at += 1;
                Action::Command(text)
            }
            Some(Tok::Code(text)) => {
                let text = text.clone();
                self.at += 1;
                Action::Code(text)
            }
            Some(Tok::Ellipsis | Tok::Word(_)) => Action::Call(self.call()?),
            _ => return Err(self.unexpected("a packet, a system call, a command or code")),
        };
        let outbound = matches!(&action, Action::Packet(p) if p.direction == Direction::Outbound);
        let fail = |message: &str| Err(SyntaxError { file: self.file.into(), line, message: message.into() });
        match time {
            Time::Any if !outbound => fail("event time <star> can only be used with outbound packets"),
            Time::Between(..) | Time::AfterBetween(..) if !outbound => {
                fail("event time range can only be used with outbound packets")
            }
            Time::Between(a, b) | Time::AfterBetween(a, b) if b < a => fail("time range is backwards"),
            _ => Ok(Event { line, time, action }),
        }
    }

    fn time(&mut self) -> Result<Time, SyntaxError> {
        if self.eat('*') {
            return Ok(Time::Any);
        }
        let relative = self.eat('+');
        let from = self.seconds()?;
        if self.eat('~') {
            if relative {
                self.expect('+')?;
            }
            let to = self.seconds()?;
            return Ok(if relative { Time::AfterBetween(from, to) } else { Time::Between(from, to) });
        }
        Ok(if relative { Time::After(from) } else { Time::At(from) })
    }

    /// Parses seconds, as microseconds.
    fn seconds(&mut self) -> Result<i64, SyntaxError> {
        let seconds = match self.peek() {
            Some(&Tok::Float(seconds, _)) => seconds,
            Some(&Tok::Int(seconds)) => seconds as f64,
            _ => return Err(self.unexpected("a time")),
        };
        if seconds < 0.0 {
            return Err(self.error("negative time"));
        }
        self.at += 1;
        Ok((seconds * 1e6).round() as i64)
    }

    fn call(&mut self) -> Result<Call, SyntaxError> {
        let end = if self.peek() == Some(&Tok::Ellipsis) {
            self.at += 1;
            // Some scripts repeat the plus sign of a relative time.
            self.eat('+');
            Some(self.seconds()?)
        } else {
            None
        };
        let name = self.word("a system call's name")?;
        self.expect('(')?;
        let args = self.list_until(')')?;
        self.expect('=')?;
        let result = self.expression()?;
        let errno = match self.peek() {
            Some(Tok::Word(_)) => Some(self.word("an errno")?),
            _ => None,
        };
        let note = if self.peek() == Some(&Tok::Ch('(')) { Some(self.note()?) } else { None };
        Ok(Call { end, name, args, result, errno, note })
    }

    /// `(Resource temporarily unavailable)`
    fn note(&mut self) -> Result<String, SyntaxError> {
        self.expect('(')?;
        let mut words: Vec<String> = Vec::new();
        loop {
            match self.bump() {
                Some(Tok::Ch(')')) => return Ok(words.join(" ")),
                Some(Tok::Word(w)) => words.push(w),
                Some(Tok::Int(n)) => words.push(n.to_string()),
                Some(Tok::Hex(n)) => words.push(format!("{n:#x}")),
                Some(Tok::Ch(c)) => words.push(c.to_string()),
                _ => return Err(self.unexpected("')'")),
            }
        }
    }

    fn list_until(&mut self, close: char) -> Result<Vec<Expr>, SyntaxError> {
        let mut list = Vec::new();
        if self.eat(close) {
            return Ok(list);
        }
        loop {
            list.push(self.expression()?);
            if self.eat(close) {
                return Ok(list);
            }
            if !self.eat(',') {
                return Err(self.unexpected(&format!("',' or '{close}'")));
            }
        }
    }

    pub(crate) fn expression(&mut self) -> Result<Expr, SyntaxError> {
        let mut left = self.term()?;
        while self.eat('|') {
            left = Expr::Or(Box::new(left), Box::new(self.term()?));
        }
        Ok(left)
    }

    fn term(&mut self) -> Result<Expr, SyntaxError> {
        let expr = match self.peek().cloned() {
            Some(Tok::Ellipsis) => Expr::Ellipsis,
            Some(Tok::Int(n)) => Expr::Int(n),
            Some(Tok::Hex(n)) => Expr::Hex(n),
            Some(Tok::Str(_)) => return self.strings(),
            Some(Tok::Ch('[')) => {
                self.at += 1;
                return Ok(Expr::List(self.list_until(']')?));
            }
            Some(Tok::Ch('{')) => {
                self.at += 1;
                return self.structure();
            }
            Some(Tok::Word(word)) => {
                self.at += 1;
                if FUNCTIONS.contains(&word.as_str()) && self.eat('(') {
                    return Ok(Expr::Apply(word, self.list_until(')')?));
                }
                if self.eat('=') {
                    return Ok(Expr::Assign(word, Box::new(self.expression()?)));
                }
                return Ok(Expr::Word(word));
            }
            _ => return Err(self.unexpected("an expression")),
        };
        self.at += 1;
        Ok(expr)
    }

    fn strings(&mut self) -> Result<Expr, SyntaxError> {
        let mut text = String::new();
        while let Some(Tok::Str(s)) = self.peek() {
            text.push_str(s);
            self.at += 1;
        }
        if self.peek() == Some(&Tok::Ellipsis) {
            self.at += 1;
            return Ok(Expr::StrPrefix(text));
        }
        Ok(Expr::Str(text))
    }

    fn structure(&mut self) -> Result<Expr, SyntaxError> {
        let mut fields = Vec::new();
        loop {
            if fields.is_empty() && self.eat('}') {
                break;
            }
            fields.push(self.field()?);
            if self.eat('}') {
                break;
            }
            if !self.eat(',') {
                return Err(self.unexpected("',' or '}'"));
            }
        }
        Ok(Expr::Struct(fields))
    }

    fn field(&mut self) -> Result<Field, SyntaxError> {
        let named = matches!(self.peek(), Some(Tok::Word(w)) if !FUNCTIONS.contains(&w.as_str()))
            && matches!(self.peek_at(1), Some(Tok::Ch('=' | '(')));
        if !named {
            return Ok(Field { name: None, count: None, value: self.expression()? });
        }
        let name = Some(self.word("a field's name")?);
        let count = if self.eat('(') {
            let count = self.expression()?;
            self.expect(')')?;
            Some(count)
        } else {
            None
        };
        self.expect('=')?;
        Ok(Field { name, count, value: self.expression()? })
    }
}
