//! Python values and execution of statements.

use super::Python;
use super::parse::{Comparison, Expr, Statement};
use std::cmp::Ordering;
use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Nothing,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Tuple(Vec<Value>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Nothing => f.write_str("None"),
            Value::Bool(b) => f.write_str(if *b { "True" } else { "False" }),
            Value::Int(n) => write!(f, "{n}"),
            Value::Float(x) => write!(f, "{x}"),
            Value::Str(s) => f.write_str(s),
            Value::Tuple(items) => {
                let items: Vec<String> = items.iter().map(ToString::to_string).collect();
                write!(f, "({})", items.join(", "))
            }
        }
    }
}

impl Value {
    fn is_true(&self) -> bool {
        match self {
            Value::Nothing => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(x) => *x != 0.0,
            Value::Str(s) => !s.is_empty(),
            Value::Tuple(items) => !items.is_empty(),
        }
    }

    fn int(&self) -> Result<i64, String> {
        match self {
            Value::Int(n) => Ok(*n),
            Value::Bool(b) => Ok((*b).into()),
            other => Err(format!("Python: '{other}' is no integer")),
        }
    }

    fn float(&self) -> Result<f64, String> {
        match self {
            Value::Float(x) => Ok(*x),
            other => other.int().map(|n| n as f64),
        }
    }
}

fn compare(a: &Value, b: &Value) -> Result<Ordering, String> {
    match (a, b) {
        (Value::Str(a), Value::Str(b)) => Ok(a.cmp(b)),
        (Value::Tuple(a), Value::Tuple(b)) => {
            for (a, b) in a.iter().zip(b) {
                let order = compare(a, b)?;
                if order != Ordering::Equal {
                    return Ok(order);
                }
            }
            Ok(a.len().cmp(&b.len()))
        }
        (Value::Float(_), _) | (_, Value::Float(_)) => {
            a.float()?.partial_cmp(&b.float()?).ok_or_else(|| "Python: not a number".into())
        }
        _ => Ok(a.int()?.cmp(&b.int()?)),
    }
}

fn equal(a: &Value, b: &Value) -> bool {
    compare(a, b).map_or(a == b, |order| order == Ordering::Equal)
}

fn binary(op: &str, a: &Value, b: &Value) -> Result<Value, String> {
    if let (Value::Str(text), "%") = (a, op) {
        return format_text(text, b).map(Value::Str);
    }
    if let (Value::Str(x), "+", Value::Str(y)) = (a, op, b) {
        return Ok(Value::Str(format!("{x}{y}")));
    }
    let floats = matches!(a, Value::Float(_)) || matches!(b, Value::Float(_));
    if floats || op == "/" {
        let (x, y) = (a.float()?, b.float()?);
        if y == 0.0 && matches!(op, "/" | "//" | "%") {
            return Err("Python: division by zero".into());
        }
        return Ok(Value::Float(match op {
            "+" => x + y,
            "-" => x - y,
            "*" => x * y,
            "/" => x / y,
            "//" => (x / y).floor(),
            "%" => x - y * (x / y).floor(),
            "**" => x.powf(y),
            _ => return Err(format!("Python: '{op}' needs integers")),
        }));
    }
    let (x, y) = (a.int()?, b.int()?);
    let shift = u32::try_from(y).ok().filter(|s| *s < 64);
    let value = match op {
        "+" => x.checked_add(y),
        "-" => x.checked_sub(y),
        "*" => x.checked_mul(y),
        "//" => x.checked_div(y).map(|q| if x % y != 0 && (x < 0) != (y < 0) { q - 1 } else { q }),
        "%" => x.checked_rem(y).map(|r| if r != 0 && (r < 0) != (y < 0) { r + y } else { r }),
        "**" => u32::try_from(y).ok().and_then(|y| x.checked_pow(y)),
        "&" => Some(x & y),
        "|" => Some(x | y),
        "^" => Some(x ^ y),
        "<<" => shift.and_then(|s| x.checked_mul(1i64.checked_shl(s)?)),
        ">>" => Some(x >> y.clamp(0, 63)),
        _ => None,
    };
    value.map(Value::Int).ok_or_else(|| format!("Python: {x} {op} {y} is out of range"))
}

/// `'%d of %s' % (…)`
fn format_text(text: &str, args: &Value) -> Result<String, String> {
    let args = match args {
        Value::Tuple(items) => items.clone(),
        other => vec![other.clone()],
    };
    let mut args = args.iter();
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut kind = chars.next();
        while matches!(kind, Some('0'..='9' | '.' | '-' | '+' | ' ' | 'l')) {
            kind = chars.next();
        }
        if kind == Some('%') {
            out.push('%');
            continue;
        }
        let value = args.next().ok_or("Python: not enough arguments for format string")?;
        match kind {
            Some('d' | 'i' | 'u') => out.push_str(&format!("{}", value.float()?.trunc() as i64)),
            Some('x') => out.push_str(&format!("{:x}", value.int()?)),
            Some('f') => out.push_str(&format!("{:.6}", value.float()?)),
            Some('s' | 'r') => out.push_str(&value.to_string()),
            other => return Err(format!("Python: format %{} is not supported", other.unwrap_or(' '))),
        }
    }
    Ok(out)
}

impl Python {
    pub(super) fn execute(&mut self, statement: &Statement) -> Result<(), String> {
        match statement {
            Statement::Pass => Ok(()),
            Statement::Assert(condition, message) => {
                if self.value(condition)?.is_true() {
                    return Ok(());
                }
                let mut text = format!("assertion failed: {}", describe(condition));
                if let Some(message) = message {
                    text.push_str(&format!(": {}", self.value(message)?));
                }
                let facts = self.facts(condition);
                Err(if facts.is_empty() { text } else { format!("{text} (where {facts})") })
            }
            Statement::Assign(name, op, value) => {
                let mut value = self.value(value)?;
                if let Some(op) = op {
                    value = binary(op, &self.name(name)?, &value)?;
                }
                self.names.insert(name.clone(), value);
                Ok(())
            }
            Statement::If(condition, body) => {
                if self.value(condition)?.is_true() {
                    body.iter().try_for_each(|s| self.execute(s))?;
                }
                Ok(())
            }
            Statement::Expr(expr) => self.value(expr).map(|_| ()),
        }
    }

    fn name(&self, name: &str) -> Result<Value, String> {
        match name {
            "True" => Ok(Value::Bool(true)),
            "False" => Ok(Value::Bool(false)),
            "None" => Ok(Value::Nothing),
            _ => self.names.get(name).cloned().ok_or_else(|| format!("Python: name '{name}' is not defined")),
        }
    }

    fn value(&mut self, expr: &Expr) -> Result<Value, String> {
        Ok(match expr {
            Expr::Int(n) => Value::Int(*n),
            Expr::Float(x) => Value::Float(*x),
            Expr::Str(s) => Value::Str(s.clone()),
            Expr::Name(name) => self.name(name)?,
            Expr::Tuple(items) => Value::Tuple(self.values(items)?),
            Expr::Call(name, args) => {
                let args = self.values(args)?;
                self.call(name, args)?
            }
            Expr::Index(of, at) => {
                let (of, at) = (self.value(of)?, self.value(at)?.int()?);
                let Value::Tuple(items) = of else { return Err("Python: only tuples have items".into()) };
                let at = if at < 0 { at + items.len() as i64 } else { at };
                usize::try_from(at).ok().and_then(|i| items.get(i).cloned()).ok_or("Python: index out of range")?
            }
            Expr::Unary(op, value) => match (*op, self.value(value)?) {
                ("-", Value::Float(x)) => Value::Float(-x),
                ("-", v) => Value::Int(-v.int()?),
                ("~", v) => Value::Int(!v.int()?),
                (_, v) => v,
            },
            Expr::Binary(op, a, b) => binary(op, &self.value(a)?, &self.value(b)?)?,
            Expr::Chain(first, rest) => {
                let mut left = self.value(first)?;
                for (comparison, right) in rest {
                    let right = self.value(right)?;
                    if !holds(*comparison, &left, &right)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Value::Bool(true)
            }
            Expr::And(a, b) => {
                let a = self.value(a)?;
                if a.is_true() { self.value(b)? } else { a }
            }
            Expr::Or(a, b) => {
                let a = self.value(a)?;
                if a.is_true() { a } else { self.value(b)? }
            }
            Expr::Not(value) => Value::Bool(!self.value(value)?.is_true()),
            Expr::Choice(yes, condition, no) => {
                if self.value(condition)?.is_true() {
                    self.value(yes)?
                } else {
                    self.value(no)?
                }
            }
        })
    }

    fn values(&mut self, items: &[Expr]) -> Result<Vec<Value>, String> {
        items.iter().map(|item| self.value(item)).collect()
    }

    fn call(&mut self, name: &str, args: Vec<Value>) -> Result<Value, String> {
        let best = |wanted: Ordering| {
            let items = match &args[..] {
                [Value::Tuple(items)] => items,
                _ => &args,
            };
            let mut best = items.first().cloned().ok_or_else(|| format!("Python: {name}() of nothing"))?;
            for item in items {
                if compare(item, &best)? == wanted {
                    best = item.clone();
                }
            }
            Ok(best)
        };
        match (name, &args[..]) {
            ("print", _) => {
                let words: Vec<String> = args.iter().map(ToString::to_string).collect();
                self.printed.push_str(&words.join(" "));
                self.printed.push('\n');
                Ok(Value::Nothing)
            }
            ("min", _) => best(Ordering::Less),
            ("max", _) => best(Ordering::Greater),
            ("abs", [Value::Float(x)]) => Ok(Value::Float(x.abs())),
            ("abs", [v]) => Ok(Value::Int(v.int()?.abs())),
            ("int", [v]) => Ok(Value::Int(v.float()?.trunc() as i64)),
            ("round", [v]) => Ok(Value::Int(v.float()?.round_ties_even() as i64)),
            ("float", [v]) => Ok(Value::Float(v.float()?)),
            ("str", [v]) => Ok(Value::Str(v.to_string())),
            ("bool", [v]) => Ok(Value::Bool(v.is_true())),
            ("len", [Value::Tuple(items)]) => Ok(Value::Int(items.len() as i64)),
            ("len", [Value::Str(s)]) => Ok(Value::Int(s.len() as i64)),
            _ => Err(format!("Python: {name}() with {} arguments is not supported", args.len())),
        }
    }

    /// Returns the values of the names in a condition.
    fn facts(&self, expr: &Expr) -> String {
        let mut names = Vec::new();
        collect(expr, &mut names);
        let known = names.iter().filter_map(|n| self.names.get(n).map(|v| format!("{n} = {v}")));
        known.collect::<Vec<_>>().join(", ")
    }
}

fn holds(comparison: Comparison, left: &Value, right: &Value) -> Result<bool, String> {
    let member = || match right {
        Value::Tuple(items) => Ok(items.iter().any(|i| equal(i, left))),
        Value::Str(text) => Ok(text.contains(&left.to_string())),
        other => Err(format!("Python: nothing is in '{other}'")),
    };
    Ok(match comparison {
        Comparison::Equal => equal(left, right),
        Comparison::Unequal => !equal(left, right),
        Comparison::Less => compare(left, right)?.is_lt(),
        Comparison::LessEqual => compare(left, right)?.is_le(),
        Comparison::Greater => compare(left, right)?.is_gt(),
        Comparison::GreaterEqual => compare(left, right)?.is_ge(),
        Comparison::In => member()?,
        Comparison::NotIn => !member()?,
    })
}

fn collect(expr: &Expr, names: &mut Vec<String>) {
    match expr {
        Expr::Name(name) if !names.contains(name) => names.push(name.clone()),
        Expr::Name(_) | Expr::Int(_) | Expr::Float(_) | Expr::Str(_) => {}
        Expr::Tuple(items) | Expr::Call(_, items) => items.iter().for_each(|i| collect(i, names)),
        Expr::Index(a, b) | Expr::Binary(_, a, b) | Expr::And(a, b) | Expr::Or(a, b) => {
            collect(a, names);
            collect(b, names);
        }
        Expr::Unary(_, a) | Expr::Not(a) => collect(a, names),
        Expr::Chain(a, rest) => {
            collect(a, names);
            rest.iter().for_each(|(_, e)| collect(e, names));
        }
        Expr::Choice(a, b, c) => [a, b, c].into_iter().for_each(|e| collect(e, names)),
    }
}

fn describe(expr: &Expr) -> String {
    let list = |items: &[Expr]| items.iter().map(describe).collect::<Vec<_>>().join(", ");
    match expr {
        Expr::Int(n) => n.to_string(),
        Expr::Float(x) => x.to_string(),
        Expr::Str(s) => format!("'{s}'"),
        Expr::Name(name) => name.clone(),
        Expr::Tuple(items) => format!("({})", list(items)),
        Expr::Call(name, args) => format!("{name}({})", list(args)),
        Expr::Index(a, b) => format!("{}[{}]", describe(a), describe(b)),
        Expr::Unary(op, a) => format!("{op}{}", describe(a)),
        Expr::Binary(op, a, b) => format!("({} {op} {})", describe(a), describe(b)),
        Expr::And(a, b) => format!("{} and {}", describe(a), describe(b)),
        Expr::Or(a, b) => format!("{} or {}", describe(a), describe(b)),
        Expr::Not(a) => format!("not {}", describe(a)),
        Expr::Choice(a, b, c) => format!("{} if {} else {}", describe(a), describe(b), describe(c)),
        Expr::Chain(a, rest) => {
            let mut text = describe(a);
            for (comparison, right) in rest {
                let op = match comparison {
                    Comparison::Equal => "==",
                    Comparison::Unequal => "!=",
                    Comparison::Less => "<",
                    Comparison::LessEqual => "<=",
                    Comparison::Greater => ">",
                    Comparison::GreaterEqual => ">=",
                    Comparison::In => "in",
                    Comparison::NotIn => "not in",
                };
                text.push_str(&format!(" {op} {}", describe(right)));
            }
            text
        }
    }
}
