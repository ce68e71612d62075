//! Statements and expressions of Python, by precedence climbing.

use super::lex::Tok;

#[derive(Clone, Debug)]
pub(super) enum Statement {
    Assert(Expr, Option<Expr>),
    /// `name = value` or, with an operator, `name += value`.
    Assign(String, Option<&'static str>, Expr),
    If(Expr, Vec<Statement>),
    Expr(Expr),
    Pass,
}

#[derive(Clone, Debug)]
pub(super) enum Expr {
    Int(i64),
    Float(f64),
    Str(String),
    Name(String),
    Tuple(Vec<Expr>),
    Call(String, Vec<Expr>),
    Index(Box<Expr>, Box<Expr>),
    Unary(&'static str, Box<Expr>),
    Binary(&'static str, Box<Expr>, Box<Expr>),
    /// `a <= b < c`
    Chain(Box<Expr>, Vec<(Comparison, Expr)>),
    And(Box<Expr>, Box<Expr>),
    Or(Box<Expr>, Box<Expr>),
    Not(Box<Expr>),
    /// `a if condition else b`
    Choice(Box<Expr>, Box<Expr>, Box<Expr>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Comparison {
    Equal,
    Unequal,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    In,
    NotIn,
}

struct Parser<'a> {
    tokens: &'a [Tok],
    at: usize,
}

pub(super) fn parse(tokens: &[Tok]) -> Result<Vec<Statement>, String> {
    let mut parser = Parser { tokens, at: 0 };
    let mut statements = Vec::new();
    while parser.at < tokens.len() {
        if parser.peek() == Some(&Tok::End) {
            parser.at += 1;
            continue;
        }
        statements.push(parser.statement()?);
        if parser.bump() != Some(Tok::End) {
            return Err("Python: expected the statement's end".into());
        }
    }
    Ok(statements)
}

/// Binary operators by rising precedence, each level left-associative.
const LEVELS: &[&[&str]] = &[&["|"], &["^"], &["&"], &["<<", ">>"], &["+", "-"], &["*", "//", "/", "%"]];

impl Parser<'_> {
    fn peek(&self) -> Option<&Tok> {
        self.tokens.get(self.at)
    }

    fn bump(&mut self) -> Option<Tok> {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned()
    }

    fn eat(&mut self, op: &str) -> bool {
        let found = matches!(self.peek(), Some(Tok::Op(o)) if *o == op);
        self.at += usize::from(found);
        found
    }

    fn eat_name(&mut self, name: &str) -> bool {
        let found = matches!(self.peek(), Some(Tok::Name(n)) if n == name);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, op: &str) -> Result<(), String> {
        if self.eat(op) { Ok(()) } else { Err(format!("Python: expected '{op}', found {:?}", self.peek())) }
    }

    fn statement(&mut self) -> Result<Statement, String> {
        if self.eat_name("assert") {
            let condition = self.expression()?;
            let message = if self.eat(",") { Some(self.tuple()?) } else { None };
            return Ok(Statement::Assert(condition, message));
        }
        if self.eat_name("pass") {
            return Ok(Statement::Pass);
        }
        if self.eat_name("if") {
            let condition = self.expression()?;
            self.expect(":")?;
            let mut body = vec![self.statement()?];
            // Statements on the same line belong to it; blocks over several lines are not
            // supported.
            if body.iter().any(|s| matches!(s, Statement::If(..))) {
                return Err("Python: nested if is not supported".into());
            }
            return Ok(Statement::If(condition, std::mem::take(&mut body)));
        }
        for unsupported in
            ["for", "while", "def", "class", "import", "from", "try", "with", "return", "lambda", "else", "elif"]
        {
            if self.eat_name(unsupported) {
                return Err(format!("Python: '{unsupported}' is not supported"));
            }
        }
        if let (Some(Tok::Name(name)), Some(Tok::Op(op))) = (self.peek(), self.tokens.get(self.at + 1))
            && op.ends_with('=')
            && !matches!(*op, "==" | "!=" | "<=" | ">=")
        {
            let name = name.clone();
            let op = op.strip_suffix('=').filter(|o| !o.is_empty());
            self.at += 2;
            return Ok(Statement::Assign(name, op, self.tuple()?));
        }
        Ok(Statement::Expr(self.tuple()?))
    }

    /// Parses an expression, or several separated by commas.
    fn tuple(&mut self) -> Result<Expr, String> {
        let first = self.expression()?;
        if !matches!(self.peek(), Some(Tok::Op(","))) {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.eat(",") {
            if matches!(self.peek(), None | Some(Tok::End | Tok::Op(")"))) {
                break;
            }
            items.push(self.expression()?);
        }
        Ok(Expr::Tuple(items))
    }

    fn expression(&mut self) -> Result<Expr, String> {
        let value = self.or()?;
        if !self.eat_name("if") {
            return Ok(value);
        }
        let condition = self.or()?;
        if !self.eat_name("else") {
            return Err("Python: expected 'else'".into());
        }
        Ok(Expr::Choice(Box::new(value), Box::new(condition), Box::new(self.expression()?)))
    }

    fn or(&mut self) -> Result<Expr, String> {
        let mut left = self.and()?;
        while self.eat_name("or") {
            left = Expr::Or(Box::new(left), Box::new(self.and()?));
        }
        Ok(left)
    }

    fn and(&mut self) -> Result<Expr, String> {
        let mut left = self.not()?;
        while self.eat_name("and") {
            left = Expr::And(Box::new(left), Box::new(self.not()?));
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Expr, String> {
        if self.eat_name("not") { Ok(Expr::Not(Box::new(self.not()?))) } else { self.comparison() }
    }

    fn comparison(&mut self) -> Result<Expr, String> {
        let first = self.level(0)?;
        let mut rest = Vec::new();
        while let Some(comparison) = self.comparator()? {
            rest.push((comparison, self.level(0)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Chain(Box::new(first), rest) })
    }

    fn comparator(&mut self) -> Result<Option<Comparison>, String> {
        let found = match self.peek() {
            Some(Tok::Op("==")) => Comparison::Equal,
            Some(Tok::Op("!=")) => Comparison::Unequal,
            Some(Tok::Op("<=")) => Comparison::LessEqual,
            Some(Tok::Op(">=")) => Comparison::GreaterEqual,
            Some(Tok::Op("<")) => Comparison::Less,
            Some(Tok::Op(">")) => Comparison::Greater,
            Some(Tok::Name(name)) if name == "in" => Comparison::In,
            Some(Tok::Name(name)) if name == "not" => {
                self.at += 1;
                if !matches!(self.peek(), Some(Tok::Name(name)) if name == "in") {
                    return Err("Python: expected 'in' after 'not'".into());
                }
                Comparison::NotIn
            }
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(found))
    }

    fn level(&mut self, level: usize) -> Result<Expr, String> {
        let Some(operators) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.level(level + 1)?;
        while let Some(Tok::Op(op)) = self.peek()
            && let Some(op) = operators.iter().find(|o| *o == op)
        {
            self.at += 1;
            left = Expr::Binary(op, Box::new(left), Box::new(self.level(level + 1)?));
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Expr, String> {
        for op in ["-", "+", "~"] {
            if self.eat(op) {
                return Ok(Expr::Unary(op, Box::new(self.unary()?)));
            }
        }
        let base = self.postfix()?;
        if self.eat("**") {
            return Ok(Expr::Binary("**", Box::new(base), Box::new(self.unary()?)));
        }
        Ok(base)
    }

    fn postfix(&mut self) -> Result<Expr, String> {
        let mut value = self.atom()?;
        while self.eat("[") {
            value = Expr::Index(Box::new(value), Box::new(self.expression()?));
            self.expect("]")?;
        }
        Ok(value)
    }

    fn atom(&mut self) -> Result<Expr, String> {
        match self.bump() {
            Some(Tok::Int(n)) => Ok(Expr::Int(n)),
            Some(Tok::Float(x)) => Ok(Expr::Float(x)),
            Some(Tok::Str(mut text)) => {
                while let Some(Tok::Str(more)) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Ok(Expr::Str(text))
            }
            Some(Tok::Name(name)) if self.eat("(") => Ok(Expr::Call(name, self.items(")")?)),
            Some(Tok::Name(name)) => Ok(Expr::Name(name)),
            Some(Tok::Op("(")) => {
                if self.eat(")") {
                    return Ok(Expr::Tuple(Vec::new()));
                }
                let inner = self.tuple()?;
                self.expect(")")?;
                Ok(inner)
            }
            Some(Tok::Op("[")) => Ok(Expr::Tuple(self.items("]")?)),
            other => Err(format!("Python: unexpected {other:?}")),
        }
    }

    fn items(&mut self, close: &str) -> Result<Vec<Expr>, String> {
        let mut items = Vec::new();
        while !self.eat(close) {
            items.push(self.expression()?);
            if !self.eat(",") {
                self.expect(close)?;
                break;
            }
        }
        Ok(items)
    }
}
