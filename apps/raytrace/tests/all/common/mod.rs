//! What the tests share: scenes, servers within the test, pictures in all forms, files that go.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    reason = "each program uses a part of it; a test that fails says where"
)]

mod cluster;

pub use cluster::Cluster;
use glam::DVec3;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use wallaby_raytrace::path::Job;
use wallaby_raytrace::picture::Picture;
use wallaby_raytrace::ray::Ray;
use wallaby_raytrace::render::local::{self, Local};
use wallaby_raytrace::render::{Settings, dpc, rpc};
use wallaby_raytrace::scene::{Limits, Scene, Source};
use wallaby_raytrace::triangle::Triangle;
use wallaby_raytrace::world::World;

/// A scene by its name or file.
pub fn scene(source: &str) -> Scene {
    let source: Source = source.parse().unwrap();
    source.load(&Limits::default()).unwrap()
}

/// The same, with light, in parts.
pub fn staged(source: &str, parts: u16) -> (World, Vec<Vec<Triangle>>) {
    let scene = scene(source).staged(DVec3::Y);
    scene.split(parts, DVec3::Y, &Limits::default()).unwrap()
}

/// The Cornell box that comes with this crate.
pub fn cornell_box() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenes/cornell_box.obj");
    path.to_str().unwrap().to_owned()
}

/// Servers within the test, one for each part.
pub async fn cluster(world: &World, parts: Vec<Vec<Triangle>>) -> Cluster {
    static CLUSTERS: AtomicU32 = AtomicU32::new(0);
    let number = CLUSTERS.fetch_add(1, Ordering::Relaxed);
    let listen = |server: usize| format!("mem://{number}-{server}");
    Cluster::start(world, parts, listen).await
}

/// A small picture.
pub fn settings(width: u32, height: u32, samples: u32, batch: u32) -> Settings {
    Settings {
        width,
        height,
        samples,
        camera: None,
        job: Job {
            seed: 7,
            bounces: 6,
            batch,
        },
        under_way: 2048.max(batch),
    }
}

/// A picture without servers.
pub async fn picture_alone(source: &str, settings: &Settings) -> Picture {
    let (world, parts) = staged(source, 1);
    let all = parts.into_iter().flatten().collect();
    let scene = Arc::new(Local::new(world, all));
    let picture = local::render(scene, settings, &mut |_| {}).await;
    picture.unwrap()
}

/// How a picture is made by servers.
#[derive(Clone, Copy, Debug)]
pub enum Form {
    Dpc,
    Rpc,
}

/// A picture by servers.
pub async fn picture_by(
    form: Form,
    cluster: &Cluster,
    world: &World,
    settings: &Settings,
) -> Picture {
    let mut watch = |_: &Picture| {};
    let client = cluster.client();
    let picture = match form {
        Form::Dpc => dpc::render(client, world, settings, &mut watch).await,
        Form::Rpc => rpc::render(client, world, settings, &mut watch).await,
    };
    picture.unwrap()
}

/// Numbers that look random, the same for the same seed.
pub struct Numbers(fastrand::Rng);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// From 0, below 1.
    pub fn share(&mut self) -> f64 {
        self.0.f64()
    }

    /// Below a number.
    pub fn below(&mut self, most: usize) -> usize {
        self.0.usize(..most)
    }

    /// In a cube.
    pub fn point(&mut self, half: f64) -> DVec3 {
        let mut next = || (self.share() * 2.0 - 1.0) * half;
        DVec3::new(next(), next(), next())
    }

    /// From outside of a cube to somewhere within.
    pub fn ray(&mut self, half: f64) -> Ray {
        let (from, to) = (self.point(3.0 * half), self.point(half));
        Ray {
            origin: from,
            direction: (to - from).normalize(),
        }
    }
}

/// A folder that goes with this value.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.file(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}
