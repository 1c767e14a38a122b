//! Names of the preprocessor, and what they stand for.

use std::collections::BTreeMap;

use super::lexer::Line;
use super::preprocessor::expect_name;
use super::source::{Place, Problem};
use super::token::Token;

/// Most words that are looked at for one name, so that names of names cannot multiply without end.
const MAX_EXPANSION: usize = 10_000;
/// Deepest nesting of names within what names stand for, and of their arguments.
const MAX_DEPTH: usize = 100;

#[derive(Debug, Default)]
pub(super) struct Macros {
    known: BTreeMap<String, Macro>,
}

#[derive(Debug, Clone)]
struct Macro {
    /// `None`: it takes no arguments.
    parameters: Option<Vec<String>>,
    words: Vec<Token>,
}

/// A name and the words after it, up to the end of its arguments.
#[derive(Debug)]
pub(super) struct Call {
    words: Vec<Token>,
    open: usize,
}

impl Call {
    pub(super) fn new(name: Token) -> Self {
        Self {
            words: vec![name],
            open: 0,
        }
    }

    /// Whether its arguments began.
    pub(super) fn is_begun(&self) -> bool {
        self.open > 0
    }

    /// Whether this was the last word.
    pub(super) fn push(&mut self, token: Token) -> bool {
        if token.is("(") {
            self.open += 1;
        } else if token.is(")") {
            self.open -= 1;
        }
        self.words.push(token);
        self.open == 0
    }

    pub(super) fn words(&self) -> &[Token] {
        &self.words
    }

    /// What is left when the file ends.
    pub(super) fn not_closed(self) -> Result<Vec<Token>, Problem> {
        match self.open {
            0 => Ok(self.words),
            _ => Err(no_end(&self.words[0])),
        }
    }
}

impl Macros {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.known.remove(name);
    }

    pub(super) fn takes_arguments(&self, token: &Token) -> bool {
        let known = token.name().and_then(|name| self.known.get(name));
        known.is_some_and(|known| known.parameters.is_some())
    }

    /// The rest of a line `#define`: a name, parameters if a bracket follows at once, and words.
    pub(super) fn define(&mut self, words: &[Token], line: &Line) -> Result<(), Problem> {
        let name = expect_name(words, line)?.to_owned();
        let has_parameters = line.text.trim_start()[name.len()..].starts_with('(');
        let words = &words[1..words.len() - 1];
        let known = match has_parameters {
            true => with_parameters(&name, words, line.place)?,
            false => Macro {
                parameters: None,
                words: words.to_vec(),
            },
        };
        self.known.insert(name, known);
        Ok(())
    }

    /// The words with all names replaced. Errors point at the use: that is what somebody can change.
    pub(super) fn expand(&self, words: &[Token]) -> Result<Vec<Token>, Problem> {
        let mut expansion = Expansion {
            macros: self,
            within: Vec::new(),
            looked_at: 0,
        };
        expansion.expand(words, 0)
    }
}

fn with_parameters(name: &str, words: &[Token], place: Place) -> Result<Macro, Problem> {
    let wrong = || {
        let message = format!("expected names between `(` and `)` after `{name}`");
        Problem::new(place, message)
    };
    let end = words
        .iter()
        .position(|word| word.is(")"))
        .ok_or_else(wrong)?;
    let mut parameters = Vec::new();
    for (at, word) in words[1..end].iter().enumerate() {
        match (at % 2, word.name()) {
            (0, Some(parameter)) => parameters.push(parameter.to_owned()),
            (1, None) if word.is(",") && at + 2 < end => {}
            _ => return Err(wrong()),
        }
    }
    Ok(Macro {
        parameters: Some(parameters),
        words: words[end + 1..].to_vec(),
    })
}

fn no_end(name: &Token) -> Problem {
    let message = format!("expected `)` after the arguments of {}", name.kind);
    Problem::new(name.place, message)
}

struct Expansion<'a> {
    macros: &'a Macros,
    /// The names that are being replaced: within what they stand for, they stand for themselves.
    within: Vec<&'a str>,
    looked_at: usize,
}

impl<'a> Expansion<'a> {
    fn expand(&mut self, words: &[Token], depth: usize) -> Result<Vec<Token>, Problem> {
        let mut expanded = Vec::new();
        let mut at = 0;
        while let Some(word) = words.get(at) {
            at += 1;
            self.looked_at += 1;
            if self.looked_at > MAX_EXPANSION || depth > MAX_DEPTH {
                let message = "the definition of this name is too long";
                return Err(Problem::new(word.place, message));
            }
            let Some((name, known)) = self.replaceable(word) else {
                expanded.push(word.clone());
                continue;
            };
            let replacement = match &known.parameters {
                None => known.words.clone(),
                Some(_) if !words.get(at).is_some_and(|next| next.is("(")) => {
                    expanded.push(word.clone());
                    continue;
                }
                Some(parameters) => {
                    let length = arguments_length(&words[at..]).ok_or_else(|| no_end(word))?;
                    let arguments = arguments(&words[at + 1..at + length - 1]);
                    at += length;
                    self.substitute(word, parameters, &arguments, &known.words, depth)?
                }
            };
            let place = word.place;
            let placed = |word: Token| Token { place, ..word };
            let replacement: Vec<Token> = replacement.into_iter().map(placed).collect();
            self.within.push(name);
            expanded.append(&mut self.expand(&replacement, depth + 1)?);
            self.within.pop();
        }
        Ok(expanded)
    }

    fn replaceable(&self, word: &Token) -> Option<(&'a str, &'a Macro)> {
        let (name, known) = self.macros.known.get_key_value(word.name()?)?;
        (!self.within.contains(&name.as_str())).then_some((name, known))
    }

    /// The words of a definition with arguments in the place of parameters.
    fn substitute(
        &mut self,
        name: &Token,
        parameters: &[String],
        arguments: &[&[Token]],
        words: &[Token],
        depth: usize,
    ) -> Result<Vec<Token>, Problem> {
        let is_nothing = parameters.is_empty() && arguments.iter().all(|words| words.is_empty());
        if parameters.len() != arguments.len() && !is_nothing {
            let (expected, found) = (parameters.len(), arguments.len());
            let message = format!(
                "expected {expected} arguments of {}, found {found}",
                name.kind
            );
            return Err(Problem::new(name.place, message));
        }
        let mut expanded = Vec::new();
        for argument in arguments {
            expanded.push(self.expand(argument, depth + 1)?);
        }
        let mut replaced = Vec::new();
        for word in words {
            let parameter = parameters.iter().position(|own| word.name() == Some(own));
            match parameter {
                Some(at) => replaced.extend_from_slice(&expanded[at]),
                None => replaced.push(word.clone()),
            }
            if replaced.len() > MAX_EXPANSION {
                let message = "the definition of this name is too long";
                return Err(Problem::new(name.place, message));
            }
        }
        Ok(replaced)
    }
}

/// How many words arguments are, with their brackets.
fn arguments_length(words: &[Token]) -> Option<usize> {
    let mut open = 0_usize;
    for (at, word) in words.iter().enumerate() {
        if word.is("(") {
            open += 1;
        } else if word.is(")") {
            open -= 1;
        }
        if open == 0 {
            return Some(at + 1);
        }
    }
    None
}

/// What stands between commas, but for those in brackets.
fn arguments(words: &[Token]) -> Vec<&[Token]> {
    let mut open = 0_usize;
    let is_comma = |word: &Token| {
        if word.is("(") {
            open += 1;
        } else if word.is(")") {
            open -= 1;
        }
        open == 0 && word.is(",")
    };
    words.split(is_comma).collect()
}
