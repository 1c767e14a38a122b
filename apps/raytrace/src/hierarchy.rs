//! A bounding-volume hierarchy: boxes within boxes around triangles, so that a ray looks at few of them.

use crate::ray::{Bounds, Line, Ray};
use crate::triangle::Triangle;

/// Not more triangles than this are in a box that has no boxes in it, where they can be told apart.
const LEAF: usize = 4;
/// Places along an axis at which a box may be divided.
const BINS: usize = 16;
/// From this depth on boxes are halved by number, so that no order of triangles makes the tree deeper than 96.
const DEEP: u32 = 60;
/// Boxes that wait while a ray is followed: one a level.
const STACK: usize = 100;

/// Triangles in a tree of boxes.
#[derive(Clone, Debug)]
pub struct Hierarchy {
    nodes: Vec<Node>,
    triangles: Vec<Triangle>,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    bounds: Bounds,
    /// Its first triangle, or the first of its two boxes, which stand side by side.
    first: u32,
    /// How many triangles; 0 if it has boxes.
    count: u32,
}

/// The nearest triangle that was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Nearest {
    /// How far along the ray.
    pub distance: f64,
    /// The triangle's place in the scene.
    pub index: u32,
    /// Its place in this hierarchy.
    pub place: u32,
}

impl Hierarchy {
    /// Of these triangles.
    pub fn new(mut triangles: Vec<Triangle>) -> Self {
        let mut nodes = vec![Node::around(&triangles, 0)];
        // What is still to be divided, with its depth.
        let mut open = vec![(0usize, 0u32)];
        while let Some((at, depth)) = open.pop() {
            let Node { first, count, .. } = nodes[at];
            let range = first as usize..(first + count) as usize;
            let Some(left) = divide(&mut triangles[range.clone()], depth) else {
                continue;
            };
            let middle = range.start + left;
            let below = nodes.len();
            nodes.push(Node::around(&triangles[range.start..middle], range.start));
            nodes.push(Node::around(&triangles[middle..range.end], middle));
            nodes[at].first = below as u32;
            nodes[at].count = 0;
            open.extend([(below, depth + 1), (below + 1, depth + 1)]);
        }
        Self { nodes, triangles }
    }

    /// The box around all.
    pub fn bounds(&self) -> Bounds {
        self.nodes[0].bounds
    }

    /// The triangle at a place of this hierarchy.
    pub fn triangle(&self, place: u32) -> Option<&Triangle> {
        self.triangles.get(place as usize)
    }

    /// How many triangles.
    pub fn len(&self) -> usize {
        self.triangles.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.triangles.is_empty()
    }

    /// The nearest triangle that the ray hits, nearer than `limit`, or as near with a lower index. At equal distance the
    /// lowest index counts.
    pub fn nearest(&self, ray: &Ray, limit: Option<(f64, u32)>) -> Option<Nearest> {
        let mut best = limit.unwrap_or((f64::INFINITY, u32::MAX));
        let mut found = None;
        self.walk(ray, best.0, |line, range, bound| {
            for (place, triangle) in (range.start..).zip(&self.triangles[range]) {
                let Some(hit) = triangle.hit(ray, line) else {
                    continue;
                };
                let (distance, index) = (hit.distance, triangle.index);
                if distance < best.0 || distance == best.0 && index < best.1 {
                    best = (distance, index);
                    let place = place as u32;
                    found = Some(Nearest {
                        distance,
                        index,
                        place,
                    });
                }
            }
            *bound = best.0;
            false
        });
        found
    }

    /// Whether any triangle is hit before `distance`.
    pub fn is_hit_before(&self, ray: &Ray, distance: f64) -> bool {
        self.walk(ray, distance, |line, range, _| {
            let hit = |triangle: &Triangle| triangle.hit(ray, line);
            let mut hits = self.triangles[range].iter().filter_map(hit);
            hits.any(|hit| hit.distance < distance)
        })
    }

    /// Visits triangles along a ray, box by box, nearest boxes first, leaving out those that begin beyond `bound`, which
    /// the visitor may lower; until it says so, which is the result.
    fn walk(
        &self,
        ray: &Ray,
        mut bound: f64,
        mut visit: impl FnMut(&Line, std::ops::Range<usize>, &mut f64) -> bool,
    ) -> bool {
        let line = Line::new(ray);
        let enter = |node: usize| {
            let crossing = self
                .nodes
                .get(node)
                .and_then(|node| line.crossing(&node.bounds));
            crossing.map(|(enter, _)| enter)
        };
        let mut waiting = [(0usize, 0f64); STACK];
        let Some(first) = enter(0) else { return false };
        waiting[0].1 = first;
        let mut count = 1;
        while count > 0 {
            count -= 1;
            let (at, begins) = waiting[count];
            if begins > bound {
                continue;
            }
            let node = &self.nodes[at];
            let first = node.first as usize;
            if node.count > 0 {
                if visit(&line, first..first + node.count as usize, &mut bound) {
                    return true;
                }
                continue;
            }
            if self.triangles.is_empty() {
                return false;
            }
            let below = [(first, enter(first)), (first + 1, enter(first + 1))];
            let [left, right] = below.map(|(node, begins)| Some((node, begins?)));
            let (near, far) = match (left, right) {
                (Some(one), Some(other)) if other.1 < one.1 => (right, left),
                _ => (left, right),
            };
            for next in [far, near].into_iter().flatten() {
                waiting[count] = next;
                count += 1;
            }
        }
        false
    }
}

impl Node {
    fn around(triangles: &[Triangle], first: usize) -> Self {
        let union = |bounds: Bounds, triangle: &Triangle| bounds.union(triangle.bounds());
        Self {
            bounds: triangles.iter().fold(Bounds::EMPTY, union),
            first: first as u32,
            count: triangles.len() as u32,
        }
    }
}

/// Orders triangles so that the first so many are one half and the rest the other; `None` if they should stay together.
fn divide(triangles: &mut [Triangle], depth: u32) -> Option<usize> {
    if triangles.len() <= LEAF {
        return None;
    }
    let centers = Bounds::around(triangles.iter().map(Triangle::center));
    let axis = longest_axis(&centers);
    let (low, length) = (centers.low[axis], centers.size()[axis]);
    if length > 0.0 && depth < DEEP {
        let bin = |triangle: &Triangle| {
            let along = (triangle.center()[axis] - low) / length;
            ((along * BINS as f64) as usize).min(BINS - 1)
        };
        if let Some(border) = cheapest_border(triangles, &bin) {
            return Some(partition(triangles, |triangle| bin(triangle) < border));
        }
    }
    let half = triangles.len() / 2;
    triangles.select_nth_unstable_by(half, |one, other| {
        let (one_at, other_at) = (one.center()[axis], other.center()[axis]);
        one_at
            .total_cmp(&other_at)
            .then(one.index.cmp(&other.index))
    });
    Some(half)
}

/// The axis along which a box is longest.
pub(crate) fn longest_axis(bounds: &Bounds) -> usize {
    let size = bounds.size();
    match (size.x >= size.y && size.x >= size.z, size.y >= size.z) {
        (true, _) => 0,
        (false, true) => 1,
        (false, false) => 2,
    }
}

/// The border between bins for which rays have least to do: by surface and number of the two sides. `None` if all
/// triangles are in one bin.
fn cheapest_border(triangles: &[Triangle], bin: &impl Fn(&Triangle) -> usize) -> Option<usize> {
    let mut bins = [(Bounds::EMPTY, 0usize); BINS];
    for triangle in triangles {
        let (bounds, count) = &mut bins[bin(triangle)];
        *bounds = bounds.union(triangle.bounds());
        *count += 1;
    }
    let cost = |bins: &[(Bounds, usize)]| {
        let sum = |(bounds, count): (Bounds, usize), bin: &(Bounds, usize)| {
            (bounds.union(bin.0), count + bin.1)
        };
        let (bounds, count) = bins.iter().fold((Bounds::EMPTY, 0), sum);
        (count > 0).then_some(bounds.half_area() * count as f64)
    };
    let borders = (1..BINS).filter_map(|border| {
        let (left, right) = bins.split_at(border);
        Some((cost(left)? + cost(right)?, border))
    });
    let cheapest = borders.min_by(|one, other| one.0.total_cmp(&other.0));
    cheapest.map(|(_, border)| border)
}

/// Puts those first for which it is so; how many.
fn partition(triangles: &mut [Triangle], is_first: impl Fn(&Triangle) -> bool) -> usize {
    let mut first = 0;
    for at in 0..triangles.len() {
        if is_first(&triangles[at]) {
            triangles.swap(first, at);
            first += 1;
        }
    }
    first
}
