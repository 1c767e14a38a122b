//! The trees of calls: what every handler does, and all trees of a size.

/// One thing that a handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It sends the response with this number of the tree.
    Reply(u8),
    /// It hands work on to the request with this number of the tree.
    Delegate(u8),
    /// It yields: what was held back leaves (docs/protocol.md, rule 4d).
    Flush,
    /// It ends; what was held back is its last message.
    Finish,
    /// It ends with a status, which is the response with this number; what was held back is not sent.
    Fail(u8),
}

/// One call: its requests by number, each as the steps of its handler. Request 0 is the initial one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tree {
    /// What each handler does; the last step of each is `Finish` or `Fail`.
    pub handlers: Vec<Vec<Step>>,
    /// How many responses the initiator gets, statuses included.
    pub responses: u8,
    /// How many messages the call causes: requests, responses, and ends that are messages of their own.
    pub messages: usize,
}

/// A handler before its requests and responses have numbers.
#[derive(Debug, Clone, PartialEq)]
struct Plan {
    acts: Vec<Act>,
    fails: bool,
}

#[derive(Debug, Clone, PartialEq)]
enum Act {
    Reply,
    Delegate(Plan),
    Flush,
}

impl Tree {
    /// All trees that cause at most this many messages, the smallest first.
    ///
    /// A handler's last message is one that was held back; `respond` and `forward` send the same. So both are left out,
    /// and so is a yield with nothing held back.
    pub fn all(messages: usize) -> Vec<Self> {
        let plans = plans_up_to(messages.saturating_sub(1));
        let all = plans.iter().enumerate().flat_map(|(size, plans)| {
            let number = move |plan| Self::number(plan, size + 1);
            plans.iter().map(number)
        });
        all.collect()
    }

    fn number(plan: &Plan, messages: usize) -> Self {
        let mut tree = Self {
            messages,
            ..Self::default()
        };
        tree.add(plan);
        tree
    }

    /// Adds a handler and all below it; returns its number.
    fn add(&mut self, plan: &Plan) -> u8 {
        let number = self.handlers.len();
        self.handlers.push(Vec::new());
        let mut steps = Vec::new();
        for (place, act) in plan.acts.iter().enumerate() {
            let dropped = plan.fails && place + 1 == plan.acts.len();
            steps.push(match act {
                Act::Flush => Step::Flush,
                Act::Reply if dropped => Step::Reply(u8::MAX),
                Act::Reply => Step::Reply(self.next_response()),
                Act::Delegate(below) => Step::Delegate(self.add(below)),
            });
        }
        steps.push(match plan.fails {
            true => Step::Fail(self.next_response()),
            false => Step::Finish,
        });
        self.handlers[number] = steps;
        number as u8
    }

    fn next_response(&mut self) -> u8 {
        self.responses += 1;
        self.responses - 1
    }
}

/// All handlers by how many messages they cause, themselves and below.
fn plans_up_to(size: usize) -> Vec<Vec<Plan>> {
    let mut plans: Vec<Vec<Plan>> = vec![Vec::new()];
    let mut acts: Vec<Vec<Vec<Act>>> = vec![vec![Vec::new()]];
    for size in 1..=size {
        let longer = longer_acts(size, &acts, &plans);
        acts.push(longer);
        plans.push(plans_of(size, &acts));
    }
    plans
}

/// What goes before, then one more message, with or without a yield behind it.
fn longer_acts(size: usize, acts: &[Vec<Vec<Act>>], plans: &[Vec<Plan>]) -> Vec<Vec<Act>> {
    let mut all = Vec::new();
    let mut add = |before: &Vec<Act>, act: Act| {
        let acts = [&before[..], &[act]].concat();
        all.push([&acts[..], &[Act::Flush]].concat());
        all.push(acts);
    };
    for before in &acts[size - 1] {
        add(before, Act::Reply);
    }
    for below in 1..size {
        for before in &acts[size - 1 - below] {
            for plan in &plans[below] {
                add(before, Act::Delegate(plan.clone()));
            }
        }
    }
    all
}

fn plans_of(size: usize, acts: &[Vec<Vec<Act>>]) -> Vec<Plan> {
    let ends = |acts: &Vec<Act>, fails| Plan {
        acts: acts.clone(),
        fails,
    };
    let holds = |acts: &&Vec<Act>| matches!(acts.last(), Some(Act::Reply | Act::Delegate(_)));
    let held = acts[size].iter().filter(holds);
    let apart = acts[size - 1].iter().filter(|acts| !holds(acts));
    let mut all: Vec<Plan> = held
        .chain(apart.clone())
        .map(|acts| ends(acts, false))
        .collect();
    for acts in apart {
        all.push(ends(acts, true));
        // What an error finds held back does not count.
        all.push(ends(&[&acts[..], &[Act::Reply]].concat(), true));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_of_two_messages_are_an_answer_an_end_or_a_status() {
        let trees = Tree::all(2);
        let handlers: Vec<_> = trees.iter().map(|tree| &tree.handlers[..]).collect();
        let expected: [&[Step]; 4] = [
            &[Step::Reply(0), Step::Finish],
            &[Step::Finish],
            &[Step::Fail(0)],
            &[Step::Reply(u8::MAX), Step::Fail(0)],
        ];
        assert_eq!(handlers, expected.map(|steps| [steps.to_vec()]));
    }

    /// What a tree says of its messages, counted anew.
    fn messages(tree: &Tree) -> usize {
        let of = |steps: &Vec<Step>| {
            let fails = matches!(steps.last(), Some(Step::Fail(_)));
            let holds = matches!(steps[..], [.., Step::Reply(_) | Step::Delegate(_), _]);
            let sends = |step: &&Step| {
                matches!(
                    step,
                    Step::Reply(0..=254) | Step::Delegate(_) | Step::Fail(_)
                )
            };
            steps.iter().filter(sends).count() + usize::from(!fails && !holds)
        };
        1 + tree.handlers.iter().map(of).sum::<usize>()
    }

    #[test]
    fn trees_cause_as_many_messages_as_they_say() {
        for tree in Tree::all(6) {
            assert_eq!(messages(&tree), tree.messages, "{tree:?}");
        }
    }

    #[test]
    fn all_trees_are_different() {
        let trees = Tree::all(5);
        for (place, tree) in trees.iter().enumerate() {
            assert!(!trees[..place].contains(tree), "{tree:?}");
        }
        assert!(trees.iter().any(|tree| tree.handlers.len() == 4));
    }
}
