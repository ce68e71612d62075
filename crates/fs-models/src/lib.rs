//! Models of the carrier's rules (`docs/PRELOAD.md`), explored in every order of steps, with a
//! death at any step.
//!
//! [`explore`] visits every state that can be reached. [`carrier`] is one direction of a promoted
//! connection, [`carrier_set`] an epoll set with two. [`listener`] has listeners that accept from
//! their core and from the kernel (`docs/CARRIERS.md`).

pub mod carrier;
pub mod carrier_set;
pub mod listener;

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;

/// A system to explore.
pub trait Model {
    /// A state of the system.
    type State: Clone + Eq + Hash + Debug;

    /// Returns the first state.
    fn start(&self) -> Self::State;

    /// Returns the possible next steps by name. The last part is `true` if the step will happen
    /// unless another one does, and `false` if it may never happen (a process dies, a program
    /// closes a descriptor).
    fn steps(&self, state: &Self::State) -> Vec<(&'static str, Self::State, bool)>;

    /// Checks every state.
    fn always(&self, state: &Self::State) -> Result<(), &'static str>;

    /// Checks states at rest, in which nothing more will happen.
    fn at_rest(&self, state: &Self::State) -> Result<(), &'static str>;
}

/// The result of [`explore`].
#[derive(Debug)]
pub struct Found {
    /// Number of states that were reached.
    pub states: usize,
    /// Each error once, with the shortest path to it.
    pub wrong: Vec<(&'static str, Vec<&'static str>)>,
}

/// Visits every state.
///
/// # Panics
/// If there are more than ten million states: the model is too large for a test.
pub fn explore<M: Model>(model: &M) -> Found {
    visit(model, false)
}

/// Visits states until one is wrong, for tests in which a rule is left out.
///
/// # Panics
/// In the same cases as [`explore`].
pub fn explore_until_wrong<M: Model>(model: &M) -> Found {
    visit(model, true)
}

fn visit<M: Model>(model: &M, until_wrong: bool) -> Found {
    // Breadth first, so the first path to a state is a shortest one.
    let mut states = vec![(model.start(), 0, "")];
    let mut known: HashMap<M::State, usize> = HashMap::from([(model.start(), 0)]);
    let mut wrong: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
    // For each state, the states from which a step that will happen leads to it; and the states at
    // rest, in which nothing more happens.
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
    // Searches backwards from the states at rest. A state that is not found never comes to rest.
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
