//! What several commands can be told: which scene, how many servers, what picture.

use crate::camera::{Camera, parse_point};
use crate::client::Client;
use crate::hosting::distribute;
use crate::lost::Lost;
use crate::path::Job;
use crate::process::{self, LOCAL};
use crate::render::Settings;
use crate::render::local::Local;
use crate::scene::{Limits, Scene, Source, Staging};
use crate::server::{MOST_BOUNCES, MOST_RAYS};
use crate::triangle::Triangle;
use crate::world::World;
use anyhow::Context;
use clap::Args;
use glam::DVec3;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use wallaby::Address;
use wallaby_program::child::Cluster;

/// Which scene, and what is put around it.
#[derive(Clone, Debug, Args)]
pub(super) struct WhichScene {
    /// A file (.obj, also compressed: .obj.gz), or 'box', made up, also with a size as in box:1000000
    #[arg(value_name = "SCENE", default_value = "box")]
    pub(super) scene: Source,
    #[command(flatten)]
    pub(super) stage: Stage,
}

/// What is put around a scene.
#[derive(Clone, Debug, Args)]
pub(super) struct Stage {
    /// Put a lamp there, with this strength, in place of the soft light; several times for several
    #[arg(long, value_name = "X,Y,Z[/STRENGTH]", allow_hyphen_values = true)]
    light: Vec<Lamp>,
    /// The colour of the sky: red, green and blue, 1 for bright
    #[arg(long, value_name = "R,G,B", value_parser = colour)]
    sky: Option<DVec3>,
    /// Which direction is up
    #[arg(long, value_name = "AXIS", default_value = "y", value_parser = ["y", "z"])]
    up: String,
    /// Take no scene with more triangles
    #[arg(long, value_name = "N", default_value_t = Limits::default().triangles)]
    max_triangles: u32,
}

/// A lamp that was asked for.
#[derive(Clone, Copy, Debug)]
struct Lamp(DVec3, f64);

impl FromStr for Lamp {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (at, strength) = text.split_once('/').unwrap_or((text, "10"));
        let strength = strength
            .parse()
            .ok()
            .filter(|strength| (0.0..=1e12).contains(strength));
        match (parse_point(at), strength) {
            (Some(at), Some(strength)) => Ok(Self(at, strength)),
            _ => Err(format!(
                "'{text}' is no lamp: expected X,Y,Z or X,Y,Z/STRENGTH, as in 0,3,1/20"
            )),
        }
    }
}

fn colour(text: &str) -> Result<DVec3, String> {
    let colour = parse_point(text).filter(|colour| colour.min_element() >= 0.0);
    colour.ok_or_else(|| format!("'{text}' is no colour: expected R,G,B, as in 0.4,0.6,1"))
}

/// Which servers.
#[derive(Clone, Debug, Args)]
pub(super) struct Servers {
    /// How many server processes, each with its part of the scene
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) servers: u16,
    /// Emulate a network: every message takes so long, as in 250us or 1ms
    #[arg(long, value_name = "DELAY", default_value = "0", value_parser = wallaby_link::parse_delay)]
    pub(super) link: Duration,
}

/// What paths are followed.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Paths {
    /// How many surfaces a path of light touches at most
    #[arg(long, value_name = "B", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(MOST_BOUNCES)))]
    pub(super) bounces: u16,
    /// How many rays a message has at most
    #[arg(long, value_name = "R", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=MOST_RAYS as i64))]
    pub(super) batch: u32,
    /// Which random numbers: the same ones make the same picture
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub(super) seed: u64,
}

/// What picture is made.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct WhichPicture {
    /// Pixels across and down
    #[arg(long, value_name = "WxH", default_value = "480x360")]
    pub(super) size: Size,
    /// How many paths of light a pixel is made of
    #[arg(long, value_name = "K", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(super) samples: u32,
    /// Where it is taken from, what is in its middle, how many degrees it is high
    #[arg(long, value_name = "X,Y,Z/X,Y,Z[/DEGREES]", allow_hyphen_values = true)]
    pub(super) camera: Option<Camera>,
    #[command(flatten)]
    pub(super) paths: Paths,
}

/// Pixels of a picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size(pub(super) u32, pub(super) u32);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        /// Twice what an 8K screen has: half a gigabyte each, here.
        const MOST: u64 = 1 << 26;
        let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number > 0);
        let numbers = text
            .split_once('x')
            .and_then(|(w, h)| Some((number(w)?, number(h)?)));
        let (width, height) =
            numbers.ok_or_else(|| format!("'{text}' is no size: expected WxH, as in 640x480"))?;
        match u64::from(width) * u64::from(height) <= MOST {
            true => Ok(Self(width, height)),
            false => Err(format!("{width}x{height} are more than {MOST} pixels")),
        }
    }
}

/// Servers with a scene, and a client of them.
pub(super) struct Ready {
    pub(super) client: Client,
    pub(super) world: World,
    /// Ended with this value.
    processes: Cluster<Address>,
}

impl WhichScene {
    /// Reads the scene and splits it for so many servers.
    pub(super) async fn load(
        &self,
        parts: u16,
        camera: Option<Camera>,
    ) -> anyhow::Result<(World, Vec<Vec<Triangle>>)> {
        let (scene, limits, staging) = self.read(camera).await?;
        // Takes a while for a large scene, in which Ctrl-C should be heard.
        let split = move || scene.staged(&staging).split(parts, &staging, &limits);
        Ok(tokio::task::spawn_blocking(split)
            .await
            .context("the scene could not be split")??)
    }

    /// The same, exactly as in the file.
    pub(super) async fn load_bare(
        &self,
        parts: u16,
    ) -> anyhow::Result<(World, Vec<Vec<Triangle>>)> {
        let (scene, limits, staging) = self.read(None).await?;
        let split = move || scene.split(parts, &staging, &limits);
        Ok(tokio::task::spawn_blocking(split)
            .await
            .context("the scene could not be split")??)
    }

    /// The scene for one process alone.
    pub(super) async fn load_local(&self, camera: Option<Camera>) -> anyhow::Result<Arc<Local>> {
        let (world, parts) = self.load(1, camera).await?;
        let all = parts.into_iter().flatten().collect();
        let made = tokio::task::spawn_blocking(move || Arc::new(Local::new(world, all))).await;
        made.context("the scene could not be prepared")
    }

    async fn read(&self, camera: Option<Camera>) -> anyhow::Result<(Scene, Limits, Staging)> {
        let limits = Limits {
            triangles: self.stage.max_triangles,
            ..Limits::default()
        };
        let staging = Staging {
            lamps: self
                .stage
                .light
                .iter()
                .map(|lamp| (lamp.0, lamp.1))
                .collect(),
            sky: self.stage.sky,
            up: if self.stage.up == "z" {
                DVec3::Z
            } else {
                DVec3::Y
            },
            camera,
        };
        let source = self.scene.clone();
        let read = tokio::task::spawn_blocking(move || source.load(&limits)).await;
        let scene = read.context("the scene could not be read")??;
        for note in &scene.notes {
            eprintln!("note: {note}");
        }
        Ok((scene, limits, staging))
    }
}

impl Servers {
    /// Starts servers and gives each its part.
    pub(super) async fn start(
        &self,
        world: World,
        parts: Vec<Vec<Triangle>>,
    ) -> anyhow::Result<Ready> {
        let processes = process::start(self.servers, self.link).await?;
        let servers = processes.said().to_vec();
        let endpoint = Client::listening(LOCAL, self.link).await?;
        let client = Client::new(endpoint, servers)?;
        let given = distribute(&client, &world, parts).await;
        given.map_err(|error| Lost::new(&client, &error))?;
        Ok(Ready {
            client,
            world,
            processes,
        })
    }
}

impl Ready {
    /// Ends the servers.
    pub(super) async fn end(self) {
        self.processes.end().await;
    }
}

impl WhichPicture {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            width: self.size.0,
            height: self.size.1,
            samples: self.samples,
            camera: self.camera,
            job: self.paths.job(),
            under_way: UNDER_WAY.max(self.paths.batch),
        }
    }
}

/// Enough to keep servers busy; about 5 MB of rays.
pub(super) const UNDER_WAY: u32 = 32_768;

impl Paths {
    pub(super) fn job(&self) -> Job {
        Job {
            seed: self.seed,
            bounces: self.bounces,
            batch: self.batch,
        }
    }
}
