//! `wallaby-raytrace render`: a picture.

use super::settings::{Servers, WhichPicture, WhichScene};
use crate::file::{check_writable, write};
use crate::picture::Picture;
use crate::render::local::{self, Local};
use crate::render::{Settings, dpc, rpc};
use crate::world::World;
use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::task::spawn_blocking;
use wallaby_program::output;

/// Which picture of which scene.
#[derive(Debug, Args)]
pub(super) struct Render {
    #[command(flatten)]
    scene: WhichScene,
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    picture: WhichPicture,
    /// The file that it is written to
    #[arg(long, value_name = "FILE.png", default_value = "picture.png")]
    out: PathBuf,
    /// Make it in this process alone, without servers: the same picture
    #[arg(long, conflicts_with_all = ["rpc", "servers"])]
    local: bool,
    /// Make it by plain calls in place of multi-hop ones: the same picture
    #[arg(long)]
    rpc: bool,
    /// Print a line of JSON about it
    #[arg(long)]
    json: bool,
}

impl Render {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        check_writable(&self.out)?;
        let settings = self.picture.settings();
        let mut watch = growing(&settings);
        let (begun, took, picture, world, how);
        if self.local {
            let (scene, parts) = self.scene.load(1).await?;
            let local = spawn_blocking(move || Arc::new(Local::new(scene, parts.concat())));
            let local = local.await.context("the scene could not be prepared")?;
            begun = Instant::now();
            picture = local::render(Arc::clone(&local), &settings, &mut watch).await?;
            took = begun.elapsed();
            (world, how) = (local.world().clone(), "this process alone".to_owned());
        } else {
            let (scene, parts) = self.scene.load(self.servers.servers).await?;
            let ready = self.servers.start(scene, parts).await?;
            begun = Instant::now();
            picture = match self.rpc {
                true => rpc::render(&ready.client, &ready.world, &settings, &mut watch).await?,
                false => dpc::render(&ready.client, &ready.world, &settings, &mut watch).await?,
            };
            took = begun.elapsed();
            let form = if self.rpc { "plain" } else { "multi-hop" };
            how = format!("{form} calls to {} servers", self.servers.servers);
            world = ready.end().await;
        }
        let (seconds, paths) = (took.as_secs_f64(), settings.paths());
        write(&self.out, &picture)?;
        let World {
            name, triangles, ..
        } = world;
        if self.json {
            return output::line(json!({
                "out": self.out, "scene": name, "triangles": triangles, "how": how,
                "width": settings.width, "height": settings.height, "samples": settings.samples,
                "paths": paths, "seconds": seconds,
            }));
        }
        let rate = paths as f64 / seconds.max(1e-9);
        output::line(format_args!(
            "{}: {name}, {triangles} triangles, {paths} paths in {seconds:.1} s ({rate:.0} a second) by {how}",
            self.out.display()
        ))
    }
}

/// Shows how far a picture is; without a terminal, that its first light has come.
fn growing(settings: &Settings) -> impl FnMut(&Picture) {
    let style = ProgressStyle::with_template("{bar:40.green/dim} {percent} %, {eta} to go")
        .map(|style| style.progress_chars("━━╌"))
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    let bar = ProgressBar::new(settings.paths()).with_style(style);
    let mut told = !bar.is_hidden();
    move |picture: &Picture| {
        bar.set_position(picture.paths());
        if !std::mem::replace(&mut told, true) {
            eprintln!("first light");
        }
    }
}
