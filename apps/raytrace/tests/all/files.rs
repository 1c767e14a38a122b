//! Files of scenes: what is read of good ones, and what is said of bad ones.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

use crate::common::Folder;
use flate2::Compression;
use flate2::write::GzEncoder;
use glam::DVec3;
use std::io::Write;
use wallaby_raytrace::material::Finish;
use wallaby_raytrace::scene::{Limits, Scene, SceneError, Source};

fn load_within(path: &str, limits: &Limits) -> Result<Scene, SceneError> {
    let source: Source = path.parse().unwrap();
    source.load(limits)
}

fn load(path: &str) -> Result<Scene, SceneError> {
    load_within(path, &Limits::default())
}

/// The error of a file says all of these.
fn says(folder: &Folder, name: &str, content: impl AsRef<[u8]>, words: &[&str]) {
    let error = load(&folder.write(name, content))
        .map(drop)
        .unwrap_err()
        .to_string();
    for word in words {
        assert!(error.contains(word), "'{error}' does not say '{word}'");
    }
}

const SQUARE: &str = "v 0 0 0\nv 1 0 0\nv 1 1 0\nv 0 1 0\n";

#[test]
fn faces_of_all_kinds_become_triangles_in_the_order_of_the_file() {
    let folder = Folder::new();
    let text = format!(
        "# a comment\r\nmtllib\tnone.mtl\n{SQUARE}vt 0 0\nvn 0 0 2\no thing\ns 1\n\
         f 1 2 3 4\nf -4/1 -3/1 -2/1 # named from the end\nf 1//1 2//1 3//-1\nf 1/1/1 \\\n 2/1/1 3/1/1\nl 1 2\n"
    );
    let mut compressed = GzEncoder::new(Vec::new(), Compression::fast());
    compressed.write_all(text.as_bytes()).unwrap();
    let compressed = compressed.finish().unwrap();
    for path in [
        folder.write("a.obj", &text),
        folder.write("a.obj.gz", compressed),
    ] {
        let scene = load(&path).unwrap();
        assert_eq!(scene.triangles.len(), 5);
        let [a, b, c, d] = [DVec3::ZERO, DVec3::X, DVec3::new(1.0, 1.0, 0.0), DVec3::Y];
        // A fan around the first corner.
        assert_eq!(scene.triangles[0].corners, [a, b, c]);
        assert_eq!(scene.triangles[1].corners, [a, c, d]);
        for (index, triangle) in (0..).zip(&scene.triangles) {
            assert_eq!(triangle.index, index);
            assert!((triangle.normals[0].z - 1.0).abs() < 1e-6);
        }
        // A library that is missing is told, no reason to refuse the mesh.
        assert!(scene.notes[0].contains("line 2") && scene.notes[0].contains("none.mtl"));
    }
}

#[test]
fn materials_are_what_their_library_says() {
    let folder = Folder::new();
    let library = "\
newmtl matt\nKd 0.2 0.4 0.6\nNs 10\n
newmtl lamp\nKe 5 4 3\n
newmtl old_lamp\nKa 20 20 20\nKd 1 1 1\n
newmtl mirror\nillum 3\nKd 0 0 0\nKs 0.9 0.8 0.7\n
newmtl glass\nillum 7\nNi 1.33\nTf 0.9 1 0.9\n
newmtl clear\nd 0.1\nNi 1.5\n
newmtl glazed\nillum 2\nKd 0.5\nKs 0.5 0.5 0.5\nNs 400\nmap_Kd nothing.png\n";
    folder.write("all of them.mtl", library);
    let names = [
        "matt", "lamp", "old_lamp", "mirror", "glass", "clear", "glazed", "unknown",
    ];
    let faces: String = names
        .iter()
        .map(|name| format!("usemtl {name}\nf 1 2 3\n"))
        .collect();
    let path = folder.write("a.obj", format!("mtllib all of them.mtl\n{SQUARE}{faces}"));
    let scene = load(&path).unwrap();
    let of = |number: usize| scene.materials[scene.triangles[number].material as usize];
    assert_eq!(of(0).finish, Finish::Matt(DVec3::new(0.2, 0.4, 0.6)));
    assert_eq!(of(1).emission, DVec3::new(5.0, 4.0, 3.0));
    assert_eq!(of(2).emission, DVec3::splat(20.0));
    assert_eq!(of(3).finish, Finish::Mirror(DVec3::new(0.9, 0.8, 0.7)));
    let tint = DVec3::new(0.9, 1.0, 0.9);
    assert_eq!(of(4).finish, Finish::Glass { tint, index: 1.33 });
    assert!(matches!(of(5).finish, Finish::Glass { index: 1.5, .. }));
    assert_eq!(of(6).finish, Finish::Glazed(DVec3::splat(0.5)));
    assert!(
        scene.notes[0].contains("no material 'unknown'"),
        "{:?}",
        scene.notes
    );
}

#[test]
fn bytes_that_were_changed_never_stop_the_program() {
    let folder = Folder::new();
    let seed = 99;
    eprintln!("seed {seed}");
    let mut numbers = crate::common::Numbers::new(seed);
    let obj = format!("{SQUARE}vn 0 0 1\nusemtl a\nf 1 2 3 4\nf -1//1 -2//1 -3//1\n").into_bytes();
    for _ in 0..400 {
        let mut changed = obj.clone();
        for _ in 0..1 + numbers.below(4) {
            let at = numbers.below(changed.len());
            changed[at] = numbers.below(256) as u8;
        }
        if let Ok(scene) = load(&folder.write("a.obj", &changed)) {
            let mut corners = scene.triangles.iter().flat_map(|triangle| triangle.corners);
            assert!(corners.all(DVec3::is_finite));
        }
    }
}

#[test]
fn mistakes_in_obj_files_are_told_with_their_line() {
    let folder = Folder::new();
    for (content, words) in [
        ("v 1 2\n", ["line 1", "expected three numbers, found '1 2'"]),
        ("\nv 1 2 x\n", ["line 2", "'x' is no number"]),
        ("v 1 2 NaN\n", ["line 1", "'NaN' is no number to draw with"]),
        ("v 1 inf 3\n", ["line 1", "'inf'"]),
        ("v 1e300 0 0\n", ["line 1", "'1e300'"]),
        (
            "v 0 0 0\nf 1 2 3\n",
            ["line 2", "index 2, but there are 1 points until here"],
        ),
        ("v 0 0 0\nf 0 1 1\n", ["line 2", "index 0"]),
        ("v 0 0 0\nf -2 1 1\n", ["line 2", "index -2"]),
        (
            "v 0 0 0\nf 99999999999999999999 1 1\n",
            ["line 2", "is no index"],
        ),
        (
            "v 0 0 0\nf -9223372036854775808 1 1\n",
            ["line 2", "index -9223372036854775808"],
        ),
        (
            "v 0 0 0\nf 1//1 1//1 1//1\n",
            ["line 2", "there are 0 normals"],
        ),
        (
            "v 0 0 0\nf 1 1\n",
            ["line 2", "three or more corners, found 2"],
        ),
        ("v 0 0 0\n", ["a.obj", "has no triangles"]),
    ] {
        says(&folder, "a.obj", content, &words);
    }
    folder.write("bad.mtl", "newmtl a\nKd 1 2\n");
    says(
        &folder,
        "a.obj",
        "mtllib bad.mtl\n",
        &["bad.mtl, line 2", "one or three numbers"],
    );
    folder.write("bad.mtl", "newmtl a\nillum many\n");
    says(
        &folder,
        "a.obj",
        "mtllib bad.mtl\n",
        &["bad.mtl, line 2", "'many'"],
    );
    says(&folder, "a.stl", "solid", &["a.stl", "neither .obj nor"]);
    says(
        &folder,
        "a.obj.gz",
        b"\x1f\x8bnonsense",
        &["a.obj.gz", "can't be read"],
    );
    let missing = load(&folder.file("missing.obj"))
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(missing.contains("missing.obj can't be read"), "{missing}");
}

#[test]
fn what_is_too_much_is_refused() {
    let folder = Folder::new();
    let refused = |name: &str, content: &str, limits: Limits, words: &str| {
        let error = load_within(&folder.write(name, content), &limits)
            .map(drop)
            .unwrap_err();
        assert!(matches!(error, SceneError::TooMuch { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    let limits = Limits::default();
    let few = Limits {
        triangles: 3,
        ..limits
    };
    let faces = format!("{SQUARE}f 1 2 3 4\nf 1 2 3 4\n");
    refused("a.obj", &faces, few, "line 6: more than 3 triangles");
    refused(
        "a.obj",
        &"v 0 0 0\n".repeat(10),
        few,
        "line 10: more than 9 points",
    );
    refused(
        "a.obj",
        &faces,
        Limits {
            bytes: 20,
            ..limits
        },
        "more than 20 bytes in a file",
    );
    let long = format!("{SQUARE}f{}\n", " 1".repeat(100));
    refused(
        "a.obj",
        &long,
        Limits {
            line: 100,
            ..limits
        },
        "line 5: more than 100 bytes in a line",
    );
    folder.write("many.mtl", "newmtl a\nnewmtl b\nnewmtl c\n");
    refused(
        "a.obj",
        "mtllib many.mtl\n",
        Limits {
            materials: 2,
            ..limits
        },
        "line 3: more than 2 materials",
    );
    let source: Source = "box:5000".parse().unwrap();
    let error = source.load(&few).map(drop).unwrap_err();
    assert!(
        error.to_string().contains("more than 3 triangles"),
        "{error}"
    );
    let scene = source.load(&limits).unwrap();
    let split = scene.split(2, DVec3::Y, &Limits { lamps: 1, ..limits });
    let error = split.map(drop).unwrap_err().to_string();
    assert!(
        error.contains("more than 1 triangles that give off light"),
        "{error}"
    );
}
