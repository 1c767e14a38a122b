//! A bounding-volume hierarchy: boxes within boxes around triangles, so that a ray looks at few of them.

use crate::ray::{Bounds, Line, Ray};
use crate::triangle::Triangle;

/// Not more triangles than this are in a box that has no boxes in it, where they can be told apart.
const LEAF: usize = 4;
/// From this depth on boxes are halved by number, so that no order of triangles makes the tree deeper than 92.
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
        let mut open = vec![(0, 0)];
        while let Some((at, depth)) = open.pop() {
            let Node { first, count, .. } = nodes[at];
            let range = first as usize..(first + count) as usize;
            if range.len() <= LEAF {
                continue;
            }
            let middle = range.start + halve(&mut triangles[range.clone()], depth);
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

/// Puts triangles on one side of the middle of their box before those on the other; how many. Where that tells none apart, half of
/// them.
fn halve(triangles: &mut [Triangle], depth: u32) -> usize {
    let centers = Bounds::around(triangles.iter().map(Triangle::center));
    let axis = centers.size().max_position();
    let middle = centers.center()[axis];
    let is_behind = |triangle: &Triangle| triangle.center()[axis] >= middle;
    triangles.sort_unstable_by_key(is_behind);
    let first = triangles.partition_point(|triangle| !is_behind(triangle));
    if depth < DEEP && (1..triangles.len()).contains(&first) {
        return first;
    }
    divide(triangles, triangles.len() / 2);
    triangles.len() / 2
}

/// Orders triangles so that the first so many are on one side of the others, along the longest side of the box around their
/// middles. `first` is less than their number.
pub(crate) fn divide(triangles: &mut [Triangle], first: usize) {
    let size = Bounds::around(triangles.iter().map(Triangle::center)).size();
    let axis = size.max_position();
    triangles.select_nth_unstable_by(first, |one, other| {
        let along = one.center()[axis].total_cmp(&other.center()[axis]);
        along.then(one.index.cmp(&other.index))
    });
}
