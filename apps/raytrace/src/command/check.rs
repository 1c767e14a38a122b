//! `wallaby-raytrace check`: are the nearest hits of rays those that are expected, in every form?

use super::settings::{Reading, Servers};
use crate::lost::Lost;
use crate::nearest;
use crate::part::Part;
use crate::ray::Ray;
use crate::scene::{Limits, Source, input::Input};
use crate::search::{Hit, Map};
use anyhow::{Context, ensure};
use clap::Args;
use glam::DVec3;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use wallaby_program::output;

/// What is checked.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Files with a line for each ray: {"origin":[x,y,z],"dir":[x,y,z],"hit":true,"t":1.5,"tri":7}
    #[arg(value_name = "FILE.rays.jsonl[.gz]", required = true)]
    files: Vec<PathBuf>,
    /// The scene that they are about
    #[arg(long = "scene", value_name = "SCENE")]
    source: Source,
    #[command(flatten)]
    reading: Reading,
    #[command(flatten)]
    servers: Servers,
    /// How many rays a message has at most
    #[arg(long, value_name = "R", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=crate::server::MOST_RAYS as i64))]
    batch: u32,
}

/// A line of a file.
#[derive(Debug, Deserialize)]
struct Expected {
    origin: [f64; 3],
    dir: [f64; 3],
    hit: bool,
    t: Option<f64>,
    tri: Option<u32>,
}

struct Line {
    place: String,
    ray: Ray,
    expected: Option<(f64, u32)>,
}

/// Distances may differ by so much of themselves.
const TOLERANCE: f64 = 1e-6;
/// More rays than this are taken in turns.
const TURN: usize = 20_000;

impl Check {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut lines = Vec::new();
        for file in &self.files {
            read(file, &mut lines)?;
        }
        let count = self.servers.servers;
        let as_it_is = |scene, _| scene;
        let (world, parts) = self.reading.load(&self.source, count, as_it_is).await?;
        let alone = Part::new(0, parts.concat());
        let map = Map(vec![alone.bounds()]);
        let ready = self.servers.start(world, parts).await?;
        let (client, world) = (&ready.client, &ready.world);
        let mut mismatches = 0;
        for some in lines.chunks(TURN) {
            let rays: Vec<Ray> = some.iter().map(|line| line.ray).collect();
            let lost = |error| Lost::new(client, &error);
            let hops = nearest::by_dpc(client, world, &rays, self.batch)
                .await
                .map_err(lost)?;
            let steps = nearest::by_rpc(client, world, &rays, self.batch)
                .await
                .map_err(lost)?;
            for ((line, hops), steps) in some.iter().zip(hops).zip(steps) {
                let local = nearest::local(&alone, &map, &line.ray);
                let wrong = [("by DPC", hops), ("by RPC", steps), ("alone", local)]
                    .into_iter()
                    .find_map(|(form, hit)| Some(format!("{form} {}", line.wrong(hit, &alone)?)));
                if let Some(wrong) = wrong {
                    output::line(format_args!("{}: {wrong}", line.place))?;
                    mismatches += 1;
                }
            }
        }
        ready.end().await;
        output::line(format_args!(
            "{} checked, {mismatches} mismatches",
            lines.len()
        ))?;
        Ok(match mismatches {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

impl Line {
    /// What is wrong with a result.
    fn wrong(&self, hit: Option<Hit>, all: &Part) -> Option<String> {
        let found = hit.map(|hit| (hit.distance, hit.triangle));
        let close =
            |one: f64, other: f64| (one - other).abs() <= TOLERANCE * one.abs().max(other.abs());
        let as_expected = match (self.expected, found) {
            (None, None) => true,
            (Some((t, tri)), Some((distance, triangle))) => {
                // Another triangle only where both are hit at the same distance.
                let same = tri == triangle
                    || all
                        .crossing(&self.ray, tri)
                        .is_some_and(|other| close(other, distance));
                close(t, distance) && same
            }
            _ => false,
        };
        let show = |hit: Option<(f64, u32)>| match hit {
            Some((distance, triangle)) => format!("triangle {triangle} at {distance}"),
            None => "nothing".to_owned(),
        };
        (!as_expected).then(|| format!("hits {}, expected {}", show(found), show(self.expected)))
    }
}

fn read(file: &Path, lines: &mut Vec<Line>) -> anyhow::Result<()> {
    let mut input = Input::open(file, &Limits::default())?;
    let mut text = String::new();
    while input.line(&mut text)? {
        if !text.trim().is_empty() {
            lines.push(parse(&text, input.place()).with_context(|| input.place())?);
        }
    }
    Ok(())
}

fn parse(text: &str, place: String) -> anyhow::Result<Line> {
    let expected: Expected = serde_json::from_str(text)?;
    let direction = DVec3::from(expected.dir);
    let length = direction.length();
    ensure!(
        (length - 1.0).abs() < 1e-6,
        "the direction has the length {length}, not 1"
    );
    let hit = match (expected.hit, expected.t, expected.tri) {
        (false, ..) => None,
        (true, Some(t), Some(tri)) => Some((t, tri)),
        (true, ..) => anyhow::bail!("a hit needs both t and tri"),
    };
    Ok(Line {
        place,
        ray: Ray {
            origin: expected.origin.into(),
            direction,
        },
        expected: hit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_rays_with_their_hits() {
        let line = r#"{"origin":[0,0,5],"dir":[0,0,-1],"hit":true,"t":5,"tri":3}"#;
        let line = parse(line, String::new()).unwrap();
        assert_eq!(line.expected, Some((5.0, 3)));
        let line = r#"{"origin":[0,0,5],"dir":[0,0,-1],"hit":false,"t":null,"tri":null}"#;
        assert_eq!(parse(line, String::new()).unwrap().expected, None);
        for wrong in [
            "{}",
            r#"{"origin":[0,0,5],"dir":[0,0,-2],"hit":false}"#,
            r#"{"origin":[0,0,5],"dir":[0,0,-1],"hit":true,"t":5}"#,
        ] {
            assert!(parse(wrong, String::new()).is_err(), "{wrong}");
        }
    }
}
