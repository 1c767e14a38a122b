//! All plans of a size.

use super::plan::{Act, Finale, Plan};

/// All plans, by how many messages they cause: requests, responses and ends.
pub(super) struct Plans {
    by_size: Vec<Vec<Plan>>,
    /// All sequences of acts, by the number of messages.
    acts_by_size: Vec<Vec<Vec<Act>>>,
}

impl Plans {
    pub(super) fn up_to(size: usize) -> Self {
        let mut plans = Self {
            by_size: vec![vec![]],
            acts_by_size: vec![vec![vec![]]],
        };
        for size in 1..=size {
            plans.add_acts(size);
            plans.add_plans(size);
        }
        plans
    }

    pub(super) fn of_size(&self, size: usize) -> &[Plan] {
        &self.by_size[size]
    }

    /// What goes before, then one more act, with or without a flush behind it.
    fn add_acts(&mut self, size: usize) {
        let mut all = Vec::new();
        let mut add = |before: &Vec<Act>, act: Act| {
            let acts = [&before[..], &[act]].concat();
            all.push([&acts[..], &[Act::Flush]].concat());
            all.push(acts);
        };
        for before in &self.acts_by_size[size - 1] {
            add(before, Act::Reply);
        }
        for below in 1..size {
            for before in &self.acts_by_size[size - 1 - below] {
                for plan in &self.by_size[below] {
                    add(before, Act::Delegate(plan.clone()));
                }
            }
        }
        self.acts_by_size.push(all);
    }

    fn add_plans(&mut self, size: usize) {
        let mut all = Vec::new();
        let mut add = |acts: &Vec<Act>, finale| {
            all.push(Plan {
                acts: acts.clone(),
                finale,
            })
        };
        // What is held back is the last message, else the end is one of its own.
        for acts in self.acts_by_size[size].iter().filter(|acts| holds(acts)) {
            add(acts, Finale::Finish);
        }
        for acts in self.acts_by_size[size - 1]
            .iter()
            .filter(|acts| !holds(acts))
        {
            add(acts, Finale::Finish);
        }
        for acts in &self.acts_by_size[size - 1] {
            add(acts, Finale::Respond);
            // What an error finds held back is dropped and does not count.
            for dropped in [Act::Reply, Act::Delegate(Plan::IDLE)] {
                add(&[&acts[..], &[dropped]].concat(), Finale::Fail);
            }
        }
        for acts in self.acts_by_size[size - 1]
            .iter()
            .filter(|acts| !holds(acts))
        {
            add(acts, Finale::Fail);
        }
        for below in 1..size {
            for acts in &self.acts_by_size[size - 1 - below] {
                for plan in &self.by_size[below] {
                    add(acts, Finale::Forward(Box::new(plan.clone())));
                }
            }
        }
        self.by_size.push(all);
    }
}

fn holds(acts: &[Act]) -> bool {
    matches!(acts.last(), Some(Act::Reply | Act::Delegate(_)))
}
