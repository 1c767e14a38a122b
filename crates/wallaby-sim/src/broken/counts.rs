//! What an initiator would know that only counts.

use std::collections::BTreeSet;

use wallaby_proto::wire::Message;
use wallaby_proto::{Facts, Path};

/// Completion by counts: how many branches and responses are expected, and how many are there.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    branches: i64,
    reported: i64,
    expected: i64,
    received: i64,
    /// Manifests that came a second time and were counted again.
    again: i64,
    /// Responses that have come.
    seen: BTreeSet<(Path, u32)>,
    ended: BTreeSet<Path>,
    pub(crate) statuses: bool,
}

impl Counts {
    /// Of a call with so many initial requests.
    pub(crate) fn new(requests: usize) -> Self {
        Self {
            branches: requests as i64,
            ..Self::default()
        }
    }

    /// A message came; whether it is news.
    pub(crate) fn add(&mut self, message: &Message) -> bool {
        let manifest = match message {
            Message::Response(response) => {
                self.statuses |= response.status;
                if !self.seen.insert((response.request.path, response.index)) {
                    self.again += i64::from(response.last || response.manifest.is_some());
                    return false;
                }
                self.received += 1;
                if response.last {
                    let responses = response.index + 1;
                    self.report(Facts {
                        requests: 0,
                        responses,
                    });
                }
                response.manifest
            }
            Message::End(end) => {
                if !self.ended.insert(end.request.path) {
                    return false;
                }
                self.report(end.facts);
                end.manifest
            }
            _ => return true,
        };
        if let Some(manifest) = manifest {
            self.report(manifest.facts);
        }
        true
    }

    fn report(&mut self, facts: Facts) {
        self.reported += 1;
        self.branches += i64::from(facts.requests);
        self.expected += i64::from(facts.responses);
    }

    /// Whether all seems to be there.
    pub(crate) fn are_even(&self, again: bool) -> bool {
        let again = if again { self.again } else { 0 };
        again <= self.reported
            && self.reported + again == self.branches
            && self.received == self.expected
    }
}
