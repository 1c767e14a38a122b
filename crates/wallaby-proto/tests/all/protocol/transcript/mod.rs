//! Transcripts: what the two halves of a call say to each other in a scenario, in `tests/transcripts/`.
//!
//! A file has comments (`#`), commands (`>`) and what they cause; a run replaces what is neither a comment nor a
//! command, and the result must be the file itself. The commands:
//!
//! | command | what it does |
//! |---|---|
//! | `> nodes NAME...` | the endpoints; the first is the initiator |
//! | `> send SERVER WORD` | the initiator sends its next initial request |
//! | `> close` | it sends no more of them |
//! | `> NODE REQUEST reply WORD` | the handler of a request acts: also `respond`, `fail`, `flush`, `finish`, `delegate SERVER WORD`, `forward SERVER WORD` |
//! | `> deliver [FROM TO]` | all that was sent arrives, in the order in which it was sent, or that of one link |

mod world;

use self::world::World;
use crate::golden;

const FOLDER: &str = "transcripts";

#[test]
fn transcripts_are_what_happens() {
    let mut files = 0;
    let folder = golden::path(FOLDER, "x");
    for entry in std::fs::read_dir(folder.parent().expect("a folder")).expect("the folder exists") {
        let file = entry.expect("an entry").path();
        let name = file
            .file_stem()
            .and_then(|stem| stem.to_str())
            .expect("a name");
        golden::check(FOLDER, name, &play(&golden::read(FOLDER, name)));
        files += 1;
    }
    assert!(files >= 10);
}

/// The transcript with everything that its commands cause.
fn play(script: &str) -> String {
    let mut world = World::default();
    let mut transcript = String::new();
    for line in script.lines() {
        if let Some(command) = line.strip_prefix("> ") {
            let words: Vec<&str> = command.split_whitespace().collect();
            transcript += &format!("\n> {command}\n");
            world
                .act(&words)
                .iter()
                .for_each(|line| transcript += &format!("{line}\n"));
        } else if line.starts_with('#') {
            let paragraph = transcript.is_empty()
                || transcript
                    .lines()
                    .last()
                    .is_some_and(|last| last.starts_with('#'));
            transcript += if paragraph { "" } else { "\n" };
            transcript += &format!("{line}\n");
        }
    }
    world.check_end();
    transcript
}
