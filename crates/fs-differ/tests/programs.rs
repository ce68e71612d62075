//! Programs as text, made small, and what is allowed to differ.

use fs_differ::emit::python;
use fs_differ::generate::{PROFILES, generate};
use fs_differ::judge::{Allowed, NotYet};
use fs_differ::program::{ACTORS, Call, Program, Step};
use fs_differ::shrink::shrink;

#[test]
fn a_program_is_read_back_from_its_text() {
    for (profile, _) in PROFILES {
        for seed in 0..300 {
            let program = generate(seed, profile);
            assert_eq!(Program::parse(&program.to_string()).expect("reads"), program, "{program}");
            assert_eq!(generate(seed, profile), program, "the same seed, the same program");
            assert!(program.steps.iter().all(|step| usize::from(step.actor) < ACTORS));
            assert!(python(&program).lines().count() > program.steps.len());
        }
    }
}

#[test]
fn what_is_no_program_is_refused() {
    for text in [
        "0: nothing s1",
        "0: close",
        "0: close s99",
        "9: close s1",
        "0: close s1 s2",
        "0: bind s1 nowhere p0",
        "close s1",
    ] {
        assert!(Program::parse(text).is_err(), "{text}");
    }
}

#[test]
fn shrinking_keeps_the_steps_that_matter_and_nothing_else() {
    let program = generate(3, "single");
    let close = |slot| Step { actor: 0, call: Call::Close, args: vec![slot] };
    let mut long = program.clone();
    long.steps.insert(2, close(14));
    long.steps.push(close(15));
    let has = |program: &Program, slot| program.steps.contains(&close(slot));
    let small = shrink(&long, 1000, |candidate| has(candidate, 14) && has(candidate, 15));
    assert_eq!(small.steps, [close(14), close(15)]);
}

#[test]
fn a_rule_without_a_reason_is_refused() {
    assert!(Allowed::parse("getsockopt sndbuf | * | * | it grows\n# a comment\n").is_ok());
    assert!(Allowed::parse("getsockopt sndbuf | * | *").is_err());
    assert!(Allowed::parse("getsockopt sndbuf | * | * | ").is_err());
}

#[test]
fn what_is_known_has_a_name_or_a_signature_and_a_reason() {
    let known = NotYet::parse("# these\none # why\n~ bind *: kernel EADDRINUSE, ours 0 # why\n").expect("reads");
    assert!(known.has("one", "anything") && !known.has("two", "anything"));
    assert!(known.has("two", "bind lo4 p0: kernel EADDRINUSE, ours 0"));
    assert!(!known.has("two", "bind lo4 p0: kernel EADDRINUSE, ours EINVAL"));
    assert!(NotYet::parse("one").is_err() && NotYet::parse("~ bind *").is_err());
}
