//! C's preprocessor, as far as interface files use it: constants, conditions, includes. [`macros`](super::macros)
//! replaces names by what they stand for.
//!
//! rpcgen runs a file through it once for each output, with a symbol that says which. Here the symbol is always
//! `RPC_HDR`, that of the header, because types and constants belong there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::expression::{Cursor, Dialect, Expression};
use super::lexer::{Lexer, Line, Piece};
use super::macros::{Call, Macros};
use super::source::{Place, Problem, Sources};
use super::token::{Comment, Kind, Token};

/// Deepest nesting of includes: a file that includes itself gets no further.
const MAX_INCLUDES: usize = 64;
/// Most bytes of all included files together, so that files which include each other cannot multiply without end.
const MAX_INCLUDED: u64 = 16 << 20;

/// What the preprocessor makes of a file.
#[derive(Debug)]
pub(super) struct Preprocessed {
    /// The words, the end last.
    pub(super) tokens: Vec<Token>,
    pub(super) comments: Vec<Comment>,
    /// What lines for C define (`%#define NAME value`): constants of last resort.
    pub(super) passed: BTreeMap<String, Vec<Token>>,
}

/// How files are found and what is defined.
#[derive(Debug, Clone, Default)]
pub(super) struct Settings {
    pub(super) include_folders: Vec<PathBuf>,
    pub(super) defines: Vec<(String, String)>,
}

#[derive(Debug)]
struct Preprocessor<'a> {
    sources: &'a mut Sources,
    settings: &'a Settings,
    macros: Macros,
    /// A name with its arguments, as far as they were read.
    call: Option<Call>,
    /// Bytes of included files so far.
    included: u64,
    output: Preprocessed,
}

/// A condition that is open.
#[derive(Debug)]
struct Condition {
    place: Place,
    /// Whether what surrounds it is read.
    is_outer_active: bool,
    is_active: bool,
    /// Whether one of its branches was read.
    was_active: bool,
    had_else: bool,
}

pub(super) fn preprocess(
    sources: &mut Sources,
    file: usize,
    settings: &Settings,
) -> Result<Preprocessed, Problem> {
    let mut preprocessor = Preprocessor {
        sources,
        settings,
        included: 0,
        macros: Macros::default(),
        call: None,
        output: Preprocessed {
            tokens: Vec::new(),
            comments: Vec::new(),
            passed: BTreeMap::new(),
        },
    };
    let nowhere = Place {
        file,
        start: 0,
        length: 0,
    };
    let symbols = [("RPC_HDR".to_owned(), "1".to_owned())];
    for (name, value) in symbols.iter().chain(&settings.defines) {
        let line = Line {
            text: format!("{name} {value}"),
            place: nowhere,
        };
        let words = Lexer::words(&line)?;
        preprocessor.macros.define(&words, &line)?;
    }
    let end = preprocessor.file(file, 0)?;
    preprocessor.output.tokens.push(end);
    Ok(preprocessor.output)
}

impl Preprocessor<'_> {
    /// Reads a file; the token of its end.
    fn file(&mut self, file: usize, depth: usize) -> Result<Token, Problem> {
        let text = self.sources.file(file).text.clone();
        let mut lexer = Lexer::new(file);
        let mut conditions: Vec<Condition> = Vec::new();
        loop {
            let is_active = conditions
                .last()
                .is_none_or(|condition| condition.is_active);
            match lexer.next(&text, is_active)? {
                Piece::Token(end) if end.kind == Kind::End => {
                    if let Some(open) = conditions.last() {
                        return Err(Problem::new(
                            open.place,
                            "expected `#endif` somewhere after this",
                        ));
                    }
                    self.output.comments.append(&mut lexer.comments);
                    if let Some(call) = self.call.take() {
                        self.output.tokens.extend(call.not_closed()?);
                    }
                    return Ok(end);
                }
                Piece::Token(token) => self.token(token)?,
                Piece::PassThrough(line) => self.pass(&line),
                Piece::Directive(line) => {
                    self.directive(&line, is_active, &mut conditions, depth)?;
                }
            }
        }
    }

    fn directive(
        &mut self,
        line: &Line,
        is_active: bool,
        conditions: &mut Vec<Condition>,
        depth: usize,
    ) -> Result<(), Problem> {
        let text = line.text.trim_start();
        let length = text
            .find(|c: char| !c.is_ascii_alphabetic())
            .unwrap_or(text.len());
        let (directive, rest) = text.split_at(length);
        let rest = Line {
            text: rest.to_owned(),
            place: line.place,
        };
        match directive {
            "if" | "ifdef" | "ifndef" => {
                let holds = is_active && self.holds(directive, &rest)?;
                conditions.push(Condition {
                    place: line.place,
                    is_outer_active: is_active,
                    is_active: holds,
                    was_active: holds,
                    had_else: false,
                });
            }
            "elif" | "else" => {
                let Some(condition) = conditions.last_mut().filter(|open| !open.had_else) else {
                    let message = format!("`#{directive}` without an `#if` before it");
                    return Err(Problem::new(line.place, message));
                };
                let is_candidate = condition.is_outer_active && !condition.was_active;
                condition.had_else = directive == "else";
                let holds = is_candidate && (directive == "else" || self.holds("if", &rest)?);
                if let Some(condition) = conditions.last_mut() {
                    condition.is_active = holds;
                    condition.was_active |= holds;
                }
            }
            "endif" => {
                if conditions.pop().is_none() {
                    let message = "`#endif` without an `#if` before it";
                    return Err(Problem::new(line.place, message));
                }
            }
            _ if !is_active => {}
            "define" => {
                let words = Lexer::words(&rest)?;
                self.macros.define(&words, &rest)?;
            }
            "undef" => {
                let words = Lexer::words(&rest)?;
                self.macros.remove(expect_name(&words, line)?);
            }
            "include" => self.include(&rest, depth)?,
            "error" => {
                let message = format!("#error {}", rest.text.trim());
                return Err(Problem::new(line.place, message));
            }
            // What a preprocessor says about lines, if the file went through one already; nothing; remarks for C.
            "" | "line" | "pragma" | "ident" | "warning" => {}
            _ => {
                let message = format!("the preprocessor knows no `#{directive}`");
                return Err(Problem::new(line.place, message));
            }
        }
        Ok(())
    }

    /// Puts out a word, or what it stands for.
    fn token(&mut self, token: Token) -> Result<(), Problem> {
        let Some(mut call) = self.call.take() else {
            if self.macros.takes_arguments(&token) {
                self.call = Some(Call::new(token));
                return Ok(());
            }
            self.output
                .tokens
                .append(&mut self.macros.expand(&[token])?);
            return Ok(());
        };
        if call.is_begun() || token.is("(") {
            match call.push(token) {
                true => self
                    .output
                    .tokens
                    .append(&mut self.macros.expand(call.words())?),
                false => self.call = Some(call),
            }
            return Ok(());
        }
        // Without arguments the name stands for itself.
        self.output.tokens.extend_from_slice(call.words());
        self.token(token)
    }

    fn holds(&self, directive: &str, line: &Line) -> Result<bool, Problem> {
        let words = Lexer::words(line)?;
        if directive != "if" {
            let is_defined = self.macros.contains(expect_name(&words, line)?);
            return Ok(is_defined == (directive == "ifdef"));
        }
        let words = self.macros.expand(&self.answer_defined(&words, line)?)?;
        let mut cursor = Cursor::new(&words);
        let condition = Expression::parse(&mut cursor, Dialect::Condition)?;
        if cursor.peek().kind != Kind::End {
            return Err(cursor.unexpected("the end of the line"));
        }
        // Names that are not defined are 0.
        Ok(condition.evaluate(&mut |_, _| Ok(0))? != 0)
    }

    /// Replaces `defined NAME` and `defined(NAME)` by 0 and 1.
    fn answer_defined(&self, words: &[Token], line: &Line) -> Result<Vec<Token>, Problem> {
        let mut cursor = Cursor::new(words);
        let mut answered = Vec::new();
        loop {
            let token = cursor.take();
            if token.name() != Some("defined") {
                answered.push(token.clone());
                if token.kind == Kind::End {
                    return Ok(answered);
                }
                continue;
            }
            let is_in_brackets = cursor.eat("(");
            let Some(name) = cursor.peek().name() else {
                return Err(Problem::new(line.place, "expected a name after `defined`"));
            };
            cursor.take();
            if is_in_brackets {
                cursor.expect(")")?;
            }
            answered.push(Token {
                kind: Kind::Number(i128::from(self.macros.contains(name))),
                place: line.place,
            });
        }
    }

    /// A line for C. Only constants matter here; whatever else it says, it says to C.
    fn pass(&mut self, line: &Line) {
        let text = line.text.trim_start();
        let Some(text) = text.strip_prefix('#').map(str::trim_start) else {
            return;
        };
        let Some(text) = text
            .strip_prefix("define")
            .filter(|text| text.starts_with([' ', '\t']))
        else {
            return;
        };
        let definition = Line {
            text: text.trim_start().to_owned(),
            place: line.place,
        };
        let Ok(words) = Lexer::words(&definition) else {
            return;
        };
        let Some(name) = words[0].name() else {
            return;
        };
        if !definition.text[name.len()..].starts_with('(') {
            self.output
                .passed
                .insert(name.to_owned(), words[1..].to_vec());
        }
    }

    fn include(&mut self, line: &Line, depth: usize) -> Result<(), Problem> {
        let text = line.text.trim();
        let quoted = text.strip_prefix('"').and_then(|text| text.split_once('"'));
        let bracketed = text.strip_prefix('<').and_then(|text| text.split_once('>'));
        let Some((name, _)) = quoted.or(bracketed) else {
            let message = "expected a file in quotes or angle brackets after `#include`";
            return Err(Problem::new(line.place, message));
        };
        if depth == MAX_INCLUDES {
            return Err(Problem::new(line.place, "includes are nested too deeply"));
        }
        let beside = quoted.and_then(|_| self.sources.file(line.place.file).path.parent());
        let folders = beside.map(Path::to_path_buf).into_iter();
        let folders = folders.chain(self.settings.include_folders.iter().cloned());
        let mut looked_in = Vec::new();
        for folder in folders {
            let path = folder.join(name);
            if let Ok(file) = File::open(&path) {
                let text = self.read(file).map_err(|error| {
                    let message = format!("cannot read `{}`: {error}", path.display());
                    Problem::new(line.place, message)
                })?;
                let file = self.sources.add(path, text);
                return self.file(file, depth + 1).map(drop);
            }
            looked_in.push(match folder.as_os_str().is_empty() {
                true => ".".to_owned(),
                false => folder.display().to_string(),
            });
        }
        let message = match looked_in.as_slice() {
            [] => format!("cannot find `{name}`: no folder for includes was given"),
            folders => format!("cannot find `{name}` in `{}`", folders.join("`, `")),
        };
        Err(Problem::new(line.place, message))
    }

    /// The text of an included file, which counts.
    fn read(&mut self, file: File) -> io::Result<String> {
        let mut text = Vec::new();
        let left = MAX_INCLUDED - self.included;
        let length = file.take(left + 1).read_to_end(&mut text)? as u64;
        if length > left {
            return Err(too_long());
        }
        self.included += length;
        Ok(super::decoded(&text))
    }
}

fn too_long() -> io::Error {
    let limit = MAX_INCLUDED >> 20;
    io::Error::other(format!(
        "all included files together have more than {limit} MiB"
    ))
}

pub(super) fn expect_name<'a>(words: &'a [Token], line: &Line) -> Result<&'a str, Problem> {
    let name = words.first().and_then(Token::name);
    name.ok_or_else(|| Problem::new(line.place, "expected a name"))
}
