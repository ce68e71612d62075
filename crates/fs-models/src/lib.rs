//! Models of the protocol between processes, explored in every order with a death at any step.
//!
//! [`explore`] visits every state that can be reached. [`accept`] is the life of a connection from connect to the last close,
//! with an opener, two acceptors and the daemon; [`handover`] is one side of it in several processes, by fork and SCM_RIGHTS;
//! `docs/SHM.md` has the invariants. [`carrier`] is one direction of a promoted connection, [`carrier_set`] an epoll set with two
//! (`docs/PRELOAD.md`).

pub mod accept;
pub mod carrier;
pub mod carrier_set;
pub mod handover;

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// What is explored.
pub trait Model {
    /// All that there is at one moment.
    type State: Clone + Eq + Hash + Debug;

    /// Where it begins.
    fn start(&self) -> Self::State;

    /// What can happen next, by name. The last part: it will happen, if nothing else does; what may as well never happen
    /// (a process dies, a program closes something) is `false`.
    fn steps(&self, state: &Self::State) -> Vec<(&'static str, Self::State, bool)>;

    /// What is wrong in any state.
    fn always(&self, state: &Self::State) -> Result<(), &'static str>;

    /// What is wrong where nothing will happen any more.
    fn at_rest(&self, state: &Self::State) -> Result<(), &'static str>;
}

/// What [`explore`] found.
#[derive(Debug)]
pub struct Found {
    /// States that were reached.
    pub states: usize,
    /// What is wrong, each once: with the shortest way there.
    pub wrong: Vec<(&'static str, Vec<&'static str>)>,
}

/// Visits every state.
///
/// # Panics
/// More than ten million states: that model is too large for a test.
pub fn explore<M: Model>(model: &M) -> Found {
    visit(model, false)
}

/// Visits states until one is wrong: for rules of which something is left out.
///
/// # Panics
/// As [`explore`].
pub fn explore_until_wrong<M: Model>(model: &M) -> Found {
    visit(model, true)
}

fn visit<M: Model>(model: &M, until_wrong: bool) -> Found {
    // Breadth first: the first way to a state is a shortest one.
    let mut states = vec![(model.start(), 0, "")];
    let mut known: HashMap<M::State, usize> = HashMap::from([(model.start(), 0)]);
    let mut wrong: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    // Who leads where by steps that happen, and where nothing happens any more.
    let mut leads: Vec<Vec<usize>> = vec![Vec::new()];
    let mut at_rest = Vec::new();
    let mut at = 0;
    while at < states.len() {
        assert!(states.len() < 10_000_000, "too many states");
        let state = states[at].0.clone();
        let steps = model.steps(&state);
        let rests = steps.iter().all(|(_, _, happens)| !happens);
        let verdict = model.always(&state).and(if rests { model.at_rest(&state) } else { Ok(()) });
        if let Err(what) = verdict
            && wrong.iter().all(|(known, _)| *known != what)
        {
            wrong.push((what, way(&states, at)));
            if until_wrong {
                return Found { states: states.len(), wrong };
            }
        }
        if rests {
            at_rest.push(at);
        }
        for (name, next, happens) in steps {
            let to = *known.entry(next.clone()).or_insert_with(|| {
                states.push((next, at, name));
                leads.push(Vec::new());
                states.len() - 1
            });
            if happens {
                leads[to].push(at);
            }
        }
        at += 1;
    }
    // Backwards from where it rests: what is not met goes round for ever.
    let mut rests = vec![false; states.len()];
    while let Some(state) = at_rest.pop() {
        if !std::mem::replace(&mut rests[state], true) {
            at_rest.extend(&leads[state]);
        }
    }
    if let Some(restless) = rests.iter().position(|rests| !rests) {
        wrong.push(("it never comes to rest", way(&states, restless)));
    }
    Found { states: states.len(), wrong }
}

fn way<S>(states: &[(S, usize, &'static str)], mut at: usize) -> Vec<&'static str> {
    let mut way = Vec::new();
    while at != 0 {
        way.push(states[at].2);
        at = states[at].1;
    }
    way.reverse();
    way
}
