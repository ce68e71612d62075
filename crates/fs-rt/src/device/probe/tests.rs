use super::*;

/// A simulated device.
#[derive(Clone, Default)]
struct Fake {
    /// Time after which it has its link again.
    link_after: Duration,
    /// Time after which each queue takes its chunks.
    chunks_after: Vec<Duration>,
    /// Number of neighbours that reply and that do not, for each round of questions.
    answers: Vec<(usize, usize)>,
    /// Its carrier was down for a moment.
    has_new_link: bool,
    /// Errors at each check.
    errors: Vec<u64>,
    copies: bool,
    waited: Duration,
    asked: usize,
    looks: usize,
}

impl Probed for Fake {
    fn has_link(&mut self) -> io::Result<bool> {
        Ok(self.waited >= self.link_after)
    }

    fn carrier_changes(&mut self) -> io::Result<u32> {
        Ok(if self.has_new_link { 2 } else { 0 })
    }

    fn receive_errors(&mut self) -> io::Result<u64> {
        self.looks += 1;
        Ok(self.errors.get(self.looks - 1).copied().unwrap_or(0))
    }

    fn ask_neighbours(&mut self, within: Duration) -> io::Result<Answers> {
        self.asked += 1;
        let (given, missing) = self.answers.get(self.asked - 1).copied().unwrap_or((3, 0));
        if missing > 0 {
            self.wait(within);
        }
        Ok(Answers { given, missing })
    }

    fn queue_without_chunks(&mut self) -> Option<usize> {
        self.chunks_after.iter().position(|after| self.waited < *after)
    }

    fn without_copies(&mut self) -> bool {
        !self.copies
    }

    fn wait(&mut self, time: Duration) {
        self.waited += time;
    }
}

const BEFORE: Before = Before { link: true, answers: 3, carrier_changes: 0 };
/// No neighbour replies.
const SILENT: (usize, usize) = (0, 3);
const NEVER: Duration = Duration::MAX;

fn held(mut device: Fake) -> Result<(), Reason> {
    check(BEFORE, &mut device).unwrap()
}

#[test]
fn working_device_is_kept() {
    let slow = Duration::from_secs(6);
    let chunks = vec![Duration::ZERO, slow + Duration::from_millis(500)];
    let device = Fake { link_after: slow, chunks_after: chunks, ..Fake::default() };
    assert_eq!(held(device), Ok(()));
    // A neighbour may miss one question and be forgotten.
    assert_eq!(held(Fake { answers: vec![SILENT, (3, 0)], ..Fake::default() }), Ok(()));
    assert_eq!(held(Fake { answers: vec![SILENT, (0, 0)], ..Fake::default() }), Ok(()));
    // One of several may disappear at this moment. On a link that was down, it does not wait as
    // long as for a switch that does not forward.
    let mut one_goes = Fake { answers: vec![(2, 1); 10], has_new_link: true, ..Fake::default() };
    assert_eq!(check(BEFORE, &mut one_goes).unwrap(), Ok(()));
    assert_eq!(one_goes.asked, 1);
    assert_eq!(held(Fake { errors: vec![7, 7], ..Fake::default() }), Ok(()), "errors of before");
    assert_eq!(held(Fake { errors: vec![7, 9, 9], ..Fake::default() }), Ok(()), "errors of a new link");
    // A switch that does not forward to a port yet whose link is new.
    let answers = [vec![SILENT; 8], vec![(3, 0)]].concat();
    assert_eq!(held(Fake { answers, has_new_link: true, ..Fake::default() }), Ok(()));
    // Drivers that always want a wake-up: neighbours still reply.
    assert_eq!(held(Fake { chunks_after: vec![Duration::ZERO, NEVER], ..Fake::default() }), Ok(()));
    assert_eq!(held(Fake { errors: vec![7, 8], copies: true, ..Fake::default() }), Ok(()), "the wire's");
}

#[test]
fn broken_device_is_given_up() {
    assert_eq!(held(Fake { link_after: NEVER, ..Fake::default() }), Err(Reason::LinkDown));
    // A queue without chunks, which the reply would use.
    let mut chunks_after = vec![Duration::ZERO; 4];
    chunks_after[2] = NEVER;
    let silent = vec![SILENT; 2];
    let dead = Fake { chunks_after: chunks_after.clone(), answers: silent.clone(), ..Fake::default() };
    assert_eq!(held(dead), Err(Reason::NoChunks { queue: 2 }));
    // The others' replies arrive through queues with chunks.
    let half = Fake { chunks_after, answers: vec![(2, 1); 2], ..Fake::default() };
    assert_eq!(held(half), Err(Reason::NoChunks { queue: 2 }));
    assert_eq!(held(Fake { answers: silent, ..Fake::default() }), Err(Reason::Deaf));
    let silent = vec![SILENT; 10];
    assert_eq!(held(Fake { answers: silent, has_new_link: true, ..Fake::default() }), Err(Reason::Deaf));
    let errors = vec![7, 9, 12, 13];
    assert_eq!(held(Fake { errors, ..Fake::default() }), Err(Reason::ReceiveErrors { more: 6 }));
}

#[test]
fn earlier_faults_are_ignored() {
    let down = Before::of(&mut Fake { link_after: NEVER, ..Fake::default() }).unwrap();
    assert_eq!(down, Before { link: false, answers: 0, carrier_changes: 0 });
    assert_eq!(check(down, &mut Fake { link_after: NEVER, ..Fake::default() }).unwrap(), Ok(()));
    for answer in [SILENT, (0, 0)] {
        let silent = Fake { answers: vec![answer; 3], ..Fake::default() };
        let before = Before::of(&mut silent.clone()).unwrap();
        assert_eq!(before, Before { link: true, answers: 0, carrier_changes: 0 });
        assert_eq!(check(before, &mut silent.clone()).unwrap(), Ok(()));
    }
    assert_eq!(Before::of(&mut Fake::default()).unwrap(), BEFORE);
}

fn known(addr: &str, may_be_asked: bool, has_answered: bool) -> Known {
    Known::at(addr.parse().unwrap(), may_be_asked, has_answered)
}

#[test]
fn neighbours_of_each_family_that_replied_recently_come_first() {
    let far = (0..20).map(|n| known(&format!("10.0.0.{n}"), true, n == 19));
    let all: Vec<Known> = far.chain([known("fe80::1", true, false), known("10.0.1.1", false, true)]).collect();
    let asked = chosen(all.clone());
    let expected = ["10.0.0.19", "10.0.0.0", "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"];
    let (v4, v6): (Vec<_>, Vec<_>) = asked.iter().map(|known| known.addr.to_string()).partition(|at| !at.contains(':'));
    assert_eq!((v4, v6), (expected.map(String::from).to_vec(), vec!["fe80::1".to_owned()]));
    // A neighbour that another program has taken over is not asked again; a forgotten one is.
    let taken = known("10.0.0.0", false, true);
    let again = still_asked(&asked[..3], &[all[19].clone(), taken]);
    assert_eq!(again.iter().map(|known| known.addr.to_string()).collect::<Vec<_>>(), ["10.0.0.19", "10.0.0.1"]);
}
