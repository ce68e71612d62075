use super::Python;

fn holds(code: &str) -> Result<(), String> {
    let mut python = Python::default();
    python.set("tcpi_rtt", 10_500);
    python.set("tcpi_snd_cwnd", 10);
    python.set("tcpi_options", 7);
    python.set("TCPI_OPT_SYN_DATA", 32);
    python.run(code)
}

#[test]
fn public_scripts_expressions_hold() {
    for code in [
        "assert tcpi_snd_cwnd == 10, tcpi_snd_cwnd",
        "assert (tcpi_options & TCPI_OPT_SYN_DATA) == 0, tcpi_options",
        "assert 5000 <= tcpi_rtt <= 20000, 'srtt=%d us' % tcpi_rtt",
        "cwnd = 9; cwnd += 1; assert tcpi_snd_cwnd == cwnd, tcpi_snd_cwnd",
        "# a comment\nassert tcpi_rtt > 1, \\\n  tcpi_rtt",
        "assert tcpi_snd_cwnd in (9, 10)\nassert not tcpi_snd_cwnd == 2 or False",
        "assert -7 // 2 == -4 and -7 % 3 == 2 and 7 / 2 == 3.5 and 2 ** 10 == 1024",
        "assert min(3, 1, 2) == 1 and max((1, 5)) == 5 and abs(-3) == 3",
        "assert (1 if tcpi_rtt > 3 else 2) == 1",
        "if tcpi_rtt > 1: assert True",
        "assert '%d of %s' % (1, 'x') == '1 of x'",
    ] {
        assert_eq!(holds(code), Ok(()), "{code}");
    }
}

#[test]
fn failures_report_values() {
    let failed = holds("assert tcpi_snd_cwnd == 11, tcpi_snd_cwnd").unwrap_err();
    assert_eq!(failed, "assertion failed: tcpi_snd_cwnd == 11: 10 (where tcpi_snd_cwnd = 10)");
    assert!(holds("assert tcpi_nonsense == 1").unwrap_err().contains("'tcpi_nonsense' is not defined"));
    assert!(holds("import os").unwrap_err().contains("'import' is not supported"));
    assert!(holds("assert 1 / 0 == 1").unwrap_err().contains("division by zero"));
}

#[test]
fn names_persist_between_blocks() {
    let mut python = Python::default();
    python.run("cwnd = 10").unwrap();
    python.run("print(cwnd, 'x')\nassert cwnd == 10").unwrap();
    assert_eq!(python.take_printed(), "10 x\n");
}
