//! What messages cost: the figures that the model is calibrated with, as data that say where they come from.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::Network;
use crate::tree::Form;

/// What one implementation pays, on one network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// The name under which its predictions are shown.
    pub name: String,
    /// Where the figures come from.
    pub source: String,
    /// What messages of multi-hop calls cost.
    pub multihop: MessageCosts,
    /// What messages of plain calls cost.
    pub calls: MessageCosts,
    /// The network.
    pub network: Network,
}

/// Processor time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MessageCosts {
    /// From when the application asks for a message to be sent until it leaves.
    pub send_us: f64,
    /// From when a message is noticed until the application has it.
    pub receive_us: f64,
    /// What a message needs afterwards, sent or received, while others may wait.
    pub afterwards_us: f64,
    /// Until a processor that had nothing to do notices a message.
    pub wake_us: f64,
    /// To begin a call and to see its end.
    pub call_us: f64,
    /// What a request that a server passed on costs the next one besides.
    #[serde(default)]
    pub pass_on_us: f64,
}

impl Costs {
    /// The thesis' own implementation on its cluster, as far as its figures tell.
    ///
    /// # Panics
    ///
    /// Never: the file is part of this program.
    pub fn thesis() -> Self {
        Self::parse(include_str!("../../costs/thesis.json")).expect("the file is well-formed")
    }

    /// Wallaby, as it was measured last.
    ///
    /// # Panics
    ///
    /// Never: the file is part of this program.
    pub fn wallaby() -> Self {
        Self::parse(include_str!("../../costs/wallaby.json")).expect("the file is well-formed")
    }

    /// The costs of this name, thesis or wallaby, or those in a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has no costs.
    pub fn named(name: &str) -> anyhow::Result<Self> {
        match name {
            "thesis" => Ok(Self::thesis()),
            "wallaby" => Ok(Self::wallaby()),
            file => {
                let text = fs::read_to_string(file).with_context(|| {
                    format!("{file} can't be read; other names are thesis and wallaby")
                })?;
                Self::parse(&text).with_context(|| format!("{file} has no costs"))
            }
        }
    }

    /// Reads costs from JSON.
    ///
    /// # Errors
    ///
    /// If it is not that, or a cost is negative or no number.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let costs: Self = serde_json::from_str(text)?;
        let sane = |costs: MessageCosts| {
            let all = [
                costs.send_us,
                costs.receive_us,
                costs.afterwards_us,
                costs.wake_us,
                costs.call_us,
                costs.pass_on_us,
            ];
            all.iter().all(|cost| (0.0..=1e6).contains(cost))
        };
        anyhow::ensure!(
            sane(costs.multihop) && sane(costs.calls),
            "a cost is not from 0 to 1,000,000 µs"
        );
        costs.network.check()?;
        Ok(costs)
    }

    pub(super) fn of(&self, form: Form) -> MessageCosts {
        match form {
            Form::Multihop => self.multihop,
            Form::Calls => self.calls,
        }
    }
}

pub(super) fn micros(micros: f64) -> Duration {
    Duration::from_secs_f64(micros / 1e6)
}
