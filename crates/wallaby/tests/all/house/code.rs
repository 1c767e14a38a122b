//! Looks for words in Rust code, past comments and literals.

/// (line number, word) of every word found that is not merely the end of a longer name.
pub(crate) fn find<'a>(code: &str, words: &[&'a str]) -> Vec<(usize, &'a str)> {
    let mut found = Vec::new();
    for (index, line) in code.lines().enumerate() {
        for word in words {
            let mut starts = line.match_indices(word).map(|(start, _)| start);
            let whole = |start: usize| {
                let before = line[..start].chars().next_back();
                word.starts_with('.') || !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
            };
            if starts.any(whole) {
                found.push((index + 1, *word));
            }
        }
    }
    found
}

/// The part of a file before its tests, which come last.
pub(crate) fn before_tests(code: &str) -> &str {
    match code.find("#[cfg(test)]\nmod tests {") {
        Some(start) => &code[..start],
        None => code,
    }
}

/// Rust source with the contents of comments and literals blanked; lines keep their numbers.
pub(crate) fn code_only(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let in_name = code
            .chars()
            .next_back()
            .is_some_and(|c| c.is_alphanumeric() || c == '_');
        let skipped = skipped_length(rest, in_name);
        if skipped == 0 {
            code.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            code.push(' ');
            code.extend(rest[..skipped].chars().filter(|c| *c == '\n'));
            rest = &rest[skipped..];
        }
    }
    code
}

/// The length of the comment or literal that `rest` begins with, 0 if it begins with code.
fn skipped_length(rest: &str, in_name: bool) -> usize {
    if rest.starts_with("//") {
        return rest.find('\n').unwrap_or(rest.len());
    }
    if rest.starts_with("/*") {
        return block_comment_length(rest);
    }
    if rest.starts_with('"') {
        return quoted_length(rest, '"');
    }
    if let Some(after) = rest.strip_prefix('\'') {
        let is_character = after.starts_with('\\') || after.chars().nth(1) == Some('\'');
        return if is_character {
            quoted_length(rest, '\'')
        } else {
            0
        };
    }
    let raw = rest
        .strip_prefix("br")
        .or_else(|| rest.strip_prefix('r'))
        .filter(|_| !in_name);
    match raw.and_then(|raw| Some((raw, raw_string_length(raw)?))) {
        Some((raw, length)) => rest.len() - raw.len() + length,
        None => 0,
    }
}

/// Block comments nest.
fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0usize;
    let mut at = 0;
    while at < rest.len() {
        let here = &rest.as_bytes()[at..];
        if here.starts_with(b"/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with(b"*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += 1;
        }
    }
    rest.len()
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if c == quote && !escaped {
            return at + 1;
        }
        escaped = c == '\\' && !escaped;
    }
    rest.len()
}

/// The length of `#"..."#` with any number of hashes, `None` if this is not the rest of a raw string.
fn raw_string_length(rest: &str) -> Option<usize> {
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let body = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(
        body.find(&end)
            .map_or(rest.len(), |at| hashes + 1 + at + end.len()),
    )
}

mod tests {
    use super::*;

    #[test]
    fn blanks_comments_and_literals_but_not_code() {
        let check =
            |source: &str, expected: &str| assert_eq!(code_only(source), expected, "of {source:?}");
        check("a // dbg!(1)\nb", "a  \nb");
        check("a /* x /* y */ dbg!(1)\n */ b", "a  \n b");
        check(
            r#"f("todo!( \" // ", 'x', '\'', 'a: loop)"#,
            "f( ,  ,  , 'a: loop)",
        );
        check("r#\"dbg!(\n\"\"# + br\"\\\" + for\"x\"", " \n +   + for ");
        check(
            "fn f<'a>(x: &'a str) { todo!() }",
            "fn f<'a>(x: &'a str) { todo!() }",
        );
        check("\"open", " ");
        check("/* open \u{e9}", " ");
    }

    #[test]
    fn finds_whole_words_with_their_lines() {
        assert_eq!(
            find("x\ntodo!()\nmy_dbg!(1)", &["todo!(", "dbg!("]),
            [(2, "todo!(")]
        );
        assert_eq!(
            find("a.await\nTcpStream", &["TcpStream", ".await"]),
            [(1, ".await"), (2, "TcpStream")]
        );
        assert_eq!(
            before_tests("a\n#[cfg(test)]\nmod tests { Instant::now }"),
            "a\n"
        );
    }
}
