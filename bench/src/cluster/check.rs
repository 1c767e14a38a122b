//! The model against what the thesis published.

use std::fmt;

use anyhow::Result;

use super::{Costs, Load, Setting, predict};
use crate::tree::{Form, Query, Shape};

/// How far the model may be from what was published, as a share of it. Farther off, what it says of other trees is worth
/// nothing.
pub const MOST_DEVIATION: f64 = 0.1;

/// A published figure and the model's.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// What the figure is of.
    pub what: &'static str,
    /// As the thesis says it.
    pub published: f64,
    /// What the model says.
    pub predicted: f64,
    /// Microseconds; else percent by which multi-hop calls take less time than plain ones.
    pub in_micros: bool,
}

impl Check {
    /// By which share the latency is off; of figures in percent, that of multi-hop calls while plain ones take the same.
    pub fn deviation(&self) -> f64 {
        let latency = |figure: f64| match self.in_micros {
            true => figure,
            false => 100.0 - figure,
        };
        latency(self.predicted) / latency(self.published) - 1.0
    }

    /// Whether the model may be used for all that this figure says.
    pub fn holds(&self) -> bool {
        self.deviation().abs() <= MOST_DEVIATION
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deviation = self.deviation() * 100.0;
        let unit = if self.in_micros { "µs" } else { "% less" };
        write!(
            f,
            "{:26}  published {:>6.2} {unit:6}  model {:>6.2}  latency {deviation:>+5.1} %",
            self.what, self.published, self.predicted
        )?;
        match self.holds() {
            true => Ok(()),
            false => f.write_str("  NOT REPRODUCED"),
        }
    }
}

/// Compares the model with all that the text of the thesis' chapter 6 says of latencies. Costs fitted to these figures must
/// reproduce them; of other costs it tells how their implementation differs.
///
/// # Errors
///
/// If these costs or their network are none.
pub fn check(costs: &Costs) -> Result<Vec<Check>> {
    let chain = |servers| Shape::Chain { servers };
    let mut checks = Vec::new();
    for (what, form, published) in [
        ("1 hop by a plain call", Form::Calls, 8.89),
        ("1 hop by a multi-hop call", Form::Multihop, 9.53),
    ] {
        checks.push(Check {
            what,
            published,
            predicted: micros(costs, chain(1), form)?,
            in_micros: true,
        });
    }
    let bounces = |bounces| Shape::Ray { bounces };
    for (what, shape, published) in [
        ("2 hops", chain(2), 18.0),
        ("10 hops", chain(10), 42.0),
        ("hops, asymptote", chain(100), 49.0),
        ("IS3", Shape::Query(Query::Is3), 24.0),
        ("IS2", Shape::Query(Query::Is2), 49.0),
        ("IS7", Shape::Query(Query::Is7), 44.0),
        ("10 bounces", bounces(10), 48.0),
        ("bounces, asymptote", bounces(100), 54.0),
    ] {
        let (multihop, calls) = (
            micros(costs, shape, Form::Multihop)?,
            micros(costs, shape, Form::Calls)?,
        );
        checks.push(Check {
            what,
            published,
            predicted: 100.0 * (1.0 - multihop / calls),
            in_micros: false,
        });
    }
    Ok(checks)
}

fn micros(costs: &Costs, shape: Shape, form: Form) -> Result<f64> {
    let setting = Setting {
        servers: 20,
        payload: 100,
        load: Load::One,
        operations: OPERATIONS,
        seed: 1,
    };
    let prediction = predict(&shape.tree(), form, costs, &setting)?;
    Ok(prediction.p50.as_secs_f64() * 1e6)
}

/// Chance only chooses servers, so these are enough for a median.
const OPERATIONS: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    /// The condition under which predictions are shown at all.
    #[test]
    fn the_model_reproduces_what_was_published() {
        for check in check(&Costs::thesis()).unwrap() {
            assert!(check.holds(), "{check:?}: {:.3}", check.deviation());
        }
    }

    #[test]
    fn a_model_that_reproduces_nothing_says_so() {
        let mut costs = Costs::thesis();
        costs.calls.send_us = 9.0;
        let checks = check(&costs).unwrap();
        let wrong = checks.iter().find(|check| !check.holds()).expect("wrong");
        assert!(wrong.to_string().ends_with("NOT REPRODUCED"), "{wrong}");
    }
}
