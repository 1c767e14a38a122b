//! Inputs made of the golden vectors of `wallaby-proto`, so that they are of the format of today.

use std::path::Path;
use std::{fs, io};

/// Where each vector is a file: what it is, and then its bytes, a field a line.
const VECTORS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../crates/wallaby-proto/tests/vectors"
);

/// Length and kind of a frame.
const HEADER: usize = 4;

/// Kinds from here on are messages.
const FIRST_MESSAGE: u8 = 0x10;

/// The vectors as inputs of this target, by their names; none for a target that reads something else.
///
/// # Errors
///
/// If they cannot be read.
pub fn seeds(target: &str) -> io::Result<Vec<(String, Vec<u8>)>> {
    let input: fn(&[u8]) -> Option<Vec<u8>> = match target {
        // Limits, long pieces, and then the stream as it is.
        "frames" => |frame| Some([&[0, 0, 63, 1], frame].concat()),
        // The kind, and that nothing came before.
        "message" => |frame| {
            let (header, body) = frame.split_at_checked(HEADER)?;
            (header[3] >= FIRST_MESSAGE).then(|| [&[header[3], 0], body].concat())
        },
        _ => return Ok(Vec::new()),
    };
    let mut seeds = Vec::new();
    for entry in fs::read_dir(Path::new(VECTORS))? {
        let path = entry?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let frame = bytes(&fs::read_to_string(&path)?);
        seeds.extend(input(&frame).map(|input| (name.into_owned(), input)));
    }
    seeds.sort();
    Ok(seeds)
}

/// The bytes of a vector: in each line they stand first, before two spaces.
fn bytes(vector: &str) -> Vec<u8> {
    let lines = vector.lines().skip_while(|line| *line != "bytes").skip(1);
    let fields = lines.map(|line| line.trim_start().split("  ").next().unwrap_or_default());
    let digits = fields.flat_map(str::split_whitespace);
    digits
        .filter_map(|digits| u8::from_str_radix(digits, 16).ok())
        .collect()
}
