//! The grammar of packets.

use super::ast::*;
use super::lex::Tok;
use super::parse::Parser;
use super::syntax_error::SyntaxError;
use crate::packet::flags;
use crate::packet::option::TcpOption;

impl Parser<'_> {
    pub(crate) fn packet(&mut self) -> Result<PacketSpec, SyntaxError> {
        let direction = match self.bump() {
            Some(Tok::Ch('<')) => Direction::Inbound,
            _ => Direction::Outbound,
        };
        let socket = if self.is_word("sock") && self.peek_at(1) == Some(&Tok::Ch('(')) {
            self.word("sock")?;
            self.expect('(')?;
            let fd = self.int("a descriptor")?;
            self.expect(')')?;
            Some(fd)
        } else {
            None
        };
        for unsupported in ["ipv4", "ipv6", "gre", "GREv0", "mpls", "encap"] {
            if self.is_word(unsupported) {
                return Err(self.error(format!("encapsulation ({unsupported}) is not supported")));
            }
        }
        let ip = self.ip_info()?;
        if ip.tos == Tos::Ect01 && direction == Direction::Inbound {
            return Err(self.error("[ect01] can only be used with outbound packets"));
        }
        if self.eat_word("icmp") {
            let body = Body::Icmp(self.icmp()?);
            return Ok(PacketSpec { direction, ip, ports: None, socket, body });
        }
        if self.eat_word("udp") {
            let ports = self.ports()?;
            self.expect('(')?;
            let len = self.number("UDP payload size")?;
            self.expect(')')?;
            return Ok(PacketSpec { direction, ip, ports, socket, body: Body::Udp(len) });
        }
        let ports = self.ports()?;
        let tcp = self.tcp(direction)?;
        Ok(PacketSpec { direction, ip, ports, socket, body: Body::Tcp(tcp) })
    }

    fn ports(&mut self) -> Result<Option<(u16, u16)>, SyntaxError> {
        if !(matches!(self.peek(), Some(Tok::Int(_))) && self.peek_at(1) == Some(&Tok::Ch('>'))) {
            return Ok(None);
        }
        let source = self.number("src port")?;
        self.expect('>')?;
        Ok(Some((source, self.number("dst port")?)))
    }

    fn ip_info(&mut self) -> Result<IpInfo, SyntaxError> {
        let close = match self.peek() {
            Some(Tok::Ch('[')) => ']',
            Some(Tok::Ch('(')) => ')',
            _ => return Ok(IpInfo::default()),
        };
        self.bump();
        let mut info = IpInfo::default();
        loop {
            let word = self.word("ECN, tos, ttl or flowlabel")?;
            match word.as_str() {
                "noecn" => info.tos = Tos::Ecn(0),
                "ect1" => info.tos = Tos::Ecn(1),
                "ect0" => info.tos = Tos::Ecn(2),
                "ce" => info.tos = Tos::Ecn(3),
                "ect01" => info.tos = Tos::Ect01,
                "tos" => info.tos = Tos::Byte(self.number("tos")?),
                "ttl" => info.ttl = self.number("ttl")?,
                "flowlabel" => {
                    info.flow_label = self.number("flowlabel")?;
                    if info.flow_label >= 1 << 20 {
                        return Err(self.error("flowlabel out of range for 20 bits"));
                    }
                }
                other => return Err(self.error(format!("expected ECN, tos, ttl or flowlabel, found '{other}'"))),
            }
            if self.eat(close) {
                return Ok(info);
            }
            self.expect(',')?;
        }
    }

    fn tcp(&mut self, direction: Direction) -> Result<TcpSpec, SyntaxError> {
        let (flags, ace) = self.flags()?;
        let (seq, len) = self.range()?;
        let ack = if self.eat_word("ack") { self.number("TCP ack sequence number")? } else { 0 };
        let window = if self.eat_word("win") { Some(self.number("TCP window value")?) } else { None };
        let urgent = if self.eat_word("urg") { self.number("urg_ptr value")? } else { 0 };
        if window.is_none() && direction == Direction::Inbound {
            return Err(self.error("window must be specified for inbound packets"));
        }
        let options = self.options(direction)?;
        let bytes: usize = options.iter().flatten().map(TcpOption::len).sum();
        if !bytes.is_multiple_of(4) {
            return Err(self.error(format!(
                "TCP options are not padded correctly to ensure TCP header is a multiple of 4 bytes: {} excess bytes",
                bytes % 4
            )));
        }
        if bytes > 40 {
            return Err(self.error("TCP header too large"));
        }
        Ok(TcpSpec { flags, ace, seq, len, ack, window, urgent, options })
    }

    /// Parses letters, `.` for ACK, and one digit for the three bits of accurate ECN.
    fn flags(&mut self) -> Result<(u16, bool), SyntaxError> {
        if self.eat('-') {
            return Ok((0, false));
        }
        let mut text = String::new();
        // Letters and dots in any order: ACK is printed before URG.
        loop {
            match self.peek() {
                Some(Tok::Word(word)) => text.push_str(word),
                Some(Tok::Float(_, float)) => text.push_str(float),
                Some(Tok::Ch('.')) => text.push('.'),
                _ if text.is_empty() => return Err(self.unexpected("TCP flags")),
                _ => break,
            }
            self.bump();
        }
        let (mut bits, mut ecn, mut ace) = (0, false, None);
        for c in text.chars() {
            match c {
                '0'..='7' if ecn || ace.is_some() => return Err(self.error(format!("Conflicting TCP flag: '{c}'"))),
                '0'..='7' => ace = Some(c as u16 - '0' as u16),
                'E' | 'W' | 'A' if ace.is_some() => return Err(self.error(format!("Conflicting TCP flag: '{c}'"))),
                _ => {
                    ecn |= matches!(c, 'E' | 'W' | 'A');
                    bits |= flags::of(c).ok_or_else(|| self.error(format!("Invalid TCP flag: '{c}'")))?;
                }
            }
        }
        let ace = ace.unwrap_or(0);
        Ok((bits | ace << 6, ace != 0))
    }

    /// `1:1001(1000)`
    fn range(&mut self) -> Result<(u32, u16), SyntaxError> {
        let start: u32 = self.number("TCP start sequence number")?;
        self.expect(':')?;
        let end: u32 = self.number("TCP end sequence number")?;
        self.expect('(')?;
        let len: u16 = self.number("TCP payload size")?;
        self.expect(')')?;
        if u64::from(end) != u64::from(start) + u64::from(len) {
            return Err(self.error("inconsistent TCP sequence numbers and payload size"));
        }
        Ok((start, len))
    }

    fn options(&mut self, direction: Direction) -> Result<Option<Vec<TcpOption>>, SyntaxError> {
        if !self.eat('<') {
            return Ok(Some(Vec::new()));
        }
        if self.peek() == Some(&Tok::Ellipsis) {
            if direction == Direction::Inbound {
                return Err(self.error("<...> for TCP options can only be used with outbound packets"));
            }
            self.bump();
            self.expect('>')?;
            return Ok(None);
        }
        let mut list = vec![self.tcp_option()?];
        while self.eat(',') {
            list.push(self.tcp_option()?);
        }
        self.expect('>')?;
        Ok(Some(list))
    }

    fn tcp_option(&mut self) -> Result<TcpOption, SyntaxError> {
        let name = self.word("a TCP option")?;
        Ok(match name.as_str() {
            "nop" => TcpOption::Nop,
            "eol" => TcpOption::Eol,
            "mss" => TcpOption::Mss(self.number("mss value")?),
            "wscale" => TcpOption::WindowScale(self.number("window scale shift count")?),
            "sackOK" => TcpOption::SackPermitted,
            "sack" => {
                let mut blocks = Vec::new();
                while matches!(self.peek(), Some(Tok::Int(_))) {
                    let left = self.number("TCP SACK left sequence number")?;
                    self.expect(':')?;
                    blocks.push((left, self.number("TCP SACK right sequence number")?));
                }
                if blocks.is_empty() {
                    return Err(self.unexpected("a SACK block"));
                }
                TcpOption::Sack(blocks)
            }
            "TS" => {
                if !self.eat_word("val") {
                    return Err(self.unexpected("'val'"));
                }
                let val = self.number("ts val")?;
                if !self.eat_word("ecr") {
                    return Err(self.unexpected("'ecr'"));
                }
                TcpOption::Timestamp { val, ecr: self.number("ecr val")? }
            }
            "md5" => TcpOption::Md5(self.hex()?),
            "FO" => TcpOption::FastOpen(self.hex()?),
            "FOEXP" => TcpOption::FastOpenExperiment(self.hex()?),
            "ECN" => self.accurate_ecn()?,
            other => return Err(self.error(format!("unknown TCP option '{other}'"))),
        })
    }

    /// Parses bytes written as one word of hexadecimal digits, possibly none.
    fn hex(&mut self) -> Result<Vec<u8>, SyntaxError> {
        let text = match self.peek() {
            Some(Tok::Word(w)) => w.clone(),
            Some(Tok::Int(_)) => self.text(),
            _ => return Ok(Vec::new()),
        };
        self.bump();
        let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
        match digits {
            Some(digits) if digits.len().is_multiple_of(2) => {
                Ok(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
            }
            _ => Err(self.error(format!("'{text}' is not a string of bytes in hexadecimal"))),
        }
    }

    fn accurate_ecn(&mut self) -> Result<TcpOption, SyntaxError> {
        let first = self.word("e0b or e1b")?;
        let order: u8 = match first.as_str() {
            "e0b" => 0,
            "e1b" => 1,
            _ => return Err(self.error(format!("expected e0b or e1b, found '{first}'"))),
        };
        let mut fields = vec![self.number::<u32>("TCP AccECN field value")?];
        let last = if order == 0 { "e1b" } else { "e0b" };
        if self.eat_word("ceb") {
            fields.push(self.number("TCP AccECN field value")?);
            if self.eat_word(last) {
                fields.push(self.number("TCP AccECN field value")?);
            }
        }
        if fields.iter().any(|f| *f >= 1 << 24) {
            return Err(self.error("TCP AccECN field value out of range"));
        }
        Ok(TcpOption::AccurateEcn { order, fields })
    }

    fn icmp(&mut self) -> Result<IcmpSpec, SyntaxError> {
        let kind = self.word("an ICMP type")?;
        let code = match self.peek() {
            Some(Tok::Word(w)) if w != "mtu" && w != "id" => Some(self.word("an ICMP code")?),
            _ => None,
        };
        let mtu = if self.eat_word("mtu") { Some(self.number("mtu")?) } else { None };
        let id = if self.eat_word("id") { self.number("id")? } else { 0 };
        let mut echoed = Echoed::Unsaid;
        if self.eat('[') {
            echoed = if self.eat_word("udp") {
                Echoed::Udp(self.parenthesized()?)
            } else if self.eat_word("raw") {
                Echoed::Raw(self.parenthesized()?)
            } else {
                let (seq, len) = self.range()?;
                Echoed::Tcp { seq, len }
            };
            self.expect(']')?;
        }
        Ok(IcmpSpec { kind, code, mtu, id, echoed })
    }

    fn parenthesized(&mut self) -> Result<u16, SyntaxError> {
        self.expect('(')?;
        let n = self.number("payload size")?;
        self.expect(')')?;
        Ok(n)
    }
}
