//! A part of a scene: some triangles, and what happens to rays there.

use crate::hierarchy::{Hierarchy, divide};
use crate::path::{Job, Path, Shadow};
use crate::picture::{Contribution, join};
use crate::ray::{Bounds, Line, Ray};
use crate::search::{Hit, Map, Search, Step};
use crate::triangle::Triangle;
use crate::world::World;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// Some triangles of a scene.
#[derive(Clone, Debug)]
pub struct Part {
    number: u16,
    hierarchy: Hierarchy,
}

/// What becomes of rays at a part: light for the client, and rays for other parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Onward {
    /// Light that reaches the camera, one contribution a pixel.
    pub light: Vec<Contribution>,
    /// Paths, by the part that they go to.
    pub paths: BTreeMap<u16, Vec<Path>>,
    /// Shadow rays, by the part that they go to.
    pub shadows: BTreeMap<u16, Vec<Shadow>>,
}

/// Somebody sent what cannot be: a path that hit a triangle which this part does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("part {part} has no triangle at place {place}: it has {triangles}")]
pub struct NoSuchTriangle {
    /// The part.
    pub part: u16,
    /// Where there is no triangle.
    pub place: u32,
    /// How many triangles the part has.
    pub triangles: usize,
}

impl Part {
    /// The part with this number, of these triangles.
    pub fn new(number: u16, triangles: Vec<Triangle>) -> Self {
        Self {
            number,
            hierarchy: Hierarchy::new(triangles),
        }
    }

    /// The box around it.
    pub fn bounds(&self) -> Bounds {
        self.hierarchy.bounds()
    }

    /// The triangle at a place of this part.
    pub fn triangle(&self, place: u32) -> Option<&Triangle> {
        self.hierarchy.triangle(place)
    }

    /// How far along a ray it hits the triangle with this place in the scene, whatever is before it. Looks at all.
    pub fn crossing(&self, ray: &Ray, index: u32) -> Option<f64> {
        let places = 0..self.hierarchy.len() as u32;
        let mut triangles = places.filter_map(|place| self.hierarchy.triangle(place));
        let triangle = triangles.find(|triangle| triangle.index == index)?;
        Some(triangle.hit(ray, &Line::new(ray))?.distance)
    }

    /// Follows a ray as far as it goes without another part; what comes next there.
    pub fn follow(&self, search: &mut Search, map: &Map) -> Step {
        loop {
            let step = search.step(map);
            if step != Step::Visit(self.number) {
                return step;
            }
            search.last = Some(self.number);
            let limit = search.best.map(|hit| (hit.distance, hit.triangle));
            if let Some(found) = self.hierarchy.nearest(&search.ray, limit) {
                search.best = Some(Hit {
                    distance: found.distance,
                    triangle: found.index,
                    part: self.number,
                    place: found.place,
                });
            }
        }
    }

    /// Follows paths and shadow rays as far as they go without another part.
    ///
    /// # Errors
    ///
    /// If a path has hit what is not here.
    pub fn advance(
        &self,
        world: &World,
        job: &Job,
        paths: impl IntoIterator<Item = Path>,
        shadows: impl IntoIterator<Item = Shadow>,
        onward: &mut Onward,
    ) -> Result<(), NoSuchTriangle> {
        for path in paths {
            self.advance_path(world, job, path, onward)?;
        }
        for shadow in shadows {
            self.advance_shadow(&world.map, shadow, onward);
        }
        Ok(())
    }

    fn advance_path(
        &self,
        world: &World,
        job: &Job,
        mut path: Path,
        onward: &mut Onward,
    ) -> Result<(), NoSuchTriangle> {
        loop {
            let hit = match self.follow(&mut path.search, &world.map) {
                Step::Found(hit) if hit.part == self.number => hit,
                Step::Visit(part) | Step::Found(Hit { part, .. }) => {
                    onward.paths.entry(part).or_default().push(path);
                    return Ok(());
                }
                Step::Missed => {
                    onward.light.push(path.missed(world));
                    return Ok(());
                }
            };
            let triangle = self.hierarchy.triangle(hit.place).ok_or(NoSuchTriangle {
                part: self.number,
                place: hit.place,
                triangles: self.hierarchy.len(),
            })?;
            let shaded = path.shade(&hit, triangle, world, job);
            onward.light.extend(shaded.light);
            if let Some(shadow) = shaded.shadow {
                self.advance_shadow(&world.map, shadow, onward);
            }
            match shaded.next {
                Some(next) => path = next,
                None => return Ok(()),
            }
        }
    }

    fn advance_shadow(&self, map: &Map, mut shadow: Shadow, onward: &mut Onward) {
        loop {
            match map.next(&shadow.ray, shadow.last, shadow.distance) {
                Some(part) if part == self.number => {
                    if self.hierarchy.is_hit_before(&shadow.ray, shadow.distance) {
                        return;
                    }
                    shadow.last = Some(part);
                }
                Some(part) => {
                    onward.shadows.entry(part).or_default().push(shadow);
                    return;
                }
                None => {
                    onward.light.push(shadow.contribution);
                    return;
                }
            }
        }
    }
}

impl Onward {
    /// Makes it ready to be sent: what is for one pixel becomes one contribution, darkness is left out.
    pub fn join(&mut self) {
        join(&mut self.light);
        self.light
            .retain(|contribution| contribution.amount.0 != [0; 3]);
    }
}

/// Splits triangles in space into so many parts of about the same number: each time across the longest side of the box
/// around their middles.
pub fn split(mut triangles: Vec<Triangle>, parts: u16) -> Vec<Vec<Triangle>> {
    if parts <= 1 {
        return vec![triangles];
    }
    let left = parts / 2;
    let middle = triangles.len() * usize::from(left) / usize::from(parts);
    if middle < triangles.len() {
        divide(&mut triangles, middle);
    }
    let rest = triangles.split_off(middle);
    let mut all = split(triangles, left);
    all.extend(split(rest, parts - left));
    all
}
