//! The text of one file as words, directives and lines that are meant for C. By hand, as a line that begins with `#` or `%` is
//! no word, and what it means is the preprocessor's business.

use super::source::{Place, Problem};
use super::token::{Comment, Kind, SIGNS, Token};

/// What some editors begin a file with.
const BYTE_ORDER_MARK: char = '\u{feff}';

const NO_COMMENT_END: &str = "expected `*/` somewhere after this";

/// What stands next in a file.
#[derive(Debug)]
pub(super) enum Piece {
    Token(Token),
    /// A line of the preprocessor, without the `#`.
    Directive(Line),
    /// A line that rpcgen hands to the C compiler, without the `%`.
    PassThrough(Line),
}

/// A line, continued ones joined.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) place: Place,
}

/// Reads one file. The text is not held, because the preprocessor has several open at once.
#[derive(Debug)]
pub(super) struct Lexer {
    file: usize,
    at: usize,
    line: usize,
    is_line_start: bool,
    pub(super) comments: Vec<Comment>,
}

impl Lexer {
    pub(super) fn new(file: usize) -> Self {
        Self {
            file,
            at: 0,
            line: 1,
            is_line_start: true,
            comments: Vec::new(),
        }
    }

    /// The next piece; of text that a condition leaves out (`is_active` is false) only directives.
    pub(super) fn next(&mut self, text: &str, is_active: bool) -> Result<Piece, Problem> {
        loop {
            let rest = &text[self.at..];
            let Some(first) = rest.chars().next() else {
                return Ok(Piece::Token(self.token(Kind::End, 0)));
            };
            if first == '\n' {
                self.at += 1;
                self.line += 1;
                self.is_line_start = true;
            } else if first == '%' && (self.at == 0 || text[..self.at].ends_with('\n')) {
                let line = self.take_line(text, 1);
                if is_active {
                    return Ok(Piece::PassThrough(line));
                }
            } else if first.is_whitespace() || (first == BYTE_ORDER_MARK && self.at == 0) {
                self.at += first.len_utf8();
            } else if let Some(end) = line_break(rest) {
                self.at += end;
                self.line += 1;
            } else if first == '#' && self.is_line_start {
                return self.take_directive(text).map(Piece::Directive);
            } else if rest.starts_with("/*") || rest.starts_with("//") {
                self.comment(rest)?;
            } else if is_active {
                self.is_line_start = false;
                return self.word(rest).map(Piece::Token);
            } else {
                self.is_line_start = false;
                self.at += first.len_utf8();
            }
        }
    }

    /// All words of a directive's line.
    pub(super) fn words(line: &Line) -> Result<Vec<Token>, Problem> {
        let mut lexer = Self::new(line.place.file);
        lexer.is_line_start = false;
        let mut words = Vec::new();
        loop {
            let piece = lexer.next(&line.text, true);
            let at_line = |problem: Problem| Problem::new(line.place, problem.message);
            let Piece::Token(mut token) = piece.map_err(at_line)? else {
                continue;
            };
            token.place = line.place;
            let is_end = token.kind == Kind::End;
            words.push(token);
            if is_end {
                return Ok(words);
            }
        }
    }

    fn place(&self, length: usize) -> Place {
        Place {
            file: self.file,
            start: self.at,
            length,
        }
    }

    fn token(&mut self, kind: Kind, length: usize) -> Token {
        let place = self.place(length);
        self.at += length;
        Token { kind, place }
    }

    /// The rest of the line after `skip` bytes, with the lines that a backslash joins to it.
    fn take_line(&mut self, text: &str, skip: usize) -> Line {
        let start = self.at;
        let mut joined = String::new();
        self.at += skip;
        loop {
            let rest = &text[self.at..];
            let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
            self.at += line.len();
            let line = line.trim_end_matches('\r');
            match line.strip_suffix('\\') {
                Some(line) if self.at < text.len() => {
                    joined.push_str(line);
                    joined.push(' ');
                    self.at += 1;
                    self.line += 1;
                }
                _ => {
                    joined.push_str(line);
                    break;
                }
            }
        }
        let length = text[start..self.at].lines().next().map_or(1, str::len);
        let place = Place {
            file: self.file,
            start,
            length,
        };
        Line {
            text: joined,
            place,
        }
    }

    /// A directive, which a comment that goes on does not end.
    fn take_directive(&mut self, text: &str) -> Result<Line, Problem> {
        let mut line = self.take_line(text, 1);
        while let Some(start) = open_comment(&line.text) {
            let rest = &text[self.at..];
            let Some(end) = rest.find("*/") else {
                return Err(Problem::new(line.place, NO_COMMENT_END));
            };
            line.text.truncate(start);
            line.text.push(' ');
            self.line += rest[..end].matches('\n').count();
            self.at += end + 2;
            let tail = self.take_line(text, 0);
            line.text.push_str(&tail.text);
        }
        Ok(line)
    }

    fn comment(&mut self, rest: &str) -> Result<(), Problem> {
        let is_block = rest.starts_with("/*");
        let length = if is_block {
            rest[2..].find("*/").map(|end| end + 4)
        } else {
            Some(rest.find('\n').unwrap_or(rest.len()))
        };
        let Some(length) = length else {
            return Err(Problem::new(self.place(2), NO_COMMENT_END));
        };
        let body = if is_block {
            &rest[2..length - 2]
        } else {
            &rest[2..length]
        };
        let last_line = self.line + body.matches('\n').count();
        self.comments.push(Comment {
            file: self.file,
            start: self.at,
            first_line: self.line,
            last_line,
            is_alone: self.is_line_start,
            text: comment_lines(body),
        });
        self.line = last_line;
        self.at += length;
        Ok(())
    }

    fn word(&mut self, rest: &str) -> Result<Token, Problem> {
        let first = rest.chars().next().unwrap_or_default();
        if first.is_ascii_alphabetic() || first == '_' {
            let length = span(rest, |c| c.is_ascii_alphanumeric() || c == '_');
            return Ok(self.token(Kind::Name(rest[..length].to_owned()), length));
        }
        if first.is_ascii_digit() {
            let length = span(rest, |c| c.is_ascii_alphanumeric() || c == '_');
            let Some(number) = number(&rest[..length]) else {
                let message = format!("expected a number, found `{}`", &rest[..length]);
                return Err(Problem::new(self.place(length), message));
            };
            return Ok(self.token(Kind::Number(number), length));
        }
        if first == '"' || first == '\'' {
            return self.quoted(rest, first);
        }
        if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            return Ok(self.token(Kind::Sign(sign), sign.len()));
        }
        let place = self.place(first.len_utf8());
        Err(Problem::new(place, format!("`{first}` means nothing here")))
    }

    /// A string, or a character, which is a number.
    fn quoted(&mut self, rest: &str, quote: char) -> Result<Token, Problem> {
        let mut value = String::new();
        let mut letters = rest.char_indices().skip(1);
        while let Some((at, letter)) = letters.next() {
            let letter = match letter {
                '\n' => break,
                '\\' => match letters.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, 't')) => '\t',
                    Some((_, 'r')) => '\r',
                    Some((_, '0')) => '\0',
                    Some((_, other)) => other,
                    None => break,
                },
                letter if letter == quote => {
                    let length = at + 1;
                    if quote == '"' {
                        return Ok(self.token(Kind::Text(value), length));
                    }
                    let mut one = value.chars();
                    let (Some(letter), None) = (one.next(), one.next()) else {
                        let message = "expected one character between `'` and `'`";
                        return Err(Problem::new(self.place(length), message));
                    };
                    return Ok(self.token(Kind::Number(i128::from(u32::from(letter))), length));
                }
                letter => letter,
            };
            value.push(letter);
        }
        let message = format!("expected another `{quote}` on this line");
        Err(Problem::new(self.place(1), message))
    }
}

/// Where a line that a backslash joins to the next one ends, if the backslash is next.
fn line_break(rest: &str) -> Option<usize> {
    let tail = rest.strip_prefix('\\')?;
    let tail = tail.strip_prefix('\r').unwrap_or(tail);
    let tail = tail.strip_prefix('\n')?;
    Some(rest.len() - tail.len())
}

/// Where the comment begins that is open at the end of a directive's line.
fn open_comment(line: &str) -> Option<usize> {
    let mut at = 0;
    let mut quote = None;
    while let Some(letter) = line[at..].chars().next() {
        let rest = &line[at..];
        if letter == '\\' && quote.is_some() {
            at += 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
            continue;
        }
        if quote.is_none() && rest.starts_with("//") {
            return None;
        }
        if quote.is_none() && rest.starts_with("/*") {
            match rest[2..].find("*/") {
                Some(end) => at += end + 4,
                None => return Some(at),
            }
            continue;
        }
        match quote {
            Some(open) if open == letter => quote = None,
            None if letter == '"' || letter == '\'' => quote = Some(letter),
            _ => {}
        }
        at += letter.len_utf8();
    }
    None
}

fn span(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|letter| !is_part(letter)).unwrap_or(text.len())
}

/// C's integers: decimal, `0x` hexadecimal, `0` octal, with the suffixes that C wants for large ones.
fn number(text: &str) -> Option<i128> {
    let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
    let (digits, radix) = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if digits.len() > 1 && digits.starts_with('0') => (&digits[1..], 8),
        None => (digits, 10),
    };
    u64::from_str_radix(digits, radix).ok().map(i128::from)
}

/// The lines of a comment without its stars, and without empty ones around.
fn comment_lines(body: &str) -> Vec<String> {
    let bare = |line: &str| {
        let line = line.trim();
        let line = line.trim_start_matches('*').trim_end_matches('*');
        line.strip_prefix(' ').unwrap_or(line).trim_end().to_owned()
    };
    let mut lines: Vec<String> = body.lines().map(bare).collect();
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
    let empty = lines
        .iter()
        .take_while(|line| line.trim().is_empty())
        .count();
    lines.split_off(empty)
}
