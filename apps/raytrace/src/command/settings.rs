//! What several commands can be told: which scene, how many servers, what picture.

use crate::camera::Camera;
use crate::client::Client;
use crate::hosting::distribute;
use crate::lost::Lost;
use crate::path::Job;
use crate::process::{self, LOCAL};
use crate::render::Settings;
use crate::scene::{Limits, Scene, Source};
use crate::server::{MOST_BOUNCES, MOST_RAYS};
use crate::triangle::Triangle;
use crate::world::World;
use anyhow::Context;
use clap::Args;
use glam::DVec3;
use std::str::FromStr;
use std::time::Duration;
use wallaby::Address;
use wallaby_program::child::Cluster;

/// Which scene.
#[derive(Clone, Debug, Args)]
pub(super) struct WhichScene {
    /// A file (.obj, also compressed: .obj.gz), or 'box', made up, also with a size as in box:1000000
    #[arg(value_name = "SCENE", default_value = "box")]
    pub(super) scene: Source,
    #[command(flatten)]
    pub(super) reading: Reading,
}

/// How a scene is read.
#[derive(Clone, Debug, Args)]
pub(super) struct Reading {
    /// Which direction is up
    #[arg(long, value_name = "AXIS", default_value = "y", value_parser = ["y", "z"])]
    up: String,
    /// Take no scene with more triangles
    #[arg(long, value_name = "N", default_value_t = Limits::default().triangles)]
    max_triangles: u32,
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
    /// The scene with light, in so many parts.
    pub(super) async fn load(&self, parts: u16) -> anyhow::Result<(World, Vec<Vec<Triangle>>)> {
        self.reading.load(&self.scene, parts, Scene::staged).await
    }
}

impl Reading {
    /// Reads a scene, does this with it, and splits it.
    pub(super) async fn load(
        &self,
        source: &Source,
        parts: u16,
        stage: fn(Scene, DVec3) -> Scene,
    ) -> anyhow::Result<(World, Vec<Vec<Triangle>>)> {
        let limits = Limits {
            triangles: self.max_triangles,
            ..Limits::default()
        };
        let up = if self.up == "z" { DVec3::Z } else { DVec3::Y };
        let source = source.clone();
        let load = move || {
            let scene = source.load(&limits)?;
            for note in &scene.notes {
                eprintln!("note: {note}");
            }
            stage(scene, up).split(parts, up, &limits)
        };
        // Takes a while for a large scene, in which Ctrl-C should be heard.
        let loaded = tokio::task::spawn_blocking(load).await;
        Ok(loaded.context("the scene could not be read")??)
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
    /// Ends the servers; what is known of the scene.
    pub(super) async fn end(self) -> World {
        self.processes.end().await;
        self.world
    }
}

impl WhichPicture {
    pub(super) fn settings(&self) -> Settings {
        Settings {
            width: self.size.0,
            height: self.size.1,
            samples: self.samples,
            camera: self.camera,
            job: Job {
                seed: self.seed,
                bounces: self.bounces,
                batch: self.batch,
            },
            under_way: UNDER_WAY.max(self.batch),
        }
    }
}

/// Enough to keep servers busy; about 5 MB of rays.
const UNDER_WAY: u32 = 32_768;
