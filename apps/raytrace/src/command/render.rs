//! `wallaby-raytrace render`: a picture.

use super::settings::{Ready, Servers, WhichPicture, WhichScene};
use crate::file::{check_writable, write};
use crate::picture::Picture;
use crate::render::{Form, Settings, dpc, local, rpc};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;
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

/// What came of it.
struct Made {
    picture: Picture,
    how: String,
    triangles: u32,
    name: String,
    seconds: f64,
}

impl Render {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        check_writable(&self.out)?;
        let settings = self.picture.settings();
        let made = match self.local {
            true => self.locally(&settings).await?,
            false => self.by_servers(&settings).await?,
        };
        write(&self.out, &made.picture)?;
        let (paths, out) = (settings.paths(), &self.out);
        let Made {
            how,
            triangles,
            name,
            seconds,
            ..
        } = &made;
        if self.json {
            return output::line(json!({
                "out": out, "scene": name, "triangles": triangles, "how": how,
                "width": settings.width, "height": settings.height, "samples": settings.samples,
                "paths": paths, "seconds": seconds,
            }));
        }
        let rate = paths as f64 / seconds.max(1e-9);
        output::line(format_args!(
            "{}: {name}, {triangles} triangles, {paths} paths in {seconds:.1} s ({rate:.0} a second) by {how}",
            out.display()
        ))
    }

    async fn locally(&self, settings: &Settings) -> anyhow::Result<Made> {
        let scene = self.scene.load_local(self.picture.camera).await?;
        let begun = Instant::now();
        let picture = local::render(scene.clone(), settings, &mut growing(settings)).await;
        Ok(Made {
            picture,
            how: "this process alone".to_owned(),
            triangles: scene.world().triangles,
            name: scene.world().name.clone(),
            seconds: begun.elapsed().as_secs_f64(),
        })
    }

    async fn by_servers(&self, settings: &Settings) -> anyhow::Result<Made> {
        let (world, parts) = self
            .scene
            .load(self.servers.servers, self.picture.camera)
            .await?;
        let ready = self.servers.start(world, parts).await?;
        let Ready { client, world, .. } = &ready;
        let begun = Instant::now();
        let form = if self.rpc { Form::Rpc } else { Form::Dpc };
        let mut watch = growing(settings);
        let picture = match form {
            Form::Dpc => dpc::render(client, world, settings, &mut watch).await?,
            Form::Rpc => rpc::render(client, world, settings, &mut watch).await?,
        };
        let made = Made {
            picture,
            how: format!("{form} on {} servers", client.servers().len()),
            triangles: world.triangles,
            name: world.name.clone(),
            seconds: begun.elapsed().as_secs_f64(),
        };
        ready.end().await;
        Ok(made)
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
