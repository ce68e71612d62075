//! Normalizes signatures, so that those which a caller cannot tell apart become equal: without the
//! names of parameters, modules, lifetimes and bounded type parameters.

use std::collections::BTreeMap;

/// Returns the text between `pub` and the body of a method of `of`.
pub(crate) fn of_method(text: &str, of: &str) -> Option<String> {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (before, rest) = text.split_once("fn ")?;
    let named = rest.find(['<', '('])?;
    let (generics, rest) =
        if rest[named..].starts_with('<') { enclosed(&rest[named..])? } else { ("", &rest[named..]) };
    let (parameters, rest) = enclosed(rest)?;
    let (answer, conditions) = rest.split_once(" where ").unwrap_or((rest, ""));
    let bounds: BTreeMap<&str, &str> =
        parts(generics).into_iter().chain(parts(conditions)).filter_map(|part| part.split_once(": ")).collect();
    let parameters: Vec<String> = parts(parameters).into_iter().map(|part| parameter(part, &bounds, of)).collect();
    let marks: String = ["async ", "unsafe ", "const "].into_iter().filter(|mark| before.contains(mark)).collect();
    Some(format!("{marks}({}){}", parameters.join(", "), plain(answer, &bounds, of)))
}

/// Returns the signatures of a getter and a setter of an option.
pub(crate) fn of_option(kind: &str, sets: bool) -> String {
    let kind = plain(kind, &BTreeMap::new(), "");
    if sets { format!("(&self, {kind}) -> Result<()>") } else { format!("(&self) -> Result<{kind}>") }
}

fn parameter(text: &str, bounds: &BTreeMap<&str, &str>, of: &str) -> String {
    // A receiver has no name, even if a macro gives it one.
    let text = text.replace("$self", "self");
    let kind = match text.split_once(": ") {
        Some((_, kind)) => kind,
        None => text.strip_prefix("mut ").unwrap_or(&text),
    };
    plain(kind, bounds, of)
}

/// Splits `text` into the part within its first brackets and the rest.
fn enclosed(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let mut before = ' ';
    for (at, letter) in text.char_indices() {
        match letter {
            '(' | '<' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[1..at], &text[at + 1..]));
        }
        before = letter;
    }
    None
}

/// Splits a list at its commas.
fn parts(list: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut before) = (0, 0, ' ');
    let mut found = Vec::new();
    for (at, letter) in list.char_indices() {
        match letter {
            '(' | '<' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '>' if before != '-' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
        before = letter;
    }
    found.push(&list[begin..]);
    found.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// Normalizes a type: each word without path and lifetime.
fn plain(text: &str, bounds: &BTreeMap<&str, &str>, of: &str) -> String {
    let mut said = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
        let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
        if letter == '\'' {
            // A lifetime, with the space or comma after it.
            let end = 1 + rest[1..].find(|letter| !is_word(letter)).unwrap_or(rest.len() - 1);
            rest = rest[end..].trim_start_matches([',', ' ']);
        } else if end == 0 {
            said.push(letter);
            rest = &rest[letter.len_utf8()..];
        } else {
            let word = &rest[..end];
            rest = &rest[end..];
            if let Some(behind) = rest.strip_prefix("::") {
                rest = behind;
                continue;
            }
            match (word, bounds.get(word)) {
                ("Self", _) => said.push_str(of),
                // The type on all our platforms.
                ("c_int", _) => said.push_str("i32"),
                (_, Some(bound)) => said.push_str(&format!("impl {}", plain(bound, &BTreeMap::new(), of))),
                _ => said.push_str(word),
            }
        }
    }
    said.replace("<>", "")
}

#[test]
fn equivalent_signatures_are_equal() {
    let theirs = "async fn send_to<A: ToSocketAddrs>(&self, buf: &[u8], addr: A) -> std::io::Result<usize>";
    let ours = "async fn send_to(&self, data: &[u8], target: impl tokio::net::ToSocketAddrs) -> io::Result<usize>";
    let same = "async (&self, &[u8], impl ToSocketAddrs) -> Result<usize>";
    assert_eq!(of_method(theirs, "T").as_deref(), Some(same));
    assert_eq!(of_method(ours, "T").as_deref(), Some(same));
    let split = "fn split<'a>(&'a mut self) -> (ReadHalf<'a>, WriteHalf<'a>)";
    assert_eq!(of_method(split, "T").as_deref(), Some("(&mut self) -> (ReadHalf, WriteHalf)"));
    let called = "fn f<R>(mut self, f: impl FnMut() -> Result<R>, flags: sys::c_int) -> Self where R: Copy,";
    assert_eq!(of_method(called, "T").as_deref(), Some("(self, impl FnMut() -> Result<impl Copy>, i32) -> T"));
    assert_eq!(of_method("fn r#type(&$self) -> u32", "T").as_deref(), Some("(&self) -> u32"));
    assert_eq!(of_option("Option<std::time::Duration>", true), "(&self, Option<Duration>) -> Result<()>");
    assert_ne!(of_method("fn f(&self) -> u32", "T"), of_method("async fn f(&self) -> u32", "T"));
}
