//! Nearest hits of single rays, in the three ways that pictures are made.

use crate::client::Client;
use crate::hops::{Probe, hops};
use crate::part::Part;
use crate::ray::Ray;
use crate::search::{Hit, Map, Search, Step};
use crate::steps::steps;
use crate::world::World;
use std::collections::BTreeMap;
use wallaby::CallError;

/// By multi-hop calls, at most `batch` rays a message.
///
/// # Errors
///
/// If a server fails.
pub async fn by_dpc(
    client: &Client,
    world: &World,
    rays: &[Ray],
    batch: u32,
) -> Result<Vec<Option<Hit>>, CallError> {
    let mut hits = vec![None; rays.len()];
    let mut calls = Vec::new();
    for (part, probes) in by_part(world, probes(rays)) {
        for some in probes.chunks(batch.max(1) as usize) {
            calls.push(hops::within(client.server(part)).nearest(some.to_vec(), batch));
        }
    }
    for mut call in calls {
        while let Some(found) = call.next().await {
            found?.iter().for_each(|probe| note(probe, &mut hits));
        }
    }
    Ok(hits)
}

/// By plain calls.
///
/// # Errors
///
/// If a server fails.
pub async fn by_rpc(
    client: &Client,
    world: &World,
    rays: &[Ray],
    batch: u32,
) -> Result<Vec<Option<Hit>>, CallError> {
    let mut hits = vec![None; rays.len()];
    let mut waiting = by_part(world, probes(rays));
    while let Some((part, probes)) = waiting.pop_first() {
        for some in probes.chunks(batch.max(1) as usize) {
            let found = steps::within(client.server(part))
                .search(some.to_vec())
                .await?;
            found.iter().for_each(|probe| note(probe, &mut hits));
            for (part, probes) in by_part(world, found) {
                waiting.entry(part).or_default().extend(probes);
            }
        }
    }
    Ok(hits)
}

/// With all triangles in one part.
pub fn local(part: &Part, map: &Map, ray: &Ray) -> Option<Hit> {
    match part.follow(&mut Search::new(*ray), map) {
        Step::Found(hit) => Some(hit),
        Step::Visit(_) | Step::Missed => None,
    }
}

fn probes(rays: &[Ray]) -> Vec<Probe> {
    let probe = |(number, ray): (u32, &Ray)| Probe {
        number,
        search: Search::new(*ray),
    };
    (0..).zip(rays).map(probe).collect()
}

/// Those that have to go on, by where.
fn by_part(world: &World, probes: Vec<Probe>) -> BTreeMap<u16, Vec<Probe>> {
    let mut parts: BTreeMap<u16, Vec<Probe>> = BTreeMap::new();
    for probe in probes {
        if let Step::Visit(part) = probe.search.step(&world.map) {
            parts.entry(part).or_default().push(probe);
        }
    }
    parts
}

fn note(probe: &Probe, hits: &mut [Option<Hit>]) {
    if let Some(hit) = hits.get_mut(probe.number as usize) {
        *hit = probe.search.best;
    }
}
