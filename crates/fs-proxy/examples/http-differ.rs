//! Compares the lean parsers with hyper on mutated heads and chunks: `http-differ CASES [FIRST_SEED]`.

#[path = "../tests/differ/mod.rs"]
mod differ;

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let cases = arguments.next().unwrap_or(1_000_000);
    let first = arguments.next().unwrap_or(1);
    let mut done = differ::Count::default();
    while done.cases < cases {
        let step = (cases - done.cases).min(100_000);
        let count = differ::run(first + done.cases, step);
        done.cases += count.cases;
        done.requests += count.requests;
        done.answers += count.answers;
        println!("{done:?}");
    }
    println!("no difference");
}
