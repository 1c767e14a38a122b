//! What an rpcbind was asked, as it tells who asks for that.

use super::interface::{
    AddressCount, AddressCountEntry, CallCount, CallCountEntry, Statistics, StatisticsOfVersions,
};

/// Programs that are counted one by one, for each version; more are counted together with the rest only.
const MOST: usize = 64;

/// The version of the protocol in which something is asked.
#[derive(Debug, Clone, Copy)]
pub(super) enum Asked {
    Two,
    Three,
    Four,
}

#[derive(Debug)]
pub(super) struct Counting {
    versions: [Statistics; 3],
}

impl Counting {
    pub(super) fn new() -> Self {
        let none = || Statistics {
            calls: [0; 13],
            set: 0,
            unset: 0,
            addresses: Vec::new(),
            passed_on: Vec::new(),
        };
        Self {
            versions: [none(), none(), none()],
        }
    }

    pub(super) fn now(&self) -> StatisticsOfVersions {
        StatisticsOfVersions {
            versions: self.versions.clone(),
        }
    }

    pub(super) fn called(&mut self, asked: Asked, procedure: u32) {
        if let Some(calls) = usize::try_from(procedure)
            .ok()
            .and_then(|at| self.of(asked).calls.get_mut(at))
        {
            *calls = calls.saturating_add(1);
        }
    }

    pub(super) fn set(&mut self, asked: Asked) {
        let set = &mut self.of(asked).set;
        *set = set.saturating_add(1);
    }

    pub(super) fn unset(&mut self, asked: Asked) {
        let unset = &mut self.of(asked).unset;
        *unset = unset.saturating_add(1);
    }

    pub(super) fn looked_up(&mut self, asked: Asked, of: (u32, u32), netid: &str, found: bool) {
        let all = &mut self.of(asked).addresses;
        let is_it = |each: &AddressCountEntry| {
            let counted = &each.counted;
            (counted.program_number, counted.version_number) == of && counted.netid == *netid
        };
        let at = all.iter().position(is_it);
        if at.is_none() && all.len() < MOST {
            all.push(AddressCountEntry {
                counted: AddressCount {
                    program_number: of.0,
                    version_number: of.1,
                    found: 0,
                    missed: 0,
                    netid: netid.into(),
                },
            });
        }
        let at = at.unwrap_or(all.len().saturating_sub(1));
        if let Some(entry) = all.get_mut(at).filter(|entry| is_it(entry)) {
            one_more(found, &mut entry.counted.found, &mut entry.counted.missed);
        }
    }

    pub(super) fn passed_on(
        &mut self,
        asked: Asked,
        of: (u32, u32, u32),
        netid: &str,
        indirect: bool,
        succeeded: bool,
    ) {
        let all = &mut self.of(asked).passed_on;
        let is_it = |each: &CallCountEntry| {
            let counted = &each.counted;
            let this = (
                counted.program_number,
                counted.version_number,
                counted.procedure_number,
            );
            this == of && counted.netid == *netid && counted.indirect == i32::from(indirect)
        };
        let at = all.iter().position(is_it);
        if at.is_none() && all.len() < MOST {
            all.push(CallCountEntry {
                counted: CallCount {
                    program_number: of.0,
                    version_number: of.1,
                    procedure_number: of.2,
                    succeeded: 0,
                    failed: 0,
                    indirect: indirect.into(),
                    netid: netid.into(),
                },
            });
        }
        let at = at.unwrap_or(all.len().saturating_sub(1));
        if let Some(entry) = all.get_mut(at).filter(|entry| is_it(entry)) {
            let counted = &mut entry.counted;
            one_more(succeeded, &mut counted.succeeded, &mut counted.failed);
        }
    }

    fn of(&mut self, asked: Asked) -> &mut Statistics {
        let [two, three, four] = &mut self.versions;
        match asked {
            Asked::Two => two,
            Asked::Three => three,
            Asked::Four => four,
        }
    }
}

fn one_more(good: bool, yes: &mut i32, no: &mut i32) {
    let counter = if good { yes } else { no };
    *counter = counter.saturating_add(1);
}
