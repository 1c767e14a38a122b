//! `wallaby-raytrace render`: a picture.

use super::settings::{Ready, Servers, WhichPicture, WhichScene};
use crate::hosting::{Messages, Meter};
use crate::lost::Lost;
use crate::output;
use crate::picture::Picture;
use crate::preview::{Drawn, Preview, check_writable, write};
use crate::render::{Form, Settings, dpc, local, rpc};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use std::time::Instant;

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
    /// Make it brighter by this factor
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    exposure: f64,
    /// Make it in this process alone, without servers: the same picture
    #[arg(long, conflicts_with_all = ["rpc", "at", "servers"])]
    local: bool,
    /// Make it by plain calls in place of multi-hop ones: the same picture
    #[arg(long)]
    rpc: bool,
    /// Use servers that 'up' has started, with their scene
    #[arg(long, value_name = "PAGE", conflicts_with_all = ["scene", "servers", "transport", "link"])]
    at: Option<PathBuf>,
    /// Do not draw the growing picture in the terminal
    #[arg(long)]
    no_preview: bool,
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
    messages: Messages,
    seconds: f64,
}

impl Render {
    pub(super) async fn run(self) -> anyhow::Result<()> {
        check_writable(&self.out)?;
        let settings = self.picture.settings();
        let drawn = match self.no_preview {
            true => Drawn::Progress,
            false => Drawn::Picture,
        };
        let made = match self.local {
            true => self.locally(&settings, drawn).await?,
            false => self.by_servers(&settings, drawn).await?,
        };
        write(&self.out, &made.picture, self.exposure)?;
        let paths = settings.paths();
        let rate = paths as f64 / made.seconds.max(1e-9);
        if self.json {
            let line = json!({
                "out": self.out, "scene": made.name, "triangles": made.triangles,
                "width": settings.width, "height": settings.height, "samples": settings.samples,
                "how": made.how, "paths": paths, "seconds": made.seconds,
                "messages": made.messages.all, "messages_at_client": made.messages.client,
            });
            output::line(format_args!("{line}"))?;
            return Ok(());
        }
        output::line(format_args!(
            "{}: {}, {} triangles, {} paths in {:.1} s ({:.0} a second) by {}",
            self.out.display(),
            made.name,
            made.triangles,
            paths,
            made.seconds,
            rate,
            made.how,
        ))?;
        if !self.local {
            output::line(format_args!(
                "{} messages, {} of them at the client",
                made.messages.all, made.messages.client
            ))?;
        }
        Ok(())
    }

    async fn locally(&self, settings: &Settings, drawn: Drawn) -> anyhow::Result<Made> {
        let scene = self.scene.load_local(self.picture.camera).await?;
        let begun = Instant::now();
        let mut preview = Preview::new(settings.paths(), self.exposure, &self.out, drawn);
        let picture = local::render(scene.clone(), settings, &mut preview).await;
        Ok(Made {
            picture,
            how: "this process alone".to_owned(),
            triangles: scene.world().triangles,
            name: scene.world().name.clone(),
            messages: Messages::default(),
            seconds: begun.elapsed().as_secs_f64(),
        })
    }

    async fn by_servers(&self, settings: &Settings, drawn: Drawn) -> anyhow::Result<Made> {
        let ready = match &self.at {
            Some(page) => Ready::find(page).await?,
            None => {
                let (world, parts) = self
                    .scene
                    .load(self.servers.servers, self.picture.camera)
                    .await?;
                self.servers.start(world, parts).await?
            }
        };
        let Ready { client, world, .. } = &ready;
        let lost = |error| Lost::new(client, &error);
        let meter = Meter::begin(client).await.map_err(lost)?;
        let begun = Instant::now();
        let form = if self.rpc { Form::Rpc } else { Form::Dpc };
        let mut preview = Preview::new(settings.paths(), self.exposure, &self.out, drawn);
        let picture = match form {
            Form::Dpc => dpc::render(client, world, settings, &mut preview).await?,
            Form::Rpc => rpc::render(client, world, settings, &mut preview).await?,
        };
        drop(preview);
        let seconds = begun.elapsed().as_secs_f64();
        let messages = meter.end(client).await.map_err(lost)?;
        let made = Made {
            picture,
            how: format!("{form} on {} servers", client.servers().len()),
            triangles: world.triangles,
            name: world.name.clone(),
            messages,
            seconds,
        };
        ready.end().await;
        Ok(made)
    }
}
