//! What is copied is the same, however it was.

use crate::world::{Yard, bytes, done, failed, is_possible};

#[test]
fn files_are_copied_whole_both_ways() {
    if !is_possible("files_are_copied_whole_both_ways") {
        return;
    }
    let yard = Yard::start();
    for (number, length) in [0, 1, 16 << 10, (16 << 10) + 1, 3_000_003]
        .into_iter()
        .enumerate()
    {
        let name = format!("{length} bytes");
        let file = bytes(length, number as u64);
        yard.put("a", &name, &file);
        // What has this name is replaced, also if it is longer.
        yard.put("b", &name, &bytes(length + 5, 99));
        for by in ["calls", "chain"] {
            done(yard.copy(&name, &yard.at("b"), &["--by", by]));
            assert!(
                yard.get("b", &name).as_ref() == Some(&file),
                "{name} by {by}"
            );
            yard.put("b", &name, b"something else");
        }
        for to in &yard.primaries {
            done(yard.copy(&name, to, &[]));
            for server in ["b", "c"] {
                assert!(
                    yard.get(server, &name).as_ref() == Some(&file),
                    "{name} to {to}: {server}"
                );
                std::fs::remove_file(yard.folder(server).join(&name)).unwrap();
            }
        }
    }
    let missing = failed(yard.copy("nothing", &yard.at("b"), &[]));
    assert!(
        missing.contains(&yard.at("a")) && missing.contains("Nfs3errNoent"),
        "{missing}"
    );
    assert_eq!(
        (yard.names("b"), yard.names("c")),
        (vec![], vec![]),
        "nothing else is left"
    );
}

#[test]
fn what_the_backup_would_not_do_as_well_is_refused() {
    if !is_possible("what_the_backup_would_not_do_as_well_is_refused") {
        return;
    }
    let yard = Yard::start();
    yard.put("a", "song", b"hop");
    // The backup does not have the folder's new file: it was not the primary that made it.
    std::fs::create_dir(yard.folder("c").join("song")).unwrap();
    let refused = failed(yard.copy("song", &yard.primaries[0], &[]));
    assert!(
        refused.contains("the backup at") && refused.contains(&yard.at("c")),
        "{refused}"
    );
}
