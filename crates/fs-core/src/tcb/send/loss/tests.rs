use super::*;

const MSS: u32 = 1000;

#[test]
fn pipe_shrinks_in_proportion() {
    // 20 segments in flight, ssthresh 14: for each 1000 bytes delivered 700 are sent.
    let mut prr = Prr { before: 20 * MSS, delivered: 0, out: MSS };
    let mut sent = MSS;
    for delivered in 1..=10 {
        let allowed = prr.allowance(18 * MSS, 14 * MSS, MSS, true, MSS);
        prr.out += allowed;
        sent += allowed;
        assert!(sent <= (delivered * 700).max(MSS), "{sent} after {delivered} segments");
    }
    assert_eq!(sent, 7000);
}

#[test]
fn slow_starts_below_threshold() {
    let mut prr = Prr { before: 20 * MSS, delivered: 2 * MSS, out: 2 * MSS };
    assert_eq!(prr.allowance(5 * MSS, 14 * MSS, MSS, true, MSS), 2 * MSS);
    let mut prr = Prr { before: 20 * MSS, delivered: 2 * MSS, out: 2 * MSS };
    assert_eq!(prr.allowance(5 * MSS, 14 * MSS, MSS, false, MSS), MSS, "more was lost: packet conservation");
    let mut prr = Prr { before: 20 * MSS, delivered: 9 * MSS, out: 2 * MSS };
    assert_eq!(prr.allowance(13 * MSS, 14 * MSS, MSS, true, MSS), MSS, "never beyond ssthresh");
}

#[test]
fn first_retransmission_is_immediate() {
    let mut prr = Prr { before: 20 * MSS, ..Prr::default() };
    assert_eq!(prr.allowance(19 * MSS, 10 * MSS, 0, false, MSS), MSS);
}

#[test]
fn older_echo_undoes() {
    let mut undo = Undo::default();
    undo.begin(SeqNum(100), 0);
    assert!(!undo.is_spurious(Some(5)), "nothing was sent again yet");
    undo.sent_again(1000, 50);
    undo.sent_again(1000, 60);
    assert!(!undo.is_spurious(Some(50)));
    assert!(!undo.is_spurious(None));
    assert!(undo.is_spurious(Some(49)));
    undo.begin(SeqNum(5000), 0);
    assert!(!undo.is_spurious(Some(49)), "another reduction, another first retransmission");
}

#[test]
fn duplicates_of_all_retransmissions_undo() {
    let mut undo = Undo::default();
    undo.begin(SeqNum(100), 0);
    undo.sent_again(1000, 50);
    undo.sent_again(1000, 50);
    undo.duplicate(SeqNum(100), SeqNum(1100));
    assert!(!undo.is_spurious(None));
    undo.duplicate(SeqNum(0), SeqNum(100));
    assert!(!undo.is_spurious(None), "of data before the reduction");
    undo.duplicate(SeqNum(1100), SeqNum(2100));
    assert!(undo.is_spurious(None));
}
