//! The attribute `#[fastsock::main]`. Use it through the crate `fastsock`.

use proc_macro::{Delimiter, Group, Ident, Punct, Spacing, Span, TokenStream, TokenTree};

/// Runs an `async fn main()` with `fastsock::run`.
///
/// ```no_run
/// use fastsock::net::TcpListener;
/// use tokio::io::AsyncWriteExt;
///
/// #[fastsock::main]
/// async fn main() -> std::io::Result<()> {
///     let listener = TcpListener::bind("0.0.0.0:7777").await?;
///     loop {
///         let (mut stream, _peer) = listener.accept().await?;
///         tokio::spawn(async move { stream.write_all(b"hello\n").await });
///     }
/// }
/// ```
#[proc_macro_attribute]
pub fn main(options: TokenStream, function: TokenStream) -> TokenStream {
    if !options.is_empty() {
        return error("#[fastsock::main] takes no options: use `fastsock::block_on` with a runtime of your own");
    }
    expand(function).unwrap_or_else(|| error("#[fastsock::main] is for an `async fn` without arguments"))
}

/// Rewrites `async fn f() -> T { … }` as `fn f() -> T { ::fastsock::__main(async { … }) }`.
fn expand(function: TokenStream) -> Option<TokenStream> {
    let mut before: Vec<TokenTree> = function.into_iter().collect();
    let body = match before.pop()? {
        TokenTree::Group(body) if body.delimiter() == Delimiter::Brace => body,
        _ => return None,
    };
    let is = |token: &TokenTree, word: &str| matches!(token, TokenTree::Ident(ident) if ident.to_string() == word);
    let at = before.windows(2).position(|pair| is(&pair[0], "async") && is(&pair[1], "fn"))?;
    before.remove(at);
    // `fn`, its name, and empty parentheses.
    match before.get(at + 2)? {
        TokenTree::Group(arguments) if arguments.stream().is_empty() => {}
        _ => return None,
    }
    let word = |name: &str| TokenTree::from(Ident::new(name, Span::call_site()));
    let colons = || [Punct::new(':', Spacing::Joint), Punct::new(':', Spacing::Alone)].map(TokenTree::from);
    let future = TokenStream::from_iter([word("async"), word("move"), TokenTree::from(body)]);
    let mut call: Vec<TokenTree> = colons().into();
    call.push(word("fastsock"));
    call.extend(colons());
    call.push(word("__main"));
    call.push(Group::new(Delimiter::Parenthesis, future).into());
    before.push(Group::new(Delimiter::Brace, TokenStream::from_iter(call)).into());
    Some(TokenStream::from_iter(before))
}

fn error(why: &str) -> TokenStream {
    format!("::core::compile_error!({why:?});").parse().unwrap_or_default()
}
