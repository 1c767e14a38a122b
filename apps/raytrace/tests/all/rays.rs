//! Nearest hits beside those of a search that looks at every triangle.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::{Numbers, cluster, cornell_box, scene};
use glam::{DVec3, Vec3};
use wallaby_raytrace::light::Lights;
use wallaby_raytrace::nearest;
use wallaby_raytrace::part::{Part, split};
use wallaby_raytrace::ray::Ray;
use wallaby_raytrace::scene::Limits;
use wallaby_raytrace::search::Map;
use wallaby_raytrace::triangle::Triangle;

/// Möller and Trumbore without any box, and the least (distance, index).
fn brute_force(triangles: &[Triangle], ray: &Ray) -> Option<(f64, u32)> {
    let mut best: Option<(f64, u32)> = None;
    for triangle in triangles {
        let [a, b, c] = triangle.corners;
        let normal = (b - a).cross(c - a);
        let distance = (a - ray.origin).dot(normal) / ray.direction.dot(normal);
        let point = ray.at(distance);
        // On the inner side of all three edges.
        let inside = [(a, b), (b, c), (c, a)]
            .iter()
            .all(|(from, to)| (*to - *from).cross(point - *from).dot(normal) >= 0.0);
        if inside && distance > 0.0 && best.is_none_or(|best| (distance, triangle.index) < best) {
            best = Some((distance, triangle.index));
        }
    }
    best
}

/// A heap of triangles of very different sizes.
fn heap(numbers: &mut Numbers, count: u32) -> Vec<Triangle> {
    let triangle = |index| {
        let size = 10f64.powf(numbers.share() * 4.0 - 3.0);
        let at = numbers.point(1.0);
        Triangle {
            corners: std::array::from_fn(|_| at + numbers.point(size)),
            normals: [Vec3::ZERO; 3],
            material: 0,
            index,
        }
    };
    (0..count).map(triangle).collect()
}

fn check_parts(triangles: &[Triangle], rays: &[Ray]) {
    for parts in [1, 2, 5, 16] {
        let parts: Vec<Part> = (0..)
            .zip(split(triangles.to_vec(), parts))
            .map(|(number, part)| Part::new(number, part))
            .collect();
        let map = Map(parts.iter().map(Part::bounds).collect());
        for ray in rays {
            let expected = brute_force(triangles, ray);
            let mut search = wallaby_raytrace::search::Search::new(*ray);
            let found = loop {
                use wallaby_raytrace::search::Step::{Found, Missed, Visit};
                match search.step(&map) {
                    Visit(part) => drop(parts[usize::from(part)].follow(&mut search, &map)),
                    Found(hit) => break Some((hit.distance, hit.triangle)),
                    Missed => break None,
                }
            };
            match (found, expected) {
                (Some((found, one)), Some((expected, other))) => {
                    let close = (found - expected).abs() <= 1e-9 * expected;
                    assert!(
                        close && one == other,
                        "{ray:?}: {found} {one}, not {expected} {other}"
                    );
                }
                (found, expected) => assert_eq!(found, expected, "{ray:?}"),
            }
        }
    }
}

#[test]
fn the_nearest_triangle_is_found_in_any_number_of_parts() {
    for seed in 1..=3 {
        eprintln!("seed {seed}");
        let mut numbers = Numbers::new(seed);
        let triangles = heap(&mut numbers, 700);
        let rays: Vec<Ray> = (0..400).map(|_| numbers.ray(1.0)).collect();
        check_parts(&triangles, &rays);
    }
}

#[test]
fn rays_along_the_axes_find_what_they_hit() {
    let mut numbers = Numbers::new(11);
    let triangles = heap(&mut numbers, 300);
    let axes = [
        DVec3::X,
        DVec3::NEG_X,
        DVec3::Y,
        DVec3::NEG_Y,
        DVec3::Z,
        DVec3::NEG_Z,
    ];
    let rays: Vec<Ray> = (0..300)
        .map(|number| {
            let direction = axes[number % 6];
            let origin = numbers.point(1.0) - direction * 3.0;
            Ray { origin, direction }
        })
        .collect();
    check_parts(&triangles, &rays);
}

#[test]
fn of_triangles_in_the_same_place_the_first_counts() {
    let mut numbers = Numbers::new(5);
    let mut triangles = heap(&mut numbers, 60);
    // Each three times more, far behind in the order.
    let copies: Vec<Triangle> = (0..3).flat_map(|_| triangles.clone()).collect();
    triangles.extend(copies);
    for (index, triangle) in (0..).zip(&mut triangles) {
        triangle.index = index;
    }
    let rays: Vec<Ray> = (0..500).map(|_| numbers.ray(0.6)).collect();
    check_parts(&triangles, &rays);
    let hits = rays.iter().filter_map(|ray| brute_force(&triangles, ray));
    assert!(hits.clone().count() > 50, "too few hits to tell");
    assert!(hits.clone().all(|(_, index)| index < 60));
}

#[test]
fn nobody_slips_between_two_triangles() {
    // Rays exactly at corners and at the middles of edges of a sphere, which is closed.
    let all = scene("box:3000").triangles;
    let sphere: Vec<Triangle> = all
        .into_iter()
        .filter(|triangle| triangle.material == 6)
        .collect();
    let center = DVec3::new(-0.22, 0.22, 0.52);
    let part = Part::new(0, sphere.clone());
    let map = Map(vec![part.bounds()]);
    for triangle in &sphere {
        let [a, b, c] = triangle.corners;
        for at in [
            a,
            b,
            c,
            (a + b) / 2.0,
            (b + c) / 2.0,
            (c + a) / 2.0,
            (a * 3.0 + b) / 4.0,
        ] {
            let ray = Ray {
                origin: center,
                direction: (at - center).normalize(),
            };
            assert!(nearest::local(&part, &map, &ray).is_some(), "{at}");
        }
    }
}

#[tokio::test]
async fn hops_and_plain_calls_find_the_same_as_a_search_of_all() {
    let scene = scene(&cornell_box());
    let all = scene.triangles.clone();
    assert_eq!(all.len(), 36);
    let lights = Lights::among(&all, &scene.materials);
    assert_eq!(lights.len(), 2, "a lamp by its Ka");
    let (world, parts) = scene.split(4, DVec3::Y, &Limits::default()).unwrap();
    let cluster = cluster(&world, parts).await;
    let mut numbers = Numbers::new(3);
    let half = 280.0;
    let rays: Vec<Ray> = (0..500)
        .map(|_| {
            let ray = numbers.ray(half);
            Ray {
                origin: ray.origin + DVec3::splat(half),
                ..ray
            }
        })
        .collect();
    for batch in [7, 1000] {
        let hops = nearest::by_dpc(cluster.client(), &world, &rays, batch)
            .await
            .unwrap();
        let steps = nearest::by_rpc(cluster.client(), &world, &rays, batch)
            .await
            .unwrap();
        assert_eq!(hops, steps);
        for (ray, hit) in rays.iter().zip(hops) {
            // The blocks stand on the floor: there other triangles are at the same distance.
            match (hit, brute_force(&all, ray)) {
                (Some(hit), Some((distance, _))) => {
                    let own = [all[hit.triangle as usize]];
                    let (own, _) = brute_force(&own, ray).unwrap();
                    for found in [hit.distance, own] {
                        assert!((found - distance).abs() < 1e-9 * distance, "{ray:?}");
                    }
                }
                (hit, expected) => assert!(hit.is_none() && expected.is_none(), "{ray:?}"),
            }
        }
    }
    cluster.end();
}
