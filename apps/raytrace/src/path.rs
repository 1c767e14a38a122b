//! A path of light, followed backwards from the camera: what happens where it hits something.

use crate::chance::{Chance, Dimension};
use crate::light::around;
use crate::material::{Finish, reflectance};
use crate::picture::{Amount, Contribution};
use crate::ray::Ray;
use crate::search::{Hit, Search};
use crate::triangle::Triangle;
use crate::world::World;
use glam::DVec3;
use serde::{Deserialize, Serialize};

/// What paths of one picture have in common; it travels with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Which random numbers.
    pub seed: u64,
    /// How many surfaces a path touches at most.
    pub bounces: u16,
    /// How many rays a message has at most.
    pub batch: u32,
}

/// A path on its way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// The pixel that it belongs to.
    pub pixel: u32,
    /// Which of the pixel's samples it is.
    pub sample: u32,
    /// How many surfaces it has touched.
    pub bounce: u16,
    /// Its ray, looking for the next one.
    pub search: Search,
    /// How much of the light that it finds reaches the camera.
    pub throughput: DVec3,
    /// Whether lamps that the ray hits count: not after a surface that sent a shadow ray to them.
    pub sees_lamps: bool,
    /// Whether a surface has scattered it: it was not only reflected and refracted.
    pub is_scattered: bool,
}

/// A ray from a surface towards a light.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shadow {
    /// What comes to the camera if nothing is in its way.
    pub contribution: Contribution,
    /// The ray.
    pub ray: Ray,
    /// How far the light is.
    pub distance: f64,
    /// The part that was visited last.
    pub last: Option<u16>,
}

/// What becomes of a path where it hits something.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shaded {
    /// Light that comes from there.
    pub light: Option<Contribution>,
    /// Light that may come from there.
    pub shadow: Option<Shadow>,
    /// How the path goes on.
    pub next: Option<Path>,
}

/// More light than this by way of another surface is cut off: such paths are rare, and would be bright dots.
const BRIGHTEST_INDIRECT: f64 = 3.0;
/// The same of a lamp that is seen in a mirror, or through glass, by a surface that scatters: rarer still.
const BRIGHTEST_CAUSTIC: f64 = 1.0;
/// From this bounce on paths end by chance.
const MORTAL_FROM: u16 = 3;
/// Clear coats have the refractive index of glass.
const COAT: f64 = 1.5;

/// A surface where a path hits it.
struct Surface {
    point: DVec3,
    /// Across its plane, and as it is to look: both on the side where the path comes from.
    flat: DVec3,
    smooth: DVec3,
    /// The path comes from outside.
    outside: bool,
}

impl Path {
    /// A path that begins at the camera.
    pub fn new(pixel: u32, sample: u32, ray: Ray) -> Self {
        Self {
            pixel,
            sample,
            bounce: 0,
            search: Search::new(ray),
            throughput: DVec3::ONE,
            sees_lamps: true,
            is_scattered: false,
        }
    }

    /// Its light, if it hits nothing.
    pub fn missed(&self, world: &World) -> Contribution {
        let light = world.sky.light(self.search.ray.direction, world.up);
        self.contribution(light * self.throughput)
    }

    /// What happens at a triangle that it hits.
    pub fn shade(&self, hit: &Hit, triangle: &Triangle, world: &World, job: &Job) -> Shaded {
        let material = world.materials.get(triangle.material as usize);
        let material = material.copied().unwrap_or_default();
        if material.is_lamp() {
            let light = material.emission * self.throughput;
            return Shaded {
                light: self.sees_lamps.then(|| self.contribution(light)),
                ..Shaded::default()
            };
        }
        let Some(surface) = Surface::new(&self.search.ray, hit, triangle) else {
            return Shaded::default();
        };
        let chance = Chance::new(job.seed, self.pixel, self.sample);
        let lobe = chance.draw(self.bounce, Dimension::Lobe);
        let direction = self.search.ray.direction;
        let (shadow, next) = match material.finish {
            Finish::Matt(albedo) => self.scatter(albedo, &surface, world, chance),
            // What a coat reflects onto other surfaces is little, and costs many paths.
            Finish::Glazed(albedo) if self.is_scattered => {
                self.scatter(albedo, &surface, world, chance)
            }
            Finish::Glazed(albedo) => {
                let reflected = reflectance(-direction.dot(surface.smooth), 1.0 / COAT);
                // Reflected more often than the coat does it, as that is what the eye looks for.
                let often = reflected.clamp(0.1, 0.9);
                if lobe < often {
                    let strength = DVec3::splat(reflected / often);
                    (None, self.reflect(strength, &surface, world))
                } else {
                    let strength = (1.0 - reflected) / (1.0 - often);
                    self.scatter(albedo * strength, &surface, world, chance)
                }
            }
            Finish::Mirror(strength) => (None, self.reflect(strength, &surface, world)),
            Finish::Glass { tint, index } => (None, self.pass(tint, index, &surface, world, lobe)),
        };
        let next = next.filter(|next| next.bounce < job.bounces);
        Shaded {
            light: None,
            shadow,
            next: next.and_then(|next| next.survive(chance)),
        }
    }

    /// At a matt surface: light from a lamp, and a way on.
    fn scatter(
        &self,
        albedo: DVec3,
        surface: &Surface,
        world: &World,
        chance: Chance,
    ) -> (Option<Shadow>, Option<Self>) {
        let throughput = self.throughput * albedo;
        if throughput.max_element() <= 0.0 {
            return (None, None);
        }
        let begin = surface.point + surface.flat * world.nudge;
        let incident = world.lights.choose(begin, chance, self.bounce);
        let incident = incident.filter(|from| from.direction.dot(surface.flat) > 0.0);
        let shadow = incident.and_then(|from| {
            let cosine = from.direction.dot(surface.smooth).max(0.0);
            let light = throughput * from.light * (cosine * std::f64::consts::FRAC_1_PI);
            let contribution = self.contribution(light);
            (contribution.amount != Amount::default()).then_some(Shadow {
                contribution,
                ray: Ray {
                    origin: begin,
                    direction: from.direction,
                },
                // Short of the lamp itself.
                distance: from.distance * (1.0 - 1e-6),
                last: None,
            })
        });
        // Directions as likely as the light from there counts: by the cosine.
        let draw = |dimension| chance.draw(self.bounce, dimension);
        let cosine = (1.0 - draw(Dimension::WayU)).sqrt();
        let direction = around(surface.smooth, cosine, draw(Dimension::WayV));
        let next = (direction.dot(surface.flat) > 0.0)
            .then(|| self.onward(begin, direction, throughput, false));
        (shadow, next)
    }

    /// At a mirror.
    fn reflect(&self, strength: DVec3, surface: &Surface, world: &World) -> Option<Self> {
        let direction = self.search.ray.direction;
        let reflected = direction - surface.smooth * (2.0 * direction.dot(surface.smooth));
        let begin = surface.point + surface.flat * world.nudge;
        let outward = reflected.dot(surface.flat) > 0.0;
        outward.then(|| self.onward(begin, reflected, self.throughput * strength, true))
    }

    /// Through glass, or reflected by it.
    fn pass(
        &self,
        tint: DVec3,
        index: f64,
        surface: &Surface,
        world: &World,
        lobe: f64,
    ) -> Option<Self> {
        let direction = self.search.ray.direction;
        let ratio = if surface.outside { 1.0 / index } else { index };
        let cosine = -direction.dot(surface.smooth);
        if lobe < reflectance(cosine, ratio) {
            return self.reflect(DVec3::ONE, surface, world);
        }
        let through = (1.0 - ratio * ratio * (1.0 - cosine * cosine))
            .max(0.0)
            .sqrt();
        let refracted = direction * ratio + surface.smooth * (ratio * cosine - through);
        let begin = surface.point - surface.flat * world.nudge;
        let throughput = self.throughput * tint;
        let inward = refracted.dot(surface.flat) < 0.0;
        inward.then(|| self.onward(begin, refracted, throughput, true))
    }

    fn onward(&self, origin: DVec3, direction: DVec3, throughput: DVec3, sees_lamps: bool) -> Self {
        let direction = direction.normalize_or(DVec3::Y);
        Self {
            bounce: self.bounce.saturating_add(1),
            search: Search::new(Ray { origin, direction }),
            throughput,
            sees_lamps,
            is_scattered: self.is_scattered || !sees_lamps,
            ..*self
        }
    }

    /// Ends by chance if little light would come this way; counts for those that ended if not.
    fn survive(mut self, chance: Chance) -> Option<Self> {
        if self.bounce >= MORTAL_FROM {
            let likelihood = self.throughput.max_element().min(0.95);
            // Drawn for the bounce before: the next one has numbers of its own.
            if chance.draw(self.bounce - 1, Dimension::Survival) >= likelihood {
                return None;
            }
            self.throughput /= likelihood;
        }
        let is_light = self.throughput.is_finite() && self.throughput.max_element() > 0.0;
        is_light.then_some(self)
    }

    fn contribution(&self, light: DVec3) -> Contribution {
        let most = match (self.is_scattered, self.sees_lamps) {
            (false, _) => f64::INFINITY,
            (true, false) => BRIGHTEST_INDIRECT,
            (true, true) => BRIGHTEST_CAUSTIC,
        };
        let light = match light.is_nan() {
            true => DVec3::ZERO,
            false => light.min(DVec3::splat(most)),
        };
        Contribution {
            pixel: self.pixel,
            amount: Amount::of(light),
        }
    }
}

impl Surface {
    fn new(ray: &Ray, hit: &Hit, triangle: &Triangle) -> Option<Self> {
        let crossing = triangle.hit(ray, &crate::ray::Line::new(ray))?;
        let (flat, smooth) = triangle.normals_seen(&crossing, ray.direction);
        Some(Self {
            point: ray.at(hit.distance),
            flat,
            smooth,
            outside: triangle.across().dot(ray.direction) < 0.0,
        })
    }
}
