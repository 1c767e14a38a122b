//! Pictures: the same to the byte, however they are made, and as bright as they have to be.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::{Form, cluster, cornell_box, picture_alone, picture_by, settings, staged};
use glam::DVec3;
use wallaby_raytrace::light::Sky;
use wallaby_raytrace::picture::Picture;
use wallaby_raytrace::render::local::{self, Local};
use wallaby_raytrace::scene::{Limits, Source};

#[tokio::test]
async fn pictures_are_the_same_to_the_byte() {
    for source in ["box:6000", &cornell_box()] {
        let expected = picture_alone(source, &settings(40, 30, 3, 500)).await;
        let file = expected.png().unwrap();
        for (servers, batches) in [(1, vec![333]), (4, vec![1, 64, 5000]), (9, vec![20, 4096])] {
            let (world, parts) = staged(source, servers);
            let cluster = cluster(&world, parts).await;
            for batch in batches {
                for form in [Form::Dpc, Form::Rpc] {
                    // One ray a message is slow: of a smaller picture.
                    let (settings, expected, file) = match batch {
                        1 => {
                            let small = settings(12, 9, 2, 1);
                            let picture = picture_alone(source, &small).await;
                            let file = picture.png().unwrap();
                            (small, picture, file)
                        }
                        _ => (settings(40, 30, 3, batch), expected.clone(), file.clone()),
                    };
                    let picture = picture_by(form, &cluster, &world, &settings).await;
                    let what =
                        format!("{source} by {form:?} on {servers} servers, {batch} a message");
                    assert_eq!(picture.paths(), settings.paths(), "{what}");
                    assert!(picture == expected, "{what}");
                    assert!(picture.png().unwrap() == file, "{what}");
                }
            }
            cluster.end();
        }
    }
}

#[tokio::test]
async fn another_seed_makes_another_picture_of_the_same_thing() {
    let one = settings(24, 18, 4, 100);
    let mut other = one;
    other.job.seed += 1;
    let (one, other) = (
        picture_alone("box:2000", &one).await,
        picture_alone("box:2000", &other).await,
    );
    assert!(one != other);
    let mean = |picture: &Picture| {
        let colours = picture.colours();
        colours.iter().map(|byte| f64::from(*byte)).sum::<f64>() / colours.len() as f64
    };
    assert!(
        (mean(&one) - mean(&other)).abs() < 6.0,
        "{} and {}",
        mean(&one),
        mean(&other)
    );
}

/// A sphere sees nothing of itself: lit by an even sky of brightness 1, it is as bright as its albedo.
#[tokio::test]
async fn a_matt_sphere_in_an_even_sky_is_as_bright_as_its_albedo() {
    let mut scene = crate::common::scene("box:20000");
    // The green sphere alone, moved to the middle, and matt.
    let albedo = DVec3::new(0.8, 0.5, 0.2);
    scene.materials = vec![wallaby_raytrace::material::Material::new(
        wallaby_raytrace::material::Finish::Matt(albedo),
    )];
    let green = 6;
    let center = DVec3::new(-0.22, 0.22, 0.52);
    scene
        .triangles
        .retain(|triangle| triangle.material == green);
    assert!(scene.triangles.len() > 300);
    for (index, triangle) in (0u32..).zip(&mut scene.triangles) {
        triangle.material = 0;
        triangle.index = index;
        triangle.corners = triangle.corners.map(|corner| (corner - center) / 0.22);
    }
    scene.sky = Some(Sky {
        zenith: DVec3::ONE,
        horizon: DVec3::ONE,
        ground: DVec3::ONE,
    });
    let (world, parts) = scene.split(1, DVec3::Y, &Limits::default()).unwrap();
    let local = Local::new(world, parts.into_iter().flatten().collect());
    let mut settings = settings(16, 16, 64, 1000);
    settings.camera = Some("0,0,10/0,0,0/8".parse().unwrap());
    let picture = local::render(local.into(), &settings, &mut |_| {}).await;
    let picture = picture.unwrap();
    // The colours that the albedo itself has as light.
    let middle = (3 * (8 * 16 + 8)) as usize;
    let mut even = Picture::new(1, 1);
    let amount = wallaby_raytrace::picture::Amount::of(albedo);
    assert!(even.add(wallaby_raytrace::picture::Contribution { pixel: 0, amount }));
    even.count(1);
    let (found, expected) = (picture.colours(), even.colours());
    for (found, expected) in found[middle..middle + 3].iter().zip(&expected) {
        assert!(
            found.abs_diff(*expected) <= 3,
            "{found} in place of {expected}"
        );
    }
}

#[tokio::test]
async fn a_scene_without_light_is_lit() {
    let folder = crate::common::Folder::new();
    let mesh = folder.write(
        "a.obj",
        "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 2 3\nf 1 2 4\nf 1 3 4\nf 2 3 4\n",
    );
    let source: Source = mesh.parse().unwrap();
    let scene = source.load(&Limits::default()).unwrap();
    assert_eq!(scene.triangles.len(), 4);
    let scene = scene.staged(DVec3::Y);
    let (world, parts) = scene.split(1, DVec3::Y, &Limits::default()).unwrap();
    assert!(!world.lights.is_empty());
    let local = Local::new(world, parts.into_iter().flatten().collect());
    let settings = settings(16, 12, 8, 100);
    let picture = local::render(local.into(), &settings, &mut |_| {}).await;
    let colours = picture.unwrap().colours();
    let bright = colours.iter().filter(|byte| **byte > 60).count();
    assert!(bright > colours.len() / 2);
}
