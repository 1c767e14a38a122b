//! `wallaby-raytrace bench`: multi-hop calls beside plain calls.

use super::settings::{Ready, Servers, Size, UNDER_WAY, WhichScene};
use crate::hosting::{Messages, Meter};
use crate::lost::Lost;
use crate::output;
use crate::path::{Job, Path};
use crate::picture::Picture;
use crate::render::local::{Local, touched};
use crate::render::{Form, Settings, dpc, rpc};

use anyhow::ensure;
use clap::Args;
use indicatif::ProgressBar;
use serde_json::json;
use std::time::{Duration, Instant};

const FORMS: [Form; 2] = [Form::Dpc, Form::Rpc];

/// What is measured.
#[derive(Debug, Args)]
pub(super) struct Bench {
    #[command(flatten)]
    scene: WhichScene,
    #[command(flatten)]
    servers: Servers,
    /// Paths of up to so many bounces
    #[arg(long, value_name = "B", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=64))]
    bounces: u16,
    /// How many paths of each number of bounces, each followed ten times in each form
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    paths: u32,
    /// The size of the pictures
    #[arg(long, value_name = "WxH", default_value = "160x120")]
    size: Size,
    /// Rays a message, for pictures, separated by commas
    #[arg(long, value_name = "R,...", value_delimiter = ',', default_value = "64,1024,16384", value_parser = clap::value_parser!(u32).range(1..=crate::server::MOST_RAYS as i64))]
    batch: Vec<u32>,
    /// Print a line of JSON for each result
    #[arg(long)]
    json: bool,
}

/// Of one kind of path, in one form.
#[derive(Default)]
struct Measured {
    times: Vec<Duration>,
    messages: Messages,
}

impl Bench {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        let (world, parts) = self.scene.load(self.servers.servers, None).await?;
        let local = Local::new(world.clone(), parts.iter().flatten().copied().collect());
        let ready = self.servers.start(world, parts).await?;
        self.single_paths(&ready, &local).await?;
        self.pictures(&ready).await?;
        ready.end().await;
        Ok(())
    }

    /// The thesis' figure 6.4, with real paths.
    async fn single_paths(&self, ready: &Ready, local: &Local) -> anyhow::Result<()> {
        if !self.json {
            output::line(format_args!(
                "one path of light, by its bounces (thesis, figure 6.4); the middle one of all times"
            ))?;
            output::line(format_args!(
                "{:>7} {:>6} {:>10} {:>10} {:>6}   {:>20} {:>20}",
                "bounces",
                "paths",
                "DPC",
                "RPC",
                "saved",
                "DPC: messages (client)",
                "RPC: messages (client)"
            ))?;
        }
        let bar = super::settings::progress("paths");
        bar.inc_length(self.bounces.into());
        for bounces in 1..=self.bounces {
            let job = Job {
                seed: 1,
                bounces,
                batch: 1,
            };
            let paths = self.choose(local, job);
            bar.inc(1);
            if paths.is_empty() {
                continue;
            }
            let measured = measure(ready, job, &paths).await?;
            bar.suspend(|| self.print(bounces, paths.len(), measured))?;
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Paths that really touch so many surfaces, far apart from each other in the picture.
    fn choose(&self, local: &Local, job: Job) -> Vec<Path> {
        const TRIED: usize = 100;
        let most = self.paths as usize;
        let settings = self.settings(job, 64);
        let all = settings.camera_paths(local.world());
        let step = settings.paths() as usize / (most * TRIED);
        let touches = |path: &Path| touched(local, &job, *path) == job.bounces;
        all.step_by(step.max(1) | 1)
            .take(most * TRIED)
            .filter(touches)
            .take(most)
            .collect()
    }

    fn print(
        &self,
        bounces: u16,
        paths: usize,
        [mut dpc, mut rpc]: [Measured; 2],
    ) -> anyhow::Result<()> {
        let (hops, calls) = (dpc.middle(), rpc.middle());
        if self.json {
            for (form, measured, time) in [(Form::Dpc, &dpc, hops), (Form::Rpc, &rpc, calls)] {
                let line = json!({
                    "what": "path", "bounces": bounces, "paths": paths, "form": form.to_string(),
                    "p50_us": time.as_secs_f64() * 1e6, "link_us": self.servers.link.as_micros() as u64,
                    "servers": self.servers.servers,
                    "messages": measured.messages.all as f64 / paths as f64,
                    "messages_at_client": measured.messages.client as f64 / paths as f64,
                });
                output::line(format_args!("{line}"))?;
            }
            return Ok(());
        }
        let saved = 100.0 * (1.0 - hops.as_secs_f64() / calls.as_secs_f64());
        let messages = |measured: &Measured| {
            let each = |sum: u64| sum as f64 / paths as f64;
            let Messages { all, client } = measured.messages;
            format!("{:.1} ({:.1})", each(all), each(client))
        };
        output::line(format_args!(
            "{bounces:>7} {paths:>6} {:>10} {:>10} {saved:>4.0} %   {:>22} {:>22}",
            format!("{hops:.1?}"),
            format!("{calls:.1?}"),
            messages(&dpc),
            messages(&rpc)
        ))
    }

    async fn pictures(&self, ready: &Ready) -> anyhow::Result<()> {
        if !self.json {
            let Size(width, height) = self.size;
            output::line(format_args!(
                "\na picture, {width}x{height}, 4 paths a pixel, 8 bounces"
            ))?;
            output::line(format_args!(
                "{:>6} {:>5} {:>10} {:>12} {:>12}",
                "batch", "form", "time", "messages", "at client"
            ))?;
        }
        let Ready { client, world, .. } = ready;
        for batch in &self.batch {
            let job = Job {
                seed: 1,
                bounces: 8,
                batch: *batch,
            };
            let mut pictures = Vec::new();
            for form in FORMS {
                let lost = |error| Lost::new(client, &error);
                let meter = Meter::begin(client).await.map_err(lost)?;
                let begun = Instant::now();
                let settings = self.settings(job, 4);
                let bar = super::settings::progress("a picture");
                bar.set_length(settings.paths());
                let picture = picture(form, ready, &settings, &bar).await?;
                let took = begun.elapsed();
                bar.finish_and_clear();
                let messages = meter.end(client).await.map_err(lost)?;
                pictures.push(picture);
                self.print_picture(*batch, form, took, messages, &world.name)?;
            }
            ensure!(
                pictures[0] == pictures[1],
                "the two forms made different pictures"
            );
        }
        Ok(())
    }

    fn print_picture(
        &self,
        batch: u32,
        form: Form,
        took: Duration,
        messages: Messages,
        name: &str,
    ) -> anyhow::Result<()> {
        let Messages { all, client } = messages;
        if self.json {
            let line = json!({
                "what": "picture", "scene": name, "batch": batch, "form": form.to_string(),
                "seconds": took.as_secs_f64(), "messages": all, "messages_at_client": client,
                "servers": self.servers.servers, "link_us": self.servers.link.as_micros() as u64,
            });
            return output::line(format_args!("{line}"));
        }
        output::line(format_args!(
            "{batch:>6} {form:>5} {:>10} {all:>12} {client:>12}",
            format!("{took:.1?}")
        ))
    }

    fn settings(&self, job: Job, samples: u32) -> Settings {
        Settings {
            width: self.size.0,
            height: self.size.1,
            samples,
            camera: None,
            job,
            under_way: UNDER_WAY.max(job.batch),
        }
    }
}

async fn picture(
    form: Form,
    ready: &Ready,
    settings: &Settings,
    bar: &ProgressBar,
) -> Result<Picture, Lost> {
    let mut watch = |picture: &Picture| bar.set_position(picture.paths());
    let Ready { client, world, .. } = ready;
    match form {
        Form::Dpc => dpc::render(client, world, settings, &mut watch).await,
        Form::Rpc => rpc::render(client, world, settings, &mut watch).await,
    }
}

/// How long the paths take in both forms, which take turns, and their messages.
async fn measure(ready: &Ready, job: Job, paths: &[Path]) -> anyhow::Result<[Measured; 2]> {
    const ROUNDS: usize = 10;
    let client = &ready.client;
    let mut measured = [Measured::default(), Measured::default()];
    for (form, measured) in FORMS.into_iter().zip(&mut measured) {
        // Connects who has not talked to each other yet.
        for path in paths {
            follow(form, ready, job, *path).await?;
        }
        let lost = |error| Lost::new(client, &error);
        let meter = Meter::begin(client).await.map_err(lost)?;
        for path in paths {
            follow(form, ready, job, *path).await?;
        }
        measured.messages = meter.end(client).await.map_err(lost)?;
    }
    for _ in 0..ROUNDS {
        for (form, measured) in FORMS.into_iter().zip(&mut measured) {
            for path in paths {
                let begun = Instant::now();
                follow(form, ready, job, *path).await?;
                measured.times.push(begun.elapsed());
            }
        }
    }
    Ok(measured)
}

async fn follow(form: Form, ready: &Ready, job: Job, path: Path) -> Result<(), Lost> {
    let Ready { client, world, .. } = ready;
    match form {
        Form::Dpc => drop(dpc::follow(client, world, job, path).await?),
        Form::Rpc => drop(rpc::explain(client, world, job, path).await?),
    }
    Ok(())
}

impl Measured {
    fn middle(&mut self) -> Duration {
        self.times.sort();
        self.times
            .get(self.times.len() / 2)
            .copied()
            .unwrap_or_default()
    }
}
