//! The way of a ray through the parts of a scene: front to back, until the nearest hit is certain.

use crate::ray::{Bounds, Line, Ray};
use serde::{Deserialize, Serialize};

/// The boxes around the parts of a scene, in the order of their numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Map(pub Vec<Bounds>);

/// A triangle that a ray hits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hit {
    /// How far along the ray.
    pub distance: f64,
    /// The triangle's place in the scene.
    pub triangle: u32,
    /// The part that has it.
    pub part: u16,
    /// Its place in that part.
    pub place: u32,
}

/// A ray on its way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    /// The ray.
    pub ray: Ray,
    /// The nearest hit until now.
    pub best: Option<Hit>,
    /// The part that was visited last. Those before it on the way were, too.
    pub last: Option<u16>,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// Another part has to be asked.
    Visit(u16),
    /// This is the nearest hit.
    Found(Hit),
    /// Nothing is hit.
    Missed,
}

impl Search {
    /// At its beginning.
    pub fn new(ray: Ray) -> Self {
        Self {
            ray,
            best: None,
            last: None,
        }
    }

    /// What comes next. A part whose box begins beyond the nearest hit needs not be asked; one that begins right there
    /// does, as it may have a triangle at the same distance with a lower index.
    pub fn step(&self, map: &Map) -> Step {
        let limit = self.best.map_or(f64::INFINITY, |hit| hit.distance);
        match (map.next(&self.ray, self.last, limit), self.best) {
            (Some(part), _) => Step::Visit(part),
            (None, Some(hit)) => Step::Found(hit),
            (None, None) => Step::Missed,
        }
    }
}

impl Map {
    /// The part that a ray enters next after `last`, if it does before `limit`. Parts entered at the same distance come
    /// in the order of their numbers.
    pub fn next(&self, ray: &Ray, last: Option<u16>, limit: f64) -> Option<u16> {
        let line = Line::new(ray);
        let enter = |part: u16| Some(line.crossing(self.0.get(usize::from(part))?)?.0);
        let after = match last {
            Some(last) => Some((enter(last)?, last)),
            None => None,
        };
        let parts = (0..=u16::MAX).take(self.0.len());
        let mut next: Option<(f64, u16)> = None;
        for part in parts {
            let Some(at) = enter(part).filter(|at| *at <= limit) else {
                continue;
            };
            let place = (at, part);
            if after.is_none_or(|after| after < place) && next.is_none_or(|next| place < next) {
                next = Some(place);
            }
        }
        next.map(|(_, part)| part)
    }
}
