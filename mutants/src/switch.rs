/// Whether the mutant `number` is the one that `MUTANT` asks for. With `MUTANT_TRACE` none is, and each number that is asked
/// about goes into that file.
#[doc(hidden)]
pub fn mutant(number: u32) -> bool {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, OnceLock};

    static WANTED: OnceLock<u32> = OnceLock::new();
    static TRACE: OnceLock<Option<Mutex<std::fs::File>>> = OnceLock::new();
    static SEEN: [AtomicBool; 16_384] = [const { AtomicBool::new(false) }; 16_384];

    let wanted = *WANTED.get_or_init(|| {
        let wanted = std::env::var("MUTANT").ok();
        wanted.and_then(|wanted| wanted.parse().ok()).unwrap_or(u32::MAX)
    });
    if wanted != u32::MAX {
        return wanted == number;
    }
    if !SEEN[number as usize].swap(true, Ordering::Relaxed) {
        let trace = TRACE.get_or_init(|| {
            let path = std::env::var_os("MUTANT_TRACE")?;
            let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
            Some(Mutex::new(file.expect("a file that can be written")))
        });
        if let Some(file) = trace {
            let mut file = file.lock().expect("nobody panics with it");
            writeln!(file, "{number}").expect("room for a few bytes");
        }
    }
    false
}
